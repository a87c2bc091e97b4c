"""Pytrees that hold the same array in several places."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, PyTree


class Shared(eqx.Module):
    """A pytree whose arrays are there once: by `jax.jit`, each place would get an array
    of its own, and nothing would know that they are the same. Methods that are bound to
    the same module have all of its arrays, each of them."""

    arrays: list[Array]
    rest: PyTree
    places: tuple[int, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @classmethod
    def of(cls, tree: PyTree, is_array: Callable = eqx.is_array) -> "Shared":
        arrays, rest = eqx.partition(tree, is_array)
        leaves, structure = jtu.tree_flatten(arrays)
        once = {id(leaf): leaf for leaf in leaves}
        place = {key: i for i, key in enumerate(once)}
        places = tuple(place[id(leaf)] for leaf in leaves)
        return cls(list(once.values()), rest, places, structure)

    def tree(self) -> PyTree:
        leaves = [self.arrays[i] for i in self.places]
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.rest)
