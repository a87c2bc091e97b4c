"""Small matrices, in loops of our own.

The factorisations of JAX divide their work among XLA's threads and wait for these.
Where all threads do so at once, they wait for ever: with two of them, many a simulation
of a body with eight contacts never ended.
"""

import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def inverse(a: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """By Householder's reflections."""
    n = a.shape[0]
    index = np.arange(n)

    def reflect(k, m):
        below = jnp.where(index >= k, _column(m, k), 0)
        size = jnp.sqrt(jnp.sum(below**2))
        head = _row(below, k)
        end = jnp.where(head > 0, -size, size)
        normal = jnp.where(index == k, below - end, below)
        length = jnp.sum(normal**2)
        normal = normal * jnp.sqrt(2 / jnp.where(length > 0, length, 1))
        shares = jnp.sum(normal[:, None] * m, axis=0)
        return m - normal[:, None] * shares[None]

    def substitute(i, m):
        k = n - 1 - i
        solved = _row(m, k) / _row(_column(m, k), k)
        above = jnp.where(index < k, _column(m, k), 0)
        m = m - above[:, None] * solved[None]
        return jnp.where((index == k)[:, None], solved[None], m)

    m = jnp.concatenate([a, np.eye(n, dtype=a.dtype)], axis=1)
    m = lax.fori_loop(0, n, reflect, m)
    return lax.fori_loop(0, n, substitute, m)[:, n:]


def pivots(a: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Of a symmetric matrix: what is on the diagonal of its Cholesky factor, squared;
    or NaN."""

    def eliminate(k, m):
        pivot = _row(_column(m, k), k)
        below = jnp.where(np.arange(a.shape[0]) > k, _column(m, k), 0)
        return m - below[:, None] * (_row(m, k) / pivot)[None]

    found = jnp.diagonal(lax.fori_loop(0, a.shape[0], eliminate, a))
    return jnp.where(found > 0, found, jnp.nan)


def _column(m, k):
    return lax.dynamic_index_in_dim(m, k, 1, keepdims=False)


def _row(m, k):
    return lax.dynamic_index_in_dim(m, k, 0, keepdims=False)
