"""What modes, guards and states are called."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np


@dataclasses.dataclass(frozen=True)
class Names:
    """What the modes and guards of a system are called. Strings only: solutions carry
    them, and are pickled without the system.

    **Arguments:**

    - `modes`: for each leaf of the mode, pairs of an integer and its name. Integers
        without a name are called by their number; so are all of the leaves beyond.
    - `guards`: the names of the guards, in their order; guards beyond have none.
    - `notes`: pairs of the name of a mode, and what error messages add to it.
    - `place`: what an entry of a mode that is a vector belongs to.
    """

    modes: tuple[tuple[tuple[int, str], ...], ...] = ()
    guards: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    place: str = "entry"

    def entries(self, mode) -> list[np.ndarray]:
        """For each leaf of modes an array of its shape: names, or the leaf itself where
        it has none."""
        leaves = [np.asarray(leaf) for leaf in jtu.tree_leaves(mode)]
        tables = [*self.modes, *[()] * len(leaves)]
        return [
            _look_up(leaf, dict(table))
            for leaf, table in zip(leaves, tables, strict=False)
        ]

    def mode(self, mode, show: Callable[[Any], str] = str) -> str:
        """One mode, that is known. `show` is for a name that stands alone: `repr` puts
        it in quotes."""
        words = []
        for leaf in self.entries(mode):
            alone = show if leaf.dtype.kind == "U" and leaf.ndim == 0 else _listed
            words.append(alone(leaf.tolist()))
        if len(words) == 1:
            return words[0]
        paths = [path for path, _ in jtu.tree_leaves_with_path(mode)]
        places = [jtu.keystr(path, simple=True, separator=".") for path in paths]
        pairs = [f"{place}={word}" for place, word in zip(places, words, strict=True)]
        return f"[{', '.join(pairs)}]"

    def mode_in_message(self, mode) -> str:
        text = self.mode(mode, show=repr)
        for leaf in self.entries(mode):
            for j, name in np.ndenumerate(leaf):
                if name in dict(self.notes):
                    where = f"{self.place} {', '.join(map(str, j))}: " if j else ""
                    text += f" ({where}{dict(self.notes)[name]})"
        return text

    def guard(self, guard: int) -> str:
        """The empty string where there is no guard."""
        if guard < 0:
            return ""
        return self.guards[guard] if guard < len(self.guards) else f"guard {guard}"

    def guard_in_message(self, guard: int) -> str:
        named = guard < len(self.guards)
        return f"guard {guard} ({self.guards[guard]})" if named else f"guard {guard}"


def transition_between(source: str, target: str) -> str:
    """What the guard of a transition is called."""
    return f"{source} -> {target}"


def _look_up(leaf: np.ndarray, table: dict[int, str]) -> np.ndarray:
    if not table:
        return leaf
    names = [table.get(m, str(m)) for m in leaf.ravel().tolist()]
    return np.array(names, dtype=str).reshape(leaf.shape)


def _listed(words) -> str:
    """As Python shows lists, but names without quotes."""
    is_list = isinstance(words, list)
    return f"[{', '.join(map(_listed, words))}]" if is_list else str(words)


def meant_as_vector(x) -> str:
    """What to add to a message about the structure of states."""
    is_number = [np.ndim(leaf) == 0 for leaf in jtu.tree_leaves(x)]
    if not isinstance(x, list | tuple) or not all(is_number):
        return ""
    return (
        f" The initial state is a {type(x).__name__} of numbers; if it is meant as one "
        "vector, pass `jnp.array(x0)` as `x0`."
    )
