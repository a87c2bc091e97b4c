import jax
import jax.lax as lax
import jax.numpy as jnp

from ._dot import dot


def least_solve(matrix, b, weights, *, positive: bool = False):
    """The solution of `matrix @ x = b`; that of least size, if there is more than one.

    Redundant contacts (the four feet of a rigid table), or constraints, make the matrix
    singular. It is made regular by a small part of the `weights` on its diagonal, and
    the difference is made up by refinement: what is determined converges to all digits,
    and what is not stays near zero.

    A matrix that is symmetric and `positive` semidefinite takes less time to compile.
    """
    small = jnp.sqrt(jnp.finfo(matrix.dtype).eps)
    regular = lax.stop_gradient(matrix + small * jnp.diag(weights))
    if positive:
        factor = jnp.linalg.cholesky(regular)
        identity = jnp.eye(factor.shape[0], dtype=factor.dtype)
        inverse = jax.scipy.linalg.cho_solve((factor, True), identity)
    else:
        inverse = jnp.linalg.inv(regular)

    def refine(inverse):
        def solve(matvec, b):
            x = dot(inverse, b)
            for _ in range(2):
                x = x + dot(inverse, b - matvec(x))
            return x

        return solve

    return lax.custom_linear_solve(
        lambda x: dot(matrix, x),
        b,
        solve=refine(inverse),
        transpose_solve=refine(inverse.T),
    )
