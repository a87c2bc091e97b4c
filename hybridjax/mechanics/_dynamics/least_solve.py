from functools import partial

import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np

from .dot import dot
from .elimination import inverse


def solve(matrix, b, active=None):
    """What `solve_and_inverse` says, without the inverse."""
    return solve_and_inverse(matrix, b, active)[0]


def solve_and_inverse(matrix, b, active=None):
    """The solution of `matrix @ x = b`, for a regular matrix; and the inverse, taken
    for a constant. This has errors that grow with its condition, and one refinement
    takes them out. All rows but those that are `active` must be rows of the identity,
    where `b` is zero."""
    by_factor, _ = lax.stop_gradient(inverse(lax.stop_gradient(matrix), active))
    return _refined(1, True, matrix, by_factor, b, None), by_factor


def least_solve(matrix, b, weights, active=None, agree=True):
    """What `least_solve_and_inverse` says, without the inverse."""
    return least_solve_and_inverse(matrix, b, weights, active, agree)[0]


def least_solve_and_inverse(matrix, b, weights, active=None, agree=True):
    """The solution of `matrix @ x = b`; that of least size, if there is more than one.
    And by what it is found: the inverse of a regular matrix near `matrix`, and the sign
    of its determinant; both are taken for constants.

    Redundant contacts (the four feet of a rigid table), or constraints, make the matrix
    singular. It is made regular by a small part of the `weights` on its diagonal, and
    the difference is made up by refinement: what is determined converges to all digits,
    and what is not stays near zero. Where redundant rows need not `agree`, but may
    contradict each other by errors, the part of `b` in which they do is left out. All
    rows but those that are `active` must be rows of the identity, where `b` is zero.
    """
    small = jnp.sqrt(jnp.finfo(matrix.dtype).eps) * weights
    identity = np.eye(matrix.shape[0], dtype=matrix.dtype)
    regular = lax.stop_gradient(matrix + small[:, None] * identity)
    by_factor, sign = lax.stop_gradient(inverse(regular, active))
    solution = _refined(2, agree, matrix, by_factor, b, small)
    return solution, (by_factor, sign)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _refined(times, agree, matrix, inverse, b, small):
    def solution(b):
        x = dot(inverse, b)
        for _ in range(times):
            x = x + dot(inverse, b - dot(matrix, x))
        return x

    if agree:
        return solution(b)

    # A contradiction is divided by the small part, which friction would turn into
    # motion. But what it adds to the solution leaves nothing in the product: the first
    # time only rounding, which is divided by the small part again. (Not a `fori_loop`,
    # which counts twice: kernels, of which each has its price in compile time.)
    def again(carry, _):
        x, begun = carry
        return (solution(jnp.where(begun, dot(matrix, x), b)), jnp.asarray(True)), None

    return lax.scan(again, (b, jnp.asarray(False)), length=3)[0][0]


@_refined.defjvp
def _refined_jvp(times, agree, primals, tangents):
    # One more solution with the same factor; the inverse is only a means.
    (matrix, inverse, b, small), (d_matrix, _, d_b, d_small) = primals, tangents
    again = lambda b: _refined(times, agree, matrix, inverse, b, small)
    x = again(b)
    dx = again(d_b - dot(d_matrix, x))
    if agree:
        return x, dx
    # What is not determined, z, follows from the small part D of the regular matrix:
    # with y A = 0, from y D x = 0. So y D dx = -y (dD x + dA x'), with A x' = -D x.
    first = again(-small * x)
    undetermined = dot(inverse, -d_small * x - dot(d_matrix, first))
    return x, dx + undetermined - dot(inverse, dot(matrix, undetermined))
