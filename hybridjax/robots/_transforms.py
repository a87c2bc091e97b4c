"""Rigid motions as matrices of shape `(4, 4)`."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..mechanics._dynamics.dot import dot
from ._compile import load_mujoco
from ._topology import selection


def compose(a, b):
    """Products of many small matrices: sums, which XLA fuses."""
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


def picked(frames, transforms):
    """The transforms of some frames, or of the same one more than once."""
    pick = selection(frames, transforms.shape[0]).astype(transforms.dtype)
    return dot(pick, transforms.reshape(-1, 16)).reshape(-1, 4, 4)


def transform(position, quaternion) -> np.ndarray:
    """Of a frame, in the one in which its position and orientation are given."""
    rotation = np.zeros(9)
    load_mujoco().mju_quat2Mat(rotation, np.asarray(quaternion, float))
    out = np.eye(4)
    out[:3, :3] = rotation.reshape(3, 3)
    out[:3, 3] = position
    return out


def generator(turning: Any, moving: Any) -> np.ndarray:
    """The rate of a transform, of angular and linear velocity."""
    x, y, z = turning
    out = np.zeros((4, 4))
    out[:3, :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]
    out[:3, 3] = moving
    return out
