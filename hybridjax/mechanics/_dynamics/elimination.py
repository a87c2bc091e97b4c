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
    """By Gauss and Jordan, with the largest pivots of the rows that are left. All rows
    but those that are `active` must be rows of the identity: they cost nothing."""
    index = np.arange(a.shape[0])
    m = jnp.concatenate([a, np.eye(*a.shape, dtype=a.dtype)], axis=1)
    # The place of each row in the order of elimination, and how many there are.
    place, count = jnp.asarray(index), a.shape[0]
    if active is not None:
        others = jnp.concatenate([~active, jnp.zeros_like(active)])
        known = jnp.where(active[:, None] & ~active[None], a, 0)
        m = jnp.where(active[:, None] & others[None], 0, m)
        m = m - jnp.concatenate([jnp.zeros_like(known), known], axis=1)
        numbers = active.astype(jnp.int32)
        place = jnp.where(active, jnp.cumsum(numbers) - 1, -1)
        count = jnp.sum(numbers)

    def eliminate(k, m):
        j = jnp.sum(jnp.where(place == k, index, 0))
        column = _column(m, j)
        best = jnp.argmax(jnp.where(place >= k, jnp.abs(column), -1))
        solved = _row(m, best) / _row(column, best)
        m = m - column[:, None] * solved[None]
        # They change places: nothing is left of the best row where it was.
        m = jnp.where((index == best)[:, None], _row(m, j)[None], m)
        return jnp.where((index == j)[:, None], solved[None], m)

    return lax.fori_loop(0, count, eliminate, m)[:, a.shape[0] :]


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
