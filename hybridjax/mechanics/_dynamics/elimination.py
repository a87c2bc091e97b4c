"""Small matrices, in loops of our own.

The factorisations of JAX divide their work among XLA's threads and wait for these.
Where all threads do so at once, they wait for ever: with two of them, many a simulation
of a body with eight contacts never ended.
"""

import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._jax.branch import cond_any
from ..._jax.diagonal import diagonal


# Beyond twice as many rows the matrix of active ones is made: so much smaller that it
# is worth another branch in the program. A robot that stands has 30.
_FEW = 48


def inverse(
    a: Float[Array, "n n"], active: Bool[Array, " n"] | None = None
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """The inverse of a matrix, and the sign of its determinant; or of the rows and
    columns that are `active`, beside the identity in all others."""
    if active is None or active.shape[0] <= 2 * _FEW:
        return _eliminated(a, active)
    # Of a robot with many contacts few are closed.
    return cond_any(
        jnp.sum(active.astype(jnp.int32)) > _FEW,
        lambda: _eliminated(a, active),
        lambda: _of_few(a, active),
    )


def _of_few(a, active):
    """The inverse if no more than `_FEW` are active: of a matrix of that size."""
    order, place, count = in_order(active)
    order = order[:_FEW]
    of_block, sign = _eliminated(a[order][:, order], np.arange(_FEW) < count)
    # In rows and columns of the others, nothing.
    place = jnp.where(active, place, _FEW)
    for axis in (0, 1):
        of_block = jnp.take(of_block, place, axis, mode="fill", fill_value=0)
    return of_block + jnp.diag((~active).astype(a.dtype)), sign


def _eliminated(a, active):
    """By Gauss and Jordan, with the largest pivots of the active rows that are left:
    others cost little.

    In place, and rows stay where they are, as to exchange them costs more. The row of
    the pivot becomes the one of the variable that is solved for, whose column becomes
    that row's of the inverse.
    """
    n = a.shape[0]
    index = np.arange(n)
    order, count, variable = index, n, jnp.full(n, -1)
    if active is not None:
        a = jnp.where(active[:, None] & active[None], a, np.eye(n, dtype=a.dtype))
        order, _, count = in_order(active)
        variable = jnp.where(active, -1, index)

    def eliminate(k, carry):
        m, variable, sign = carry
        j = _at(jnp.asarray(order), k)
        column = _at(m, j, axis=1)
        best = jnp.where(variable < 0, jnp.abs(column), -1)
        best = lax.argmax(best, 0, np.uint32)
        pivot = _at(column, best)
        solved = jnp.where(index == j, 1, _at(m, best)) / pivot
        others = jnp.where((index == j)[None], 0, m) - column[:, None] * solved[None]
        is_best = index == best
        m = jnp.where(is_best[:, None], solved[None], others)
        return m, jnp.where(is_best, j, variable), sign * jnp.sign(pivot)

    init = a, variable, jnp.ones((), a.dtype)
    m, variable, sign = lax.fori_loop(0, count, eliminate, init)
    row = jnp.argmax(variable[None] == index[:, None], axis=1)
    exchanged = (variable[:, None] > variable[None]) & (index[:, None] < index[None])
    odd = jnp.sum(exchanged.astype(jnp.int32)) & 1
    return m[row][:, variable], jnp.where(odd, -sign, sign)


def in_order(active: Bool[Array, " n"]):
    """The numbers of those that are active, and then zeros; the place of each among
    them, or -1; and how many there are."""
    index, numbers = np.arange(active.shape[0]), active.astype(jnp.int32)
    # XLA makes three kernels of a cumulative sum.
    before = jnp.where(index[None] < index[:, None], numbers[None], 0)
    place = jnp.where(active, jnp.sum(before, axis=1, dtype=jnp.int32), -1)
    order = jnp.sum(jnp.where(place[None] == index[:, None], index[None], 0), axis=1)
    return order, place, jnp.sum(numbers)


def pivots(
    a: Float[Array, "n n"], active: Bool[Array, " n"] | None = None
) -> Float[Array, " n"]:
    """Of a symmetric matrix: what is on the diagonal of its Cholesky factor, squared;
    or NaN. All rows but those that are `active` must be rows of the identity."""
    order, place, count = np.arange(a.shape[0]), np.arange(a.shape[0]), a.shape[0]
    if active is not None:
        order, place, count = in_order(active)

    def eliminate(k, m):
        j = _at(jnp.asarray(order), k)
        column = _at(m, j, axis=1)
        below = jnp.where(place > k, column, 0)
        return m - below[:, None] * (_at(m, j) / _at(column, j))[None]

    found = diagonal(lax.fori_loop(0, count, eliminate, a))
    return jnp.where(found > 0, found, jnp.nan)


def _at(m, k, axis=0):
    # What may be negative JAX counts from the end, with three more operations.
    return lax.dynamic_index_in_dim(m, jnp.asarray(k, np.uint32), axis, keepdims=False)
