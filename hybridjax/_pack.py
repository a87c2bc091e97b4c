import functools
from typing import Any

import jax
import jax.custom_batching
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree


class Packer:
    """Packs the leaves of a pytree into one vector of floats and one of integers.

    What a loop carries costs one operation per array and iteration, however small.
    """

    def __init__(self, like: PyTree, differentiable: bool = False):
        # Below, `_assemble` is the faster one.
        concatenate = lambda *parts: jnp.concatenate(parts)
        self._assemble = concatenate if differentiable else _assemble
        leaves, self._treedef = jtu.tree_flatten(like)
        self._shapes = [jax.ShapeDtypeStruct(jnp.shape(v), v.dtype) for v in leaves]
        floats = [v.dtype for v in self._shapes if _is_float(v)]
        self._float = jnp.result_type(*floats) if floats else jnp.result_type(float)
        ints = [v.dtype for v in self._shapes if not _is_float(v)]
        self._int = jnp.result_type(jnp.int32, *ints)

    def sizes(self):
        """Lengths and dtypes of the two vectors."""
        size = lambda is_float: sum(
            v.size for v in self._shapes if _is_float(v) == is_float
        )
        return (size(True), self._float), (size(False), self._int)

    def pack(self, tree: PyTree) -> tuple[Float[Array, " floats"], Int[Array, " ints"]]:
        leaves = self._treedef.flatten_up_to(tree)
        parts: Any = ([], [])
        for leaf, like in zip(leaves, self._shapes, strict=True):
            is_float = _is_float(like)
            dtype = self._float if is_float else self._int
            parts[0 if is_float else 1].append(jnp.ravel(leaf).astype(dtype))
        empty = jnp.zeros((0,), self._float), jnp.zeros((0,), self._int)
        return tuple(
            self._assemble(*p) if p else e for p, e in zip(parts, empty, strict=True)
        )  # pyright: ignore

    def unpack(self, packed) -> PyTree:
        """Also of whole tables, whose last axis is packed."""
        at = [0, 0]
        leaves = []
        for like in self._shapes:
            kind = 0 if _is_float(like) else 1
            size = like.size
            table = packed[kind]
            part = table[..., at[kind] : at[kind] + size]
            at[kind] += size
            leaves.append(
                part.reshape(table.shape[:-1] + like.shape).astype(like.dtype)
            )
        return jtu.tree_unflatten(self._treedef, leaves)


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@jax.custom_batching.custom_vmap
def _assemble(*parts):
    """Concatenates. XLA does not fuse into a concatenation: each part of it would be a
    kernel of its own. Here, each entry of the result looks at every part instead."""
    size, at = sum(p.shape[0] for p in parts), 0
    padded = []
    for p in parts:
        zero = jnp.zeros((), p.dtype)
        padded.append(lax.pad(p, zero, [(at, size - at - p.shape[0], 0)]))
        at += p.shape[0]
    return functools.reduce(lax.add, padded)


@_assemble.def_vmap
def _assemble_batch(axis_size, in_batched, *parts):
    # For many lanes that is more work than the kernels are.
    lanes = [
        p if batched else jnp.broadcast_to(p, (axis_size, *p.shape))
        for p, batched in zip(parts, in_batched, strict=True)
    ]
    return jnp.concatenate(lanes, axis=-1), True
