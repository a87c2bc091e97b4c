"""Models that packages ship."""

from pathlib import Path

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import inner, slope_along
from .models import mujoco
from .test_dynamics import check_dynamics


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, n_contacts",
    [
        ("hopper", 14),
        ("walker2d", 26),
        ("half_cheetah", 28),
        ("ant", 41),
        ("humanoid", 63),
    ],
)
def test_gymnasium(name, n_contacts):
    model = _model("gymnasium", name)
    check_dynamics(model)
    robot = hj.robots.from_mjcf(model)
    assert len(robot.contacts) == robot.system.n_contacts == n_contacts


@pytest.mark.thorough
def test_dm_control():
    suite = pytest.importorskip("dm_control.suite")
    folder = Path(suite.__file__).parent
    refused = {
        "ball_in_cup": "spatial tendon",
        "fish": "in a fluid",
        "humanoid_CMU": "of a shape",
        "lqr": "no joints",
        "manipulator": "of geom",
        "quadruped": "torsional",
        "swimmer": "in a fluid",
    }
    loaded = (
        *("acrobot", "cartpole", "cheetah", "finger", "hopper", "humanoid"),
        *("pendulum", "point_mass", "reacher", "stacker", "walker"),
    )
    for name in loaded:
        model = mujoco.MjModel.from_xml_path(str(folder / f"{name}.xml"))
        check_dynamics(model, 20)
        hj.robots.from_mjcf(model)
    for name, message in refused.items():
        with pytest.raises(ValueError, match=message):
            hj.robots.from_mjcf(folder / f"{name}.xml")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "package, file, options",
    [
        ("gymnasium", "hopper", {}),
        ("gymnasium", "half_cheetah", {}),
        # Its four feet are redundant: rounding moves the end by 3e-9, and differences
        # by 1e-3 of 132. (By default feet stop at a speed that is a root of the
        # tolerance.)
        ("gymnasium", "ant", dict(rest_speed=1e-3, share=1e-5)),
        ("gymnasium", "humanoid", dict(rest_speed=1e-3)),
        # It has 51 events, and a slope of 458: a little away there are other events,
        # from rest within 1e-6.
        (
            *("gymnasium", "walker2d"),
            dict(rest_speed=1e-3, off=5e-3, apart=1e-6, h=1e-6),
        ),
        ("dm_control", "acrobot", {}),
        ("dm_control", "cartpole", {}),
        ("dm_control", "cheetah", dict(rest_speed=1e-3)),
        # Its spinner has dry friction.
        ("dm_control", "finger", {}),
        ("dm_control", "hopper", dict(rest_speed=1e-3)),
        # 161 events: from 3e-7 on there are others, and differences of values to 1e-10
        # are off by 1e-4.
        (
            *("dm_control", "humanoid"),
            dict(rest_speed=2e-2, most_closed=16, share=1e-5, h=1e-7, exact=3e-12),
        ),
        ("dm_control", "pendulum", {}),
        ("dm_control", "point_mass", {}),
        ("dm_control", "reacher", {}),
        ("dm_control", "walker", dict(rest_speed=1e-3)),
    ],
)
def test_falls(package, file, options):
    # For a second, from where its joints are a little bent: the value converges, and
    # the derivative, along a direction of controls and states, is that of differences.
    model, options = _model(package, file), dict(options)
    apart = options.pop("apart", 1e-7)
    share, h = options.pop("share", 1e-6), options.pop("h", 5e-6)
    off, exact = options.pop("off", 0.0), options.pop("exact", 1e-10)
    robot = hj.robots.from_mjcf(model, **options)
    q = _bent(robot)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=model.nq + model.nv)
    direction = rng.normal(size=model.nv), rng.normal(size=model.nu)

    def final(moved, tolerance):
        v, u = moved
        sol = hj.simulate(
            robot.system,
            *(0.0, 1.0, (q, v)),
            args=u,
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_events=256,
            throw=False,
        )
        x1 = jnp.concatenate(sol.x1)
        return jnp.dot(weights, x1), (x1, sol.result == hj.RESULTS.successful)

    value, gradient = jax.jit(final), jax.jit(jax.grad(final, has_aux=True))
    start = off * direction[0], np.linspace(-0.1, 0.1, model.nu) + off * direction[1]
    slopes, (coarse, ok) = gradient(start, 1e-8)
    _, (fine, fine_ok) = value(start, exact)
    assert ok and fine_ok
    assert np.max(np.abs(coarse - fine)) < apart

    def successful(x):
        end, (_, ok) = value(x, exact)
        assert ok
        return end

    # Extrapolated: what a change does may bend much, after many events.
    expected = slope_along(successful, start, direction, h)
    assert abs(inner(slopes, direction) - expected) < share * abs(expected)


@pytest.mark.thorough
def test_walkers():
    # With the friction of the file, 0.9 and 1.9. Driven otherwise each, they fall, jam
    # and pass dead centres: of forty all arrive, but for one at most.
    model = _model("gymnasium", "walker2d")
    robot = hj.robots.from_mjcf(model, rest_speed=1e-3, most_closed=16)
    q = _bent(robot)

    @jax.jit
    def run(u):
        return hj.simulate(
            robot.system,
            *(0.0, 1.0, (q, jnp.zeros(model.nv))),
            args=u,
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
            max_events=2048,
            max_steps=8192,
            throw=False,
        ).result

    controls = np.random.default_rng(0).uniform(-0.3, 0.3, (40, model.nu))
    arrived = [bool(run(u) == hj.RESULTS.successful) for u in controls]
    assert sum(arrived) >= 39


@pytest.mark.thorough
def test_ilqr():
    # The hopper squats, takes off and rises: motors for that, from a guess that hops a
    # little. Which contacts and limits it meets, and when, comes out of it.
    stiffness, damping = 400.0, 25.0  # N m/rad, N m s/rad

    def servo(t, q, v, angles):
        return (stiffness * (angles - q[3:]) - damping * v[3:]) / torque

    model = _model("gymnasium", "hopper")
    torque, share = model.actuator_gear[:, 0], model.body_mass / model.body_mass.sum()
    robot = hj.robots.from_mjcf(
        model,
        control=servo,
        contacts=["foot_geom"],
        friction=0.9,
        static_friction=np.array([jnp.inf] * 2 + [0.0] * 6),
        rest_speed=0.02,
    )
    system, stick = robot.system, int(hj.mechanics.ContactMode.STICKING)
    q = np.array([0.0, 1.0, -0.787, -0.2, -1.2, 0.613])
    q[1] -= system.gap(jnp.asarray(q), None)[0]
    x0, mode0 = (jnp.asarray(q), jnp.zeros(6)), jnp.array([stick] * 2 + [0] * 6)
    squat, n = jnp.asarray(q[3:]), 8
    ts = jnp.linspace(0, 0.4, n + 1)
    guess = jnp.tile(squat, (n, 1)).at[3:6].add(jnp.array([0.1, 0.5, 0.15]))

    def centre(q):
        places, turns = robot.frames(q)
        return share @ (places + jnp.einsum("bij,bj->bi", turns, model.body_ipos))

    def height(x):
        place, speed = jax.jvp(centre, x[:1], x[1:])
        return place[2] + jnp.maximum(speed[2], 0) ** 2 / 19.62, speed[0]

    def terminal(t, x):
        top, drift = height(x)
        return -top + 0.1 * drift**2 + 0.01 * x[1][2] ** 2

    found = hj.control.ilqr(
        *(system, ts, x0, mode0, guess),
        lambda t, x, u: 1e-3 * jnp.sum((u - squat) ** 2),
        terminal,
        max_iterations=30,
        rtol=1e-2,
        regularization=1e-2,
        solver=diffrax.Bosh3(),
        stepsize_controller=diffrax.ConstantStepSize(),
        dt0=0.01,
        max_steps=32,
    )
    costs = np.asarray(found.log.cost)[: int(found.log.count)]
    assert np.all(np.diff(costs) <= 0) and costs[-1] < costs[0] - 0.25

    # One interval after the other, at default tolerances.
    step = jax.jit(
        lambda *given: hj.simulate(system, *given, max_events=32, throw=False)
    )
    x, mode, events = x0, mode0, 0
    for k in range(n):
        sol = step(ts[k], ts[k + 1], x, mode, found.us[k])
        assert sol.result == hj.RESULTS.successful
        x, mode, events = sol.x1, sol.mode1, events + int(sol.events.count)
    assert events >= 3
    assert abs(height(x)[0] - height([a[-1] for a in found.xs])[0]) < 0.02


def _model(package: str, file: str):
    if package == "gymnasium":
        module = pytest.importorskip("gymnasium")
        folder = Path(module.__file__).parent / "envs/mujoco/assets"
    else:
        folder = Path(pytest.importorskip("dm_control.suite").__file__).parent
    return mujoco.MjModel.from_xml_path(str(folder / f"{file}.xml"))


def _bent(robot):
    """The configuration of the file, with all joints inside of their limits, each
    otherwise; 2 cm above what it may fall on."""
    model, q = robot.model, robot.model.qpos0.copy()
    for j in np.flatnonzero(model.jnt_limited):
        low, high = model.jnt_range[j]
        bend = (0.1 + 0.05 * (0.618 * j % 1)) * (high - low)
        place = model.jnt_qposadr[j]
        q[place] = np.clip(q[place], low + bend, high - bend)
    of_geoms = np.flatnonzero([" on " in name for name in robot.contacts])
    free, slide = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE
    upward = model.jnt_axis[:, 2] * (model.jnt_type == slide)
    if of_geoms.size and (upward.any() or model.jnt_type[0] == free):
        height = model.jnt_qposadr[np.argmax(upward)]
        height = 2 if model.jnt_type[0] == free else height
        q[height] += 0.02 - np.min(robot.system.gap(jnp.asarray(q), None)[of_geoms])
    return jnp.asarray(q)
