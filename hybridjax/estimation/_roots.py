"""Square roots of covariances: matrices `L` with `L L^T` the covariance.

They may be wide, tall or square, and of any rank; a plastic impact makes covariances
singular. Nothing here inverts one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def compress(wide: Float[Array, "n k"]) -> Float[Array, "n n"]:
    """The lower triangular root of `wide @ wide.T`, by one QR.

    Its derivative is that of another root of the same covariance: `d wide @ Q`, with
    `wide = L Q^T`. As `wide Q Q^T = wide`, the derivative of `L L^T` is exact, whatever
    the rank; the one of the triangle itself does not exist where that is deficient. So
    differentiable functions must depend on `L` by `L L^T` only.
    """
    return _lower(wide)[0]


@compress.defjvp
def _compress_jvp(primals, tangents):
    (wide,), (t_wide,) = primals, tangents
    lower, q = _lower(_only_once(wide))
    return lower, _padded(t_wide) @ q


def triangle(wide: Float[Array, "n k"]) -> Float[Array, "n n"]:
    """As `compress`, for rows that are linearly independent: the derivative is that of
    the triangle, so that it may be solved with."""
    return _lower(wide)[0]


def _lower(wide):
    q, upper = jnp.linalg.qr(_padded(wide).T)
    return upper.T, q


def _padded(wide):
    """At least as many columns as rows."""
    n, k = wide.shape
    return wide if k >= n else jnp.pad(wide, ((0, 0), (0, n - k)))


@jax.custom_jvp
def _only_once(wide):
    return wide


@_only_once.defjvp
def _only_once_jvp(primals, tangents):
    raise NotImplementedError(
        "Filters have first derivatives only: the roots of covariances, which may be "
        "singular, are differentiated once. Use a method that needs gradients only."
    )
