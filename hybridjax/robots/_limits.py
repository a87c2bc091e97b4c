"""Limits of joints and fixed tendons: contacts without friction."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.dot import dot
from ._compile import load_mujoco
from ._coordinates import is_scalar, joint_rows, stacked, tendon_rows
from ._names import described, name_of


class Limits(eqx.Module):
    """Gaps that are affine in the configuration."""

    of_q: Float[Array, "limits q"]
    of_v: Float[Array, "limits v"]
    offset: Float[Array, " limits"]

    def gap(self, q):
        return dot(self.of_q, q) + self.offset


def limits_of(model: Any) -> tuple[Limits, list[str]]:
    """The limits, lower and upper one of each, and their names."""
    of_q, of_v, offsets, names = [], [], [], []

    def add(rows, between, margin, name):
        for sign, bound, side in (1, between[0], "lower"), (-1, between[1], "upper"):
            of_q.append(sign * rows[0])
            of_v.append(sign * rows[1])
            offsets.append(-sign * bound - margin)
            names.append(f"{name}: {side} limit")

    on = not model.opt.disableflags & load_mujoco().mjtDisableBit.mjDSBL_LIMIT
    for j in np.flatnonzero(model.jnt_limited).tolist() if on else []:
        if not is_scalar(model, j):
            raise ValueError(
                f"The model has a limit of {described(model, 'joint', j)}, a ball "
                "joint. Only limits of hinges, slides and tendons are supported."
            )
        rows, name = joint_rows(model, j), name_of(model, "joint", j)
        add(rows, model.jnt_range[j], model.jnt_margin[j], name)
    for i in np.flatnonzero(model.tendon_limited).tolist() if on else []:
        rows, name = tendon_rows(model, i), name_of(model, "tendon", i)
        add(rows, model.tendon_range[i], model.tendon_margin[i], name)
    limits = Limits(
        parameter(stacked(of_q, model.nq)),
        parameter(stacked(of_v, model.nv)),
        parameter(np.asarray(offsets, float)),
    )
    return limits, names
