"""Models that packages ship."""

from pathlib import Path

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import slope, STEPS
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
        "finger": "frictionloss",
        "fish": "in a fluid",
        "humanoid_CMU": "of a shape",
        "lqr": "no joints",
        "manipulator": "of geom",
        "quadruped": "torsional",
        "swimmer": "in a fluid",
    }
    loaded = (
        *("acrobot", "cartpole", "cheetah", "hopper", "humanoid", "pendulum"),
        *("point_mass", "reacher", "stacker", "walker"),
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
        # With the friction of the file it slides where its forces are not unique. Its
        # slope is 1420, where that of the humanoid is 280.
        ("gymnasium", "walker2d", dict(rest_speed=1e-3, friction=0.7, apart=1e-6)),
        ("dm_control", "acrobot", {}),
        ("dm_control", "cartpole", {}),
        ("dm_control", "cheetah", dict(rest_speed=1e-3)),
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
    friction, apart = options.pop("friction", np.inf), options.pop("apart", 1e-7)
    share = options.pop("share", 1e-6)
    model.geom_friction[:, 0] = np.minimum(model.geom_friction[:, 0], friction)
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
    start = np.zeros(model.nv), np.linspace(-0.1, 0.1, model.nu)
    slopes, (coarse, ok) = gradient(start, 1e-8)
    _, (fine, fine_ok) = value(start, 1e-10)
    assert ok and fine_ok
    assert np.max(np.abs(coarse - fine)) < apart
    # Extrapolated: what a change does may bend much, after many events.
    h = 5e-6
    moved = lambda k: jax.tree.map(lambda a, b: a + k * h * b, start, direction)
    runs = [value(moved(k), 1e-10) for k in STEPS]
    assert all(ok for _, (_, ok) in runs)
    expected = slope([end for end, _ in runs], h)
    got = sum(np.dot(*pair) for pair in zip(slopes, direction, strict=True))
    assert abs(got - expected) < share * abs(expected)


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
    of_geoms = np.array([" on " in name for name in robot.contacts])
    if of_geoms.any():
        free, slide = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE
        upward = model.jnt_axis[:, 2] * (model.jnt_type == slide)
        height = model.jnt_qposadr[np.argmax(upward)]
        height = 2 if model.jnt_type[0] == free else height
        q[height] += 0.02 - np.min(robot.system.gap(jnp.asarray(q), None)[of_geoms])
    return jnp.asarray(q)
