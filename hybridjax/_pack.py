from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int, PyTree


# XLA does not fuse into a concatenation, and every scalar of it is then a kernel of its
# own. Selects by position fuse, but their number grows with the square of the size.
_SMALL = 64


class Packer:
    """Packs the leaves of a pytree into one vector of floats and one of integers.

    What a loop carries costs one operation per array and iteration, however small.
    """

    def __init__(self, like: PyTree):
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
            _assemble(p) if p else e for p, e in zip(parts, empty, strict=True)
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


def _assemble(parts):
    size = sum(p.shape[0] for p in parts)
    if size > _SMALL:
        return jnp.concatenate(parts)
    scalars = [p[k] for p in parts for k in range(p.shape[0])]
    out = jnp.broadcast_to(scalars[0], (size,))
    for at, scalar in enumerate(scalars[1:], 1):
        out = jnp.where(np.arange(size) == at, scalar, out)
    return out
