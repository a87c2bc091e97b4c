import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np

from .dot import dot
from .elimination import inverse


def least_solve(matrix, b, weights, active=None):
    """The solution of `matrix @ x = b`; that of least size, if there is more than one.

    Redundant contacts (the four feet of a rigid table), or constraints, make the matrix
    singular. It is made regular by a small part of the `weights` on its diagonal, and
    the difference is made up by refinement: what is determined converges to all digits,
    and what is not stays near zero. All rows but those that are `active` must be rows
    of the identity, where `b` is zero.
    """
    small = jnp.sqrt(jnp.finfo(matrix.dtype).eps)
    identity = np.eye(matrix.shape[0], dtype=matrix.dtype)
    regular = lax.stop_gradient(matrix + small * weights[:, None] * identity)
    return _refined(matrix, lax.stop_gradient(inverse(regular, active)), b)


@jax.custom_jvp
def _refined(matrix, inverse, b):
    x = dot(inverse, b)
    for _ in range(2):
        x = x + dot(inverse, b - dot(matrix, x))
    return x


@_refined.defjvp
def _refined_jvp(primals, tangents):
    # One more solution with the same factor; the inverse is only a means.
    (matrix, inverse, _), (d_matrix, _, d_b) = primals, tangents
    x = _refined(*primals)
    return x, _refined(matrix, inverse, d_b - dot(d_matrix, x))
