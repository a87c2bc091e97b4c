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
    that row's of the inverse. Two more columns say which variable that is, and what the
    pivot was: one array, so that a pass is few kernels.
    """
    n = a.shape[0]
    index, column = _numbers(n), _numbers(n + 2)
    active = np.ones(n, bool) if active is None else active
    a = jnp.where(active[:, None] & active[None], a, np.eye(n, dtype=a.dtype))
    # `n` is none of them. (Not a concatenation, which is a kernel of its own.)
    variable = jnp.where(active, n, index).astype(a.dtype)
    wide = jnp.pad(a, ((0, 0), (0, 2)), constant_values=1)
    begin = jnp.where((column == n)[None], variable[:, None], wide)

    def eliminate(j, m):
        own = _column(m, j)
        best = lax.argmax(jnp.where(m[:, n] == n, jnp.abs(own), -1), 0, index.dtype)
        pivot, row = _row(own, best), _row(m, best)
        solved = jnp.where(column == j, 1, row) / pivot
        said = jnp.where(column == n, j.astype(a.dtype), pivot)
        solves = column < n
        others = jnp.where((column == j)[None], 0, m) - own[:, None] * solved[None]
        others = jnp.where(solves[None], others, m)
        row = jnp.where(solves, solved, said)
        return jnp.where((index == best)[:, None], row[None], others)

    m = for_each(active, eliminate, begin)
    variable = m[:, n].astype(index.dtype)
    row = jnp.where(variable[None] == index[:, None], index[None], 0)
    row = jnp.sum(row, axis=1, dtype=index.dtype)
    exchanged = (variable[:, None] > variable[None]) & (index[:, None] < index[None])
    odd = jnp.sum(exchanged.astype(jnp.int32)) & 1
    sign = jnp.prod(jnp.sign(m[:, n + 1]))
    return m[row][:, variable], jnp.where(odd, -sign, sign)


def for_each(active: Bool[Array, " n"], step, init):
    """`x = step(j, x)`, from `init` on, for all `j` that are active, in their order."""
    index = _numbers(active.shape[0])
    least = lambda some: jnp.min(jnp.where(some, index, index.size), initial=index.size)

    def one(carry):
        j, x = carry
        return least(active & (index > j)), step(j, x)

    init = least(active), init
    return lax.while_loop(lambda carry: carry[0] < index.size, one, init)[1]


def in_order(active: Bool[Array, " n"]):
    """The numbers of those that are active, and then zeros; the place of each among
    them, or -1; and how many there are."""
    index, numbers = _numbers(active.shape[0]), active.astype(jnp.int32)
    # XLA makes three kernels of a cumulative sum.
    before = jnp.where(index[None] < index[:, None], numbers[None], 0)
    place = jnp.where(active, jnp.sum(before, axis=1, dtype=jnp.int32), -1)
    order = jnp.where(place[None] == index.astype(np.int32)[:, None], index[None], 0)
    order = jnp.sum(order, axis=1, dtype=index.dtype)
    return order, place, jnp.sum(numbers, dtype=jnp.int32)


def pivots(
    a: Float[Array, "n n"], active: Bool[Array, " n"] | None = None
) -> Float[Array, " n"]:
    """Of a symmetric matrix: what is on the diagonal of its Cholesky factor, squared;
    or NaN. All rows but those that are `active` must be rows of the identity."""
    active = np.ones(a.shape[0], bool) if active is None else active
    index = _numbers(a.shape[0])

    def eliminate(j, m):
        row, own = _row(m, j), _column(m, j)
        below = jnp.where(active & (index > j), own, 0)
        return m - below[:, None] * (row / _row(own, j))[None]

    found = diagonal(for_each(active, eliminate, a))
    return jnp.where(found > 0, found, jnp.nan)


def _numbers(n: int):
    """From zero. Without a sign: what may be negative JAX counts from the end, with
    three operations for each place where it is an index."""
    return np.arange(n, dtype=np.uint32)


def _column(m, k):
    return lax.dynamic_index_in_dim(m, k, 1, keepdims=False)


def _row(m, k):
    return lax.dynamic_index_in_dim(m, k, 0, keepdims=False)
