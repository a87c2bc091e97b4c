"""Square roots of covariances: matrices `L` with `L L^T` the covariance. No covariance
is made of them, so that none can cease to be one by rounding.

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
    # Without negative numbers on its diagonal.
    sign = jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(wide.dtype)[None]
    return upper.T * sign, q * sign


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
        "Covariances have first derivatives only: their roots, which may be singular, "
        "are differentiated once. Use a method that needs gradients only."
    )


@jax.custom_jvp
def symmetric_root(a: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric square root of a symmetric matrix without negative eigenvalues,
    those by rounding left out. Differentiable also where eigenvalues coincide."""
    return _root(a)[0]


def _root(a):
    values, vectors = jnp.linalg.eigh(a)
    roots = jnp.sqrt(jnp.maximum(values, 0))
    return (vectors * roots[None]) @ vectors.T, roots, vectors


@symmetric_root.defjvp
def _symmetric_root_jvp(primals, tangents):
    root, roots, vectors = _root(*primals)
    # Where both are zero, `a` cannot move, or its root has no derivative.
    sums = roots[:, None] + roots[None]
    turned = vectors.T @ tangents[0] @ vectors
    turned = jnp.where(sums > 0, turned / jnp.where(sums > 0, sums, 1), 0)
    return root, vectors @ turned @ vectors.T
