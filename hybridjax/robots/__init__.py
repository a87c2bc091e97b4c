"""Robots from files (MJCF, URDF), as mechanical systems.

MuJoCo compiles the file, and is imported where one is. `_topology` says how joints are
connected, `_kinematics` where their frames are, `_inertia` what moves them; the other
files are an element of the format each. May import the engine and `mechanics`. Begin
with `_from_mjcf.py`.
"""

from .._jax.signature import make_readable
from ._from_mjcf import from_mjcf as from_mjcf
from ._robot import Robot as Robot


make_readable(*list(globals().values()))
