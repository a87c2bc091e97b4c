"""Dry friction of joints."""

from typing import Any

import numpy as np

from ._compile import load_mujoco
from ._names import name_of


def dry_friction_of(model: Any) -> tuple[np.ndarray, list[str]]:
    """The forces, one for each velocity; and the names of what has some."""
    on = not model.opt.disableflags & load_mujoco().mjtDisableBit.mjDSBL_FRICTIONLOSS
    forces = on * model.dof_frictionloss
    names = []
    for i in np.flatnonzero(forces).tolist():
        j = model.dof_jntid[i]
        first = model.jnt_dofadr[j]
        one_of = f", velocity {i - first}" if np.sum(model.dof_jntid == j) > 1 else ""
        names.append(f"{name_of(model, 'joint', j)}: dry friction{one_of}")
    return forces, names
