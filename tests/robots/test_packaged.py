"""Models that packages ship."""

from pathlib import Path

import hybridjax as hj
import pytest

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
    gymnasium = pytest.importorskip("gymnasium")
    folder = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
    model = mujoco.MjModel.from_xml_path(str(folder / f"{name}.xml"))
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
