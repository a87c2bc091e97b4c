"""Reductions of short vectors, entry by entry; in batches, by XLA.

Each reduction that XLA is left with adds a quarter of a microsecond to every call of a
program on a CPU, and an `argmin` a whole one, wherever it is and whether or not it is
reached: buffers are listed anew for each call, and a reduction has some of its own.
"""

import functools
from collections.abc import Callable

import jax.custom_batching
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree


# Longer ones are left to XLA.
_SHORT = 8


def nonzero(tree: PyTree) -> Bool[Array, ""]:
    """Is there anything but zeros? Entry by entry in batches too: not for loops."""
    leaves = [leaf != 0 for leaf in jtu.tree_leaves(tree)]
    entries = [entry for leaf in leaves for entry in _entries(leaf, jnp.any)]
    return functools.reduce(lax.bitwise_or, entries, jnp.asarray(False))


def largest(tree: PyTree) -> Float[Array, ""]:
    """The largest number. Entry by entry in batches too: not for loops."""
    leaves = [jnp.abs(leaf) for leaf in jtu.tree_leaves(tree)]
    zero = jnp.zeros((), jnp.result_type(*leaves) if leaves else float)
    entries = [entry for leaf in leaves for entry in _entries(leaf, jnp.max)]
    return functools.reduce(jnp.maximum, [e.astype(zero.dtype) for e in entries], zero)


def _entries(leaf, by_xla: Callable) -> list:
    """Its entries, if it is short, or what XLA makes of them."""
    flat = jnp.ravel(leaf)
    return (
        [flat[i] for i in range(flat.size)] if flat.size <= _SHORT else [by_xla(flat)]
    )


def _reduction(by_entry: Callable, by_xla: Callable) -> Callable[[Array], Array]:
    """What `by_entry` makes of the entries of a vector, or `by_xla` of a long one."""

    @jax.custom_batching.custom_vmap
    def run(x):
        return by_entry([lax.index_in_dim(x, i, keepdims=False) for i in range(len(x))])

    @run.def_vmap
    def batch(axis_size, in_batched, x):
        # Where it is differentiated, a batch may be one of tangents only.
        (batched,) = in_batched
        return by_xla(x, axis=1 if batched else 0), batched

    # JAX keeps what was traced: a loop has dozens of these, of few lengths.
    traced = jax.jit(run, inline=True)
    return lambda x: traced(x) if 0 < x.shape[0] <= _SHORT else by_xla(x, axis=0)


def _first_least(entries):
    best, *others = entries
    index = jnp.asarray(0, jnp.int32)
    for i, entry in enumerate(others, start=1):
        less = entry < best
        best = jnp.where(less, entry, best)
        index = jnp.where(less, i, index)
    return index


_join = lambda op: functools.partial(functools.reduce, op)

any_of = _reduction(_join(lax.bitwise_or), jnp.any)
all_of = _reduction(_join(lax.bitwise_and), jnp.all)
least = _reduction(_join(lax.min), jnp.min)
# Of numbers that are not negative; zero of none.
greatest = _reduction(_join(lax.max), functools.partial(jnp.max, initial=0))
# `jnp.argmin`, for a vector without NaN.
first_least = _reduction(
    _first_least, lambda x, axis: jnp.argmin(x, axis).astype("int32")
)
