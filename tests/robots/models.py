"""Small models, as text, and what compiles them."""

import importlib
from typing import Any


# Its names are not known to type checkers.
mujoco: Any = importlib.import_module("mujoco")

# Joints of all kinds, also several of one body, two trees, weights that are compensated
# in part; springs and dampers; actuators of all kinds.
ALL_JOINTS = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body pos="0 0 1" euler=".3 .5 .7">
      <joint type="ball" pos=".1 .2 .3" damping=".1" name="ball"/>
      <geom size=".1 .2 .3" type="box" pos=".3 0 .1"/>
      <body pos=".5 0 0" euler="0 .8 .2">
        <joint name="slide" type="slide" axis="1 1 0" stiffness="2" springref=".1"
          ref=".3" damping=".2"/>
        <joint name="hinge" axis="0 1 1" pos=".1 0 .2" armature=".3" stiffness="3"
          springref=".2" damping=".7" actuatorfrcrange="-2 2"
          actuatorfrclimited="true"/>
        <joint type="ball" pos="0 .1 0"/>
        <geom size=".1 .2" type="capsule" pos=".1 .3 0"/>
        <body pos=".1 0 0">
          <geom size=".2" mass="2"/>
          <body pos="0 .3 .2"><joint axis="1 0 0" name="last"/><geom size=".1"/></body>
        </body>
      </body>
    </body>
    <body pos="3 2 1" gravcomp=".4">
      <freejoint name="free"/>
      <geom size=".3 .1 .2" type="ellipsoid" pos=".1 .2 0"/>
      <body pos=".3 0 0"><joint type="slide"/><geom size=".1"/></body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="tendon" stiffness="4" springlength=".1 .3" damping=".5">
      <joint joint="hinge" coef="2"/><joint joint="slide" coef="-.5"/>
    </fixed>
  </tendon>
  <actuator>
    <motor joint="hinge" gear="3" ctrlrange="-.5 .5" ctrllimited="true"/>
    <position joint="slide" kp="7" kv="1"/>
    <velocity joint="hinge" kv="2" gear="2"/>
    <motor tendon="tendon"/>
    <position tendon="tendon" kp="3" forcerange="-.4 .4" forcelimited="true"/>
    <motor joint="ball" gear=".1 .2 .3"/>
    <motor joint="free" gear=".1 .2 .3 .4 .5 .6"/>
    <general joint="last" gainprm="1 2 3" gaintype="affine" biastype="affine"
      biasprm=".1 .2 .3"/>
  </actuator>
</mujoco>
"""

# All shapes, on a plane that is tilted; and two spheres.
SHAPES = """
<mujoco>
  <worldbody>
    <geom name="slope" type="plane" size="1 1 1" pos=".1 .2 -.3" euler="10 20 0"
      friction=".3" margin=".01"/>
    <body name="one" pos="0 0 2">
      <freejoint/>
      <geom name="ball" size=".1" pos=".2 .1 0" friction=".5"/>
      <geom name="capsule" type="capsule" size=".1 .2" pos="0 .3 0" euler="30 0 0"/>
      <geom name="box" type="box" size=".1 .2 .3" pos="-.4 0 0" condim="1"/>
      <body name="wheel" pos=".5 0 0">
        <joint name="axle" range="-1 2" limited="true"/>
        <geom name="cylinder" type="cylinder" size=".2 .1"/>
      </body>
    </body>
    <body name="two" pos="1 0 2">
      <freejoint/>
      <geom name="other" size=".2" margin=".02"/>
    </body>
  </worldbody>
  <contact><pair geom1="ball" geom2="other" friction=".7 .7"/></contact>
</mujoco>
"""

# A disc on a leg that hops in a plane, and its limit.
HOPPER = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" friction=".8"/>
    <body name="trunk" pos="0 0 1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="y" type="hinge" axis="0 1 0"/>
      <geom type="box" size=".1 .1 .1" mass="2"/>
      <body name="leg" pos="0 0 -.3">
        <joint name="leg" type="slide" axis="0 0 1" range="-.1 .1" stiffness="300"
          damping="3"/>
        <geom name="foot" type="cylinder" size=".05 .1" euler="1.5707963267948966 0 0"
          mass=".3" friction=".6"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="leg" gear="10"/></actuator>
  <keyframe><key name="low" qpos="0 -.6 0 0" qvel="1 0 0 0"/></keyframe>
</mujoco>
"""

# A leg of two links with a knee that has stops.
LEG = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="thigh" pos="0 0 1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="y" type="hinge" axis="0 1 0"/>
      <geom name="thigh" type="capsule" fromto="0 0 0 0 0 -.4" size=".04"/>
      <body name="shank" pos="0 0 -.4">
        <joint name="knee" axis="0 1 0" range="-1 .2"/>
        <geom name="shank" type="capsule" fromto="0 0 0 0 0 -.4" size=".03"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="knee" joint="knee" gear="10"/></actuator>
</mujoco>
"""
