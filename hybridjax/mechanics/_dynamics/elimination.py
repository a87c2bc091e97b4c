"""Small matrices, in loops of our own.

The factorisations of JAX divide their work among XLA's threads and wait for these.
Where all threads do so at once, they wait for ever: with two of them, many a simulation
of a body with eight contacts never ended.
"""

import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def inverse(
    a: Float[Array, "n n"], active: Bool[Array, " n"] | None = None
) -> Float[Array, "n n"]:
    """By Householder's reflections. All rows but those that are `active` must be rows
    of the identity: they cost nothing."""
    n = a.shape[0]
    index = np.arange(n)
    m = jnp.concatenate([a, np.eye(n, dtype=a.dtype)], axis=1)
    # The order of rows, the place of each in it, and how many there are.
    order, place, count = index, index, n
    if active is not None:
        others = jnp.concatenate([~active, jnp.zeros_like(active)])
        known = jnp.where(active[:, None] & ~active[None], a, 0)
        m = jnp.where(active[:, None] & others[None], 0, m)
        m = m - jnp.concatenate([jnp.zeros_like(known), known], axis=1)
        numbers = active.astype(jnp.int32)
        place = jnp.where(active, jnp.cumsum(numbers) - 1, -1)
        order = jnp.sum(
            jnp.where(place[None] == index[:, None], index[None], 0), axis=1
        )
        count = jnp.sum(numbers)

    def reflect(k, m):
        j = _row(jnp.asarray(order), k)
        below = jnp.where(place >= k, _column(m, j), 0)
        size = jnp.sqrt(jnp.sum(below**2))
        head = _row(below, j)
        end = jnp.where(head > 0, -size, size)
        normal = jnp.where(place == k, below - end, below)
        length = jnp.sum(normal**2)
        normal = normal * jnp.sqrt(2 / jnp.where(length > 0, length, 1))
        shares = jnp.sum(normal[:, None] * m, axis=0)
        return m - normal[:, None] * shares[None]

    def substitute(i, m):
        k = count - 1 - i
        j = _row(jnp.asarray(order), k)
        solved = _row(m, j) / _row(_column(m, j), j)
        above = jnp.where(place < k, _column(m, j), 0)
        m = m - above[:, None] * solved[None]
        return jnp.where((place == k)[:, None], solved[None], m)

    m = lax.fori_loop(0, count, reflect, m)
    return lax.fori_loop(0, count, substitute, m)[:, n:]


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
