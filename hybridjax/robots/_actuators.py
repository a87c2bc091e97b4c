"""Motors, and servos of position and velocity: forces that are affine in control,
length and velocity."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ._compile import load_mujoco
from ._coordinates import is_scalar, joint_rows, Lengths, lengths, stacked, tendon_rows
from ._names import described


class Actuators(eqx.Module):
    """The forces are `gain * u + bias`; both are affine in length and velocity."""

    lengths: Lengths
    gain: Float[Array, "3 actuators"]
    bias: Float[Array, "3 actuators"]
    control_range: Float[Array, "2 actuators"]
    force_range: Float[Array, "2 actuators"]
    joint_range: Float[Array, "2 v"]

    def effort(self, q, v, control):
        u = jnp.clip(control, *self.control_range)
        length, rate = self.lengths.at(q), self.lengths.rate(v)
        affine = lambda k: k[0] + k[1] * length + k[2] * rate
        force = affine(self.gain) * u + affine(self.bias)
        force = jnp.clip(force, *self.force_range)
        return jnp.clip(self.lengths.pull(force), *self.joint_range)


def actuators_of(model: Any) -> Actuators:
    mujoco, n = load_mujoco(), int(model.nu)
    off = mujoco.mjtDisableBit
    rows = [_rows(model, i) for i in range(n)]
    on = np.array([_is_on(model, i) for i in range(n)], float)
    fixed = model.actuator_gaintype[:n] == mujoco.mjtGain.mjGAIN_FIXED
    terms = np.where(fixed, np.array([[1], [0], [0]]), 1)
    gain = on * terms * model.actuator_gainprm[:n, :3].T
    none = model.actuator_biastype[:n] == mujoco.mjtBias.mjBIAS_NONE
    bias = on * ~none * model.actuator_biasprm[:n, :3].T
    clamped = not model.opt.disableflags & off.mjDSBL_CLAMPCTRL
    _of_joints(model, bias, gain)
    return Actuators(
        lengths=lengths(
            stacked([row for row, _ in rows], model.nq),
            stacked([row for _, row in rows], model.nv),
        ),
        gain=parameter(gain),
        bias=parameter(bias),
        control_range=_range(
            model.actuator_ctrlrange[:n], clamped * model.actuator_ctrllimited[:n]
        ),
        force_range=_range(
            model.actuator_forcerange[:n], model.actuator_forcelimited[:n]
        ),
        joint_range=_range(
            model.jnt_actfrcrange[model.dof_jntid],
            model.jnt_actfrclimited[model.dof_jntid],
        ),
    )


def _range(bounds, limited):
    """Two rows: infinite where nothing is limited."""
    endless = np.array([-np.inf, np.inf])
    bounds = np.where(np.asarray(limited, bool)[:, None], bounds, endless)
    return parameter(bounds.reshape(-1, 2).T)


def _is_on(model, i) -> bool:
    if model.opt.disableflags & load_mujoco().mjtDisableBit.mjDSBL_ACTUATION:
        return False
    group = int(model.actuator_group[i])
    return not (0 <= group < 31 and model.opt.disableactuator & (1 << group))


def _rows(model, i):
    """What the actuator pulls at, times its gear."""
    mujoco = load_mujoco()
    transmission, gain = mujoco.mjtTrn, mujoco.mjtGain
    name, target = described(model, "actuator", i), int(model.actuator_trnid[i, 0])
    kind = model.actuator_trntype[i]
    # Not `in`, which asks the types of MuJoCo, that are equal to no integer of numpy.
    one_of = lambda kind, types: any(kind == some for some in types)
    affine, bias = (gain.mjGAIN_FIXED, gain.mjGAIN_AFFINE), mujoco.mjtBias
    if not (
        model.actuator_dyntype[i] == mujoco.mjtDyn.mjDYN_NONE
        and one_of(model.actuator_gaintype[i], affine)
        and one_of(model.actuator_biastype[i], (bias.mjBIAS_NONE, bias.mjBIAS_AFFINE))
    ):
        raise ValueError(
            f"The model has {name} with a state or a force law of its own (activation, "
            "muscle, ...). Only motors and servos of position and velocity are "
            "supported, whose force is affine in control, length and velocity."
        )
    if one_of(kind, (transmission.mjTRN_JOINT, transmission.mjTRN_JOINTINPARENT)):
        if is_scalar(model, target):
            rows = joint_rows(model, target)
            return tuple(model.actuator_gear[i, 0] * row for row in rows)
        if kind == transmission.mjTRN_JOINT:
            return _many(model, i, target)
    if kind == transmission.mjTRN_TENDON:
        return tuple(
            model.actuator_gear[i, 0] * row for row in tendon_rows(model, target)
        )
    raise ValueError(
        f"The model has {name} that acts on something else than a joint or a fixed "
        "tendon, or on a free or ball joint in the frame of its parent. This is not "
        "supported."
    )


def _many(model, i, j):
    """A wrench on a free or ball joint: it has no length."""
    first, kind = model.jnt_dofadr[j], model.jnt_type[j]
    size = 6 if kind == load_mujoco().mjtJoint.mjJNT_FREE else 3
    of_v = np.zeros(model.nv)
    of_v[first : first + size] = model.actuator_gear[i, :size]
    return np.zeros(model.nq), of_v


def _of_joints(model, bias, gain):
    """Refuses a servo of what has no length."""
    transmission = load_mujoco().mjtTrn
    for i in range(model.nu):
        joint = model.actuator_trntype[i] != transmission.mjTRN_TENDON
        if joint and not is_scalar(model, int(model.actuator_trnid[i, 0])):
            if bias[1, i] != 0 or gain[1, i] != 0:
                raise ValueError(
                    f"The model has {described(model, 'actuator', i)}, a servo of the "
                    "position of a free or ball joint. This is not supported."
                )
