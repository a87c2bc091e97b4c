"""Lengths that are linear in the configuration: of joints with one degree of freedom,
and of fixed tendons, which are sums of them."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.dot import dot
from ._compile import load_mujoco
from ._names import described


class Lengths(eqx.Module):
    """Some of them."""

    of_q: Float[Array, "lengths q"]
    of_v: Float[Array, "lengths v"]

    def at(self, q):
        return dot(self.of_q, q)

    def rate(self, v):
        return dot(self.of_v, v)

    def pull(self, forces):
        """The efforts of forces along them."""
        return dot(self.of_v.T, forces)


def lengths(of_q, of_v) -> Lengths:
    return Lengths(parameter(of_q), parameter(of_v))


def joint_rows(model: Any, j: int) -> tuple[np.ndarray, np.ndarray]:
    """That of a hinge or slide."""
    of_q, of_v = np.zeros(model.nq), np.zeros(model.nv)
    of_q[model.jnt_qposadr[j]] = of_v[model.jnt_dofadr[j]] = 1
    return of_q, of_v


def tendon_rows(model: Any, i: int) -> tuple[np.ndarray, np.ndarray]:
    """That of a fixed tendon.

    **Raises:**

    - `ValueError` that names a tendon which is not fixed.
    """
    of_q, of_v = np.zeros(model.nq), np.zeros(model.nv)
    first = model.tendon_adr[i]
    for k in range(first, first + model.tendon_num[i]):
        if model.wrap_type[k] != load_mujoco().mjtWrap.mjWRAP_JOINT:
            raise ValueError(
                f"The model has a spatial tendon, {described(model, 'tendon', i)}, "
                "which exerts forces. Only fixed tendons are supported."
            )
        rows = joint_rows(model, int(model.wrap_objid[k]))
        of_q += model.wrap_prm[k] * rows[0]
        of_v += model.wrap_prm[k] * rows[1]
    return of_q, of_v


def is_scalar(model: Any, j: int) -> bool:
    """Is the joint a hinge or a slide?"""
    joint, kind = load_mujoco().mjtJoint, model.jnt_type[j]
    return bool(kind == joint.mjJNT_HINGE or kind == joint.mjJNT_SLIDE)


def stacked(rows, width: int) -> np.ndarray:
    return np.reshape(rows, (-1, width))
