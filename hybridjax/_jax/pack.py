from typing import Any

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree


class Packer:
    """Packs the leaves of a pytree into one vector of floats and one of integers.

    What a loop carries costs one operation per array and iteration, however small.
    """

    def __init__(self, like: PyTree):
        leaves, self._treedef = jtu.tree_flatten(like)
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
        for leaf, like in zip(leaves, self._shapes, strict=True):
            is_float = _is_float(like)
            dtype = self._float if is_float else self._int
            parts[0 if is_float else 1].append(jnp.ravel(leaf).astype(dtype))
        return tuple(
            jnp.concatenate(p) if p else zero
            for p, zero in zip(parts, self.zeros(), strict=True)
        )  # pyright: ignore

    def unpack(self, packed) -> PyTree:
        """Also of whole tables, whose last axis is packed."""
        parts = []
        for table, is_float in zip(packed, (True, False), strict=True):
            sizes = [v.size for v in self._shapes if _is_float(v) == is_float]
            axis = table.ndim - 1
            parts.append(iter(lax.split(table, sizes, axis) if sizes else []))
        leaves = []
        for like in self._shapes:
            part = next(parts[0 if _is_float(like) else 1])
            part = lax.reshape(part, (*part.shape[:-1], *like.shape))
            leaves.append(part.astype(like.dtype))
        return jtu.tree_unflatten(self._treedef, leaves)


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
