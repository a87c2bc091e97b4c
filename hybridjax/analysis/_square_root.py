"""Square roots of covariances: no covariance is made of them, so that none can cease to
be one by rounding."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def join_roots(*roots: Float[Array, "n _"]) -> Float[Array, "n n"]:
    """Of the sum of covariances, of which square roots are given: the lower triangular
    one without negative numbers on its diagonal."""
    n = roots[0].shape[0]
    stacked = jnp.concatenate([root.T for root in roots])
    if stacked.shape[0] < n:
        fill = jnp.zeros((n - stacked.shape[0], n), stacked.dtype)
        stacked = jnp.concatenate([stacked, fill])
    upper = jnp.linalg.qr(stacked, mode="r")
    return jnp.where(jnp.diagonal(upper)[:, None] < 0, -upper, upper).T


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
