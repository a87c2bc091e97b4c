"""Robots that are simulated: what comes out is what is known."""

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics import ContactMode

from ..helpers import both_jacobians, error, inner, slope_along
from .models import HOPPER, LEG


def _push(t, q, v, args):
    return args[:1] + args[1] * jnp.sin(9 * t)[None]


@pytest.mark.thorough  # The page on robots does this with a smaller one.
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
    run = both_jacobians(final)
    _, forward, reverse, (ok, modes) = run(u)
    assert ok
    assert {ContactMode.STICKING, ContactMode.FORWARD} <= set(
        np.asarray(modes).tolist()
    )
    value = lambda u: final(u)[0]
    value = jax.jit(value, compiler_options=hj.compiler_options("fast_to_compile"))
    differences = [(value(u + h * e) - value(u - h * e)) / (2 * h) for e in np.eye(2)]
    assert error(forward, np.stack(differences, axis=1)) < 1e-5
    assert error(reverse, forward) < 1e-9


def test_much_friction():
    # A leg that falls with a friction of 2. Its foot slides when the knee meets its
    # stop, and then cannot: an impulse in the same instant ends the slip. Another one
    # comes to rest on three points, of which the foot only follows the others.
    robot = hj.robots.from_mjcf(LEG, friction=2.0, rest_speed=1e-3)
    weights = np.random.default_rng(0).normal(size=8)

    def final(moved, t1):
        q, v, u = moved
        sol = hj.simulate(
            robot.system,
            *(0.0, t1, (q, v)),
            args=u,
            solver=diffrax.Bosh3(),
            max_events=32,
            throw=False,
        )
        x1 = jnp.dot(weights, jnp.concatenate(sol.x1))
        return x1, (sol.result, (sol.events.mode_after == ContactMode.JAMMED).any())

    flags = hj.compiler_options("fast_to_compile")
    run = jax.jit(jax.value_and_grad(final, has_aux=True), compiler_options=flags)
    rng, h = np.random.default_rng(1), 1e-5
    for t1, jams, start in (
        (0.258, True, [[0, -0.2304, -0.392, -0.1139], [-1.065, 0.287, -1.158, -2.631]]),
        (0.6, False, [[0, -0.5142, -0.7394, -0.4732], [-0.817, -0.935, 0.819, 3.672]]),
    ):
        start = (*map(np.array, start), np.array([0.742 if jams else -0.237]))
        direction = tuple(rng.normal(size=a.shape) for a in start)
        (_, (result, jammed)), slopes = run(start, t1)
        assert result == hj.RESULTS.successful and jammed == jams
        value = lambda x, t1=t1: run(x, t1)[0][0]
        expected = slope_along(value, start, direction, h)
        assert abs(inner(slopes, direction) - expected) < 1e-5 * abs(expected)


def test_urdf():
    text = """<robot name="pendulum">
      <link name="base"/>
      <link name="rod"><inertial><origin xyz="0 0 -.5"/><mass value="2"/>
        <inertia ixx=".2" iyy=".3" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="pivot" type="continuous"><parent link="base"/><child link="rod"/>
        <axis xyz="0 1 0"/></joint></robot>"""
    robot = hj.robots.from_mjcf(text)
    assert robot.contacts == () and isinstance(robot.system, hj.mechanics.Multibody)
    x = (jnp.array([0.3]), jnp.array([1.0]))
    _, acceleration = jax.jit(lambda x: robot.system(0.0, x))(x)
    exact = -2 * 9.81 * 0.5 * np.sin(0.3) / (0.3 + 2 * 0.25)
    np.testing.assert_allclose(acceleration, [exact], atol=1e-12)
