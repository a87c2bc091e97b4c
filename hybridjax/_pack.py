import functools
from typing import Any

import jax
import jax.custom_batching
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree


# Parts of a vector up to this size are put together entry by entry.
_SMALL = 16


class Packer:
    """Packs the leaves of a pytree into one vector of floats and one of integers.

    What a loop carries costs one operation per array and iteration, however small.
    """

    def __init__(self, like: PyTree, differentiable: bool = False):
        # Below, `_assemble` is the faster one.
        concatenate = lambda *parts: jnp.concatenate(parts)
        self._assemble = concatenate if differentiable else _assemble
        leaves, self._treedef = jtu.tree_flatten(like)
        # Small ones first: they are assembled in another way than large ones.
        sizes = [v.size for v in leaves]
        self._order = sorted(range(len(leaves)), key=lambda i: sizes[i] > _SMALL)
        self._shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in leaves]
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

    def zeros(self) -> tuple[Float[Array, " floats"], Int[Array, " ints"]]:
        return tuple(jnp.zeros(*size) for size in self.sizes())  # pyright: ignore

    def pack(self, tree: PyTree) -> tuple[Float[Array, " floats"], Int[Array, " ints"]]:
        leaves = self._treedef.flatten_up_to(tree)
        parts: Any = ([], [])
        for i in self._order:
            leaf, like = leaves[i], self._shapes[i]
            is_float = _is_float(like)
            dtype = self._float if is_float else self._int
            parts[0 if is_float else 1].append(jnp.ravel(leaf).astype(dtype))
        return tuple(
            self._assemble(*p) if p else zero
            for p, zero in zip(parts, self.zeros(), strict=True)
        )  # pyright: ignore

    def unpack(self, packed) -> PyTree:
        """Also of whole tables, whose last axis is packed."""
        at = [0, 0]
        leaves: list[Any] = [None] * len(self._shapes)
        for i in self._order:
            like = self._shapes[i]
            kind = 0 if _is_float(like) else 1
            size = like.size
            table = packed[kind]
            part = table[..., at[kind] : at[kind] + size]
            at[kind] += size
            part = part.reshape(table.shape[:-1] + like.shape)
            leaves[i] = part.astype(like.dtype)
        return jtu.tree_unflatten(self._treedef, leaves)


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@jax.custom_batching.custom_vmap
def _assemble(*parts):
    """Concatenates. XLA does not fuse into a concatenation: each part of it would be a
    kernel of its own. Here, each entry of the result looks at every small part
    instead."""
    small = [p for p in parts if p.shape[0] <= _SMALL]
    large = [p for p in parts if p.shape[0] > _SMALL]
    size, at = sum(p.shape[0] for p in small), 0
    padded = []
    for p in small:
        zero = jnp.zeros((), p.dtype)
        padded.append(lax.pad(p, zero, [(at, size - at - p.shape[0], 0)]))
        at += p.shape[0]
    together = [functools.reduce(lax.add, padded)] if padded else []
    return jnp.concatenate([*together, *large])


@_assemble.def_vmap
def _assemble_batch(axis_size, in_batched, *parts):
    # For many lanes that is more work than the kernels are.
    lanes = [
        p if batched else jnp.broadcast_to(p, (axis_size, *p.shape))
        for p, batched in zip(parts, in_batched, strict=True)
    ]
    return jnp.concatenate(lanes, axis=-1), True
