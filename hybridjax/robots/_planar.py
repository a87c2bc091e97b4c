from typing import Any

import numpy as np

from ._compile import load_mujoco


def plane_of_motion(model: Any, data: Any) -> np.ndarray | None:
    """The normal of the plane in which all points of the model move, or `None`.

    It has one if all hinges turn about parallel axes, normal to all slides; then they
    stay parallel. (Without hinges, the slides may leave a choice: it is y, if that is
    normal to them.)

    **Arguments:**

    - `model`, `data`: compiled model, and its kinematics at `qpos0`.
    """
    joint = load_mujoco().mjtJoint
    hinges = data.xaxis[model.jnt_type == joint.mjJNT_HINGE]
    slides = data.xaxis[model.jnt_type == joint.mjJNT_SLIDE]
    if hinges.shape[0] + slides.shape[0] < model.njnt or model.njnt == 0:
        return None
    candidates = [hinges[0]] if hinges.shape[0] else [np.array([0.0, 1.0, 0.0])]
    if not hinges.shape[0] and slides.shape[0] > 1:
        candidates.append(np.linalg.svd(slides)[2][-1])
    for normal in candidates:
        # So that a hinge about -y and one about y make the same system.
        normal = normal * np.sign(normal[np.argmax(np.abs(normal))])
        along = np.linalg.norm(np.cross(hinges, normal), axis=1)
        if np.all(along < _SMALL) and np.all(np.abs(slides @ normal) < _SMALL):
            return normal
    return None


# Axes in files are normalised by the compiler, and turned by quaternions.
_SMALL = 1e-9
