"""Robots that are simulated: what comes out is what is known."""

import diffrax
import hybridjax as hj
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode

from ..helpers import batch_jacobians, error
from .models import HOPPER


def _push(t, q, v, args):
    return args[:1] + args[1] * jnp.sin(9 * t)[None]


def test_hopper():
    # It lands, slides, sticks, and rises; the derivatives are those of differences.
    robot = hj.robots.from_mjcf(HOPPER, contacts=["foot"], control=_push)
    x0 = robot.keyframe("low")

    def final(u):
        sol = hj.simulate(
            robot.system,
            *(0.0, 0.8, x0),
            args=u,
            stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9),
            max_steps=512,
            max_events=16,
            throw=False,
        )
        return jnp.concatenate(sol.x1), (
            sol.result == hj.RESULTS.successful,
            sol.events.mode_after[:, 0],
        )

    u, h = np.array([0.3, 2.0]), 1e-5
    lanes = np.stack([u, *(u + s * h * e for e in np.eye(2) for s in (1, -1))])
    x1, forward, reverse, (ok, modes) = batch_jacobians(final)(lanes)
    assert ok.all()
    assert {ContactMode.STICKING, ContactMode.FORWARD, ContactMode.LIFTING} <= set(
        np.asarray(modes[0]).tolist()
    )
    differences = np.stack([x1[1] - x1[2], x1[3] - x1[4]], axis=1) / (2 * h)
    assert error(forward[0], differences) < 1e-5
    assert error(reverse[0], forward[0]) < 1e-9


def test_urdf():
    text = """<robot name="pendulum">
      <link name="base"/>
      <link name="rod"><inertial><origin xyz="0 0 -.5"/><mass value="2"/>
        <inertia ixx=".2" iyy=".3" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="pivot" type="continuous"><parent link="base"/><child link="rod"/>
        <axis xyz="0 1 0"/></joint></robot>"""
    robot = hj.robots.from_mjcf(text)
    assert robot.contacts == () and isinstance(robot.system, hj.mechanics.Multibody)
    _, acceleration = robot.system(0.0, (jnp.array([0.3]), jnp.array([1.0])))
    exact = -2 * 9.81 * 0.5 * np.sin(0.3) / (0.3 + 2 * 0.25)
    np.testing.assert_allclose(acceleration, [exact], atol=1e-12)
