"""Tangential vectors of all contacts.

Contacts of planar systems have one tangential direction, and those in space two. The
vectors are flat, as the rows of a `Point` are: first the components of all contacts
along their first direction, then those along the second.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def in_space(rows: int, n: int) -> bool:
    """Do `n` contacts with so many rows have two tangential directions?"""
    return rows > 2 * n


def rows_of(tangents: Float[Array, "..."]) -> Float[Array, "rows d"]:
    """The rows of `tangents`, of shape `(n, d)` or `(n, 2, d)`."""
    if tangents.ndim == 2:
        return tangents
    return jnp.swapaxes(tangents, 0, 1).reshape(-1, tangents.shape[-1])


def along(direction, a, n: int) -> Float[Array, " n"]:
    """The components of vectors along directions."""
    products = direction * a
    parts = [products[i : i + n] for i in range(0, a.shape[0], n)]
    return functools.reduce(jnp.add, parts)


def norm(a, n: int) -> Float[Array, " n"]:
    """The lengths of vectors. The derivative of that of zero is zero."""
    if a.shape[0] == n:
        return jnp.abs(a)
    squares = along(a, a, n)
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1)), 0)


def unit(a, n: int):
    """The directions of vectors; of zero it is the first one."""
    if a.shape[0] == n:
        return jnp.where(a < 0, -1, 1).astype(a.dtype)
    lengths = norm(a, n)
    some = lengths > 0
    first = (np.arange(2 * n) < n).astype(a.dtype)
    of_all = lambda each: of_contacts(each, 2 * n)
    return jnp.where(of_all(some), a / of_all(jnp.where(some, lengths, 1)), first)


def across(direction, n: int):
    """Directions in space, a quarter turn further."""
    return jnp.concatenate([-direction[n:], direction[:n]])


def of_contacts(each, rows: int):
    """What belongs to each contact, for each of its rows."""
    # Not `tile`: a concatenation is a kernel of its own.
    n, *others = each.shape
    return jnp.broadcast_to(each, (rows // n, n, *others)).reshape(rows, *others)
