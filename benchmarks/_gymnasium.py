"""Robots of gymnasium's files, altered so that all engines are given the same."""

import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np


# Its names are not known to type checkers.
mujoco: Any = importlib.import_module("mujoco")
MODELS = ("hopper", "walker2d", "ant")
# A foot of the walker has 1.9: rigid ones jam with that, where its shank leans
# (Painlevé's paradox), and have impacts then that soft ones do not have.
MOST_FRICTION = 0.7
DROP = 0.02  # m, from the ground to the lowest point
VERSIONS = f"gymnasium {version('gymnasium')}, mujoco {version('mujoco')}"


class Fall(NamedTuple):
    model: Any  # mujoco.MjModel
    q: np.ndarray  # where it begins, at rest
    controls: np.ndarray  # constant ones, for each lane


def fall_of(name: str, lanes: int) -> Fall:
    """One that falls with its joints a little bent, driven otherwise in each lane."""
    folder = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
    model = mujoco.MjModel.from_xml_path(str(folder / f"{name}.xml"))
    # Links touch the ground, and not each other. The margin of a contact means
    # something else since MuJoCo 4.
    model.geom_conaffinity[model.geom_bodyid > 0] = 0
    model.geom_margin[:] = 0
    model.geom_friction[:, 0] = np.minimum(model.geom_friction[:, 0], MOST_FRICTION)
    q = model.qpos0.copy()
    for j in np.flatnonzero(model.jnt_limited):
        low, high = model.jnt_range[j]
        # Each otherwise, so that no two feet land in the same instant.
        bend = (0.1 + 0.05 * (0.618 * j % 1)) * (high - low)
        place = model.jnt_qposadr[j]
        q[place] = np.clip(q[place], low + bend, high - bend)
    free = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    q[2 if free else 1] += DROP - _lowest(model, q)
    controls = np.random.default_rng(0).uniform(-0.3, 0.3, (lanes, model.nu))
    return Fall(model, q, controls)


def _lowest(model, q) -> float:
    """The height of the lowest point of what may touch the ground."""
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    return min(
        mujoco.mj_geomDistance(model, data, _floor(model), geom, 10.0, None)
        for geom in np.flatnonzero(model.geom_bodyid > 0)
    )


def _floor(model) -> int:
    return int(np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)[0])
