"""Springs and dampers of joints and fixed tendons."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ._compile import load_mujoco
from ._coordinates import is_scalar, joint_rows, Lengths, lengths, stacked, tendon_rows
from ._names import described


class Passive(eqx.Module):
    """Springs, which are slack between two lengths (of joints, these are the same), and
    dampers."""

    joint_damping: Float[Array, " v"]
    lengths: Lengths
    stiffness: Float[Array, " lengths"]
    slack: Float[Array, "2 lengths"]
    damping: Float[Array, " lengths"]

    def effort(self, q, v):
        force = -self.joint_damping * v
        if self.stiffness.shape[0] == 0:
            return force
        length = self.lengths.at(q)
        pulled = jnp.maximum(length, self.slack[1]) - self.slack[1]
        pushed = jnp.minimum(length, self.slack[0]) - self.slack[0]
        along = -self.stiffness * (pulled + pushed)
        return force + self.lengths.pull(along - self.damping * self.lengths.rate(v))


def passive_of(model: Any) -> Passive:
    off = load_mujoco().mjtDisableBit
    springs = not model.opt.disableflags & off.mjDSBL_SPRING
    dampers = not model.opt.disableflags & off.mjDSBL_DAMPER
    of_q, of_v, stiffness, slack, damping = [], [], [], [], []

    def add(rows, k, between, d):
        of_q.append(rows[0])
        of_v.append(rows[1])
        stiffness.append(springs * k)
        slack.append(between)
        damping.append(dampers * d)

    for j in range(model.njnt):
        k = model.jnt_stiffness[j]
        if k == 0:
            continue
        if not is_scalar(model, j):
            raise ValueError(
                f"The model has a spring at {described(model, 'joint', j)}, a free or "
                "ball joint. Only springs of hinges, slides and tendons are supported."
            )
        rest = model.qpos_spring[model.jnt_qposadr[j]]
        add(joint_rows(model, j), k, (rest, rest), 0.0)
    for i in range(model.ntendon):
        k, d = model.tendon_stiffness[i], model.tendon_damping[i]
        if k != 0 or d != 0:
            add(tendon_rows(model, i), k, model.tendon_lengthspring[i], d)
    return Passive(
        joint_damping=parameter(dampers * model.dof_damping),
        lengths=lengths(stacked(of_q, model.nq), stacked(of_v, model.nv)),
        stiffness=parameter(np.asarray(stiffness, float)),
        slack=parameter(np.reshape(slack, (-1, 2)).T),
        damping=parameter(np.asarray(damping, float)),
    )
