import numpy as np
from jaxtyping import Array, Float

from .dot import dot


def cross(
    a: Float[Array | np.ndarray, "*#n 3"], b: Float[Array, "*#n 3"]
) -> Float[Array, "*n 3"]:
    """Products of many vectors: one sum, and no parts."""
    outer = a[..., :, None] * b[..., None, :]
    return dot(outer.reshape(-1, 9), _CROSS).reshape(outer.shape[:-1])


# The cross product is the sum of `[3 i + j] a[i] b[j]`.
_CROSS = np.cross(np.eye(3)[:, None], np.eye(3)[None]).reshape(9, 3).astype(np.float32)
