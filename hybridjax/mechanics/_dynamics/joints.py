import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .dot import dot


def _product() -> np.ndarray:
    """Of quaternions: `a * b` is the sum of `[:, i, j] a[i] b[j]`."""
    # All its entries are exact in any precision, which is that of what it is used with.
    product = np.zeros((4, 4, 4), np.float32)
    for i in range(4):
        product[i, 0, i] = product[i, i, 0] = 1
        product[0, i, i] = 1 if i == 0 else -1
    for i, j, k in (1, 2, 3), (2, 3, 1), (3, 1, 2):
        product[k, i, j], product[k, j, i] = 1, -1
    return product


# Sums over constants: written out, with cross products, the gradient through a contact
# of a free body took half as long again to compile.
_HALF_PRODUCT = _product()[:, :, 1:].reshape(4, 12) / 2
_CONJUGATE = np.array([1, -1, -1, -1], np.float32)
# The rotation is the sum of `[:, :, i, j] q[i] q[j]`.
_ROTATION = np.einsum("amn,mib,n->abin", _product(), _product(), _CONJUGATE)[1:, 1:]
_ROTATION = _ROTATION.reshape(9, 16)


def rotate(quaternion: Float[Array, " 4"], vector: Float[Array, " 3"]):
    r"""A vector of a body, as the world sees it.

    **Arguments:**

    - `quaternion`: the orientation $(w, x, y, z)$ of the body, of any length but zero.
    - `vector`: in the frame of the body.

    **Returns:**

    The vector in the frame of the world, of shape `(3,)`. It does not depend on the
    length of the quaternion.
    """
    return dot(rotation_matrix(quaternion), vector)


def rotation_matrix(quaternion: Float[Array, " 4"]) -> Float[Array, "3 3"]:
    """What `rotate` multiplies with."""
    squares = jnp.outer(quaternion, quaternion) / jnp.sum(quaternion**2)
    return dot(_ROTATION, squares.reshape(16)).reshape(3, 3)


def ball_joint(q: Float[Array, " 4"], v: Float[Array, " 3"]) -> Float[Array, " 4"]:
    r"""The rate of a unit quaternion: a `velocity_to_qdot`.

    $$\dot q = \tfrac12\, q \otimes (0, \omega)$$

    **Arguments:**

    - `q`: the orientation $(w, x, y, z)$ of a body.
    - `v`: its angular velocity $\omega$ in rad/s, in the frame of the body.

    **Returns:**

    $\dot q$, of shape `(4,)`. It keeps the length of the quaternion.

    Conventions are those of MuJoCo's ball joint.
    """
    return dot(_HALF_PRODUCT, jnp.outer(q, v).reshape(12))


def free_joint(q: Float[Array, " 7"], v: Float[Array, " 6"]) -> Float[Array, " 7"]:
    r"""The rate of the configuration of a free body: a `velocity_to_qdot`.

    **Arguments:**

    - `q`: the position of the body and its orientation, a quaternion $(w, x, y, z)$.
    - `v`: its velocity, in the frame of the world, and its angular velocity in rad/s,
        in its own frame.

    **Returns:**

    $\dot q$, of shape `(7,)`.

    Conventions are those of MuJoCo's free joint.
    """
    return jnp.concatenate([v[:3], ball_joint(q[3:], v[3:])])
