"""What a model may have that is neither done, nor refused where it would be."""

from typing import Any

import numpy as np

from ._names import described


_OF_JOINTS = {
    "jnt_stiffnesspoly": "a nonlinear spring",
    "jnt_springyield": "a spring that yields",
}
_OF_VELOCITIES = {
    "dof_dampingpoly": "nonlinear damping",
}
_OF_TENDONS = {
    "tendon_frictionloss": "dry friction (frictionloss)",
    "tendon_stiffnesspoly": "a nonlinear spring",
    "tendon_dampingpoly": "nonlinear damping",
    "tendon_springyield": "a spring that yields",
    "tendon_armature": "armature",
    "tendon_actfrclimited": "a limit of the force of its actuators",
}
_OF_ACTUATORS = {
    "actuator_delay": "a delay",
    "actuator_damping": "damping of its own",
    "actuator_dampingpoly": "nonlinear damping",
    "actuator_armature": "armature of its own",
}


def check_supported(model: Any):
    """Raises a `ValueError` that names the first element which is not supported."""
    if model.nv == 0:
        raise ValueError("The model has no joints: nothing in it moves.")
    if model.opt.density != 0 or model.opt.viscosity != 0:
        raise ValueError(
            "The model is in a fluid: its options have a density or a viscosity. This "
            "is not supported."
        )
    for count, what in {"nflex": "flexes", "nplugin": "plugins"}.items():
        if getattr(model, count) > 0:
            raise ValueError(f"The model has {what}. This is not supported.")
    joint_of = lambda i: model.dof_jntid[i]
    for fields, kind, element in (
        (_OF_JOINTS, "joint", int),
        (_OF_VELOCITIES, "joint", joint_of),
        (_OF_TENDONS, "tendon", int),
        (_OF_ACTUATORS, "actuator", int),
    ):
        for field, what in fields.items():
            values = np.asarray(getattr(model, field))
            used = np.any(values != 0, axis=tuple(range(1, values.ndim)))
            for i in np.flatnonzero(used):
                raise ValueError(
                    f"The model has {what} at {described(model, kind, element(i))}. "
                    "This is not supported. Take it out of an `MjModel`, or of the "
                    f"file: field `{field}`."
                )
    counts = {"actuator_ctrlnum": "controls", "actuator_outnum": "outputs"}
    for field, what in counts.items():
        for i in np.flatnonzero(getattr(model, field) != 1).tolist():
            raise ValueError(
                f"The model has {described(model, 'actuator', i)}, which has not one "
                f"but {getattr(model, field)[i]} {what}. This is not supported."
            )
