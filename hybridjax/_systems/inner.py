"""The system within a system: what it knows, if it knows anything."""

from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .automaton import HybridAutomaton
from .system import AbstractHybridSystem, AbstractSelfStartingSystem, next_time


def start_of(
    system: AbstractHybridSystem, t, x, mode, args, mode_name: str = "mode0"
) -> tuple[PyTree, PyTree]:
    """The initial state and mode of a system, in the form that the engine carries.

    **Raises:**

    - `ValueError` if there is no mode, and the system cannot tell it.
    """
    if isinstance(system, AbstractSelfStartingSystem):
        return system.start(t, x, mode, args)
    if mode is None:
        raise ValueError(
            f"Argument `{mode_name}` must be given: this system cannot tell its mode "
            "from its state."
        )
    return x, mode


def time_within(system: Any, t, x, mode, args) -> Float[Array, ""]:
    """The next time at which a guard is known to fire; infinite where none is."""
    time = next_time(system, t, x, mode, args)
    return jnp.asarray(jnp.inf, t.dtype) if time is None else time


def mode_index(system: AbstractHybridSystem, mode: Any) -> Any:
    """The mode, where that may be the name of one of an automaton's."""
    if isinstance(system, HybridAutomaton) and isinstance(mode, str):
        return system.index(mode)
    return mode


def as_like(got: PyTree, like: PyTree, message: str) -> PyTree:
    """`got`, with the dtypes of `like`.

    **Raises:**

    - `ValueError` with the `message` if structures, shapes, or kinds of numbers differ.
    """
    got = jtu.tree_map(jnp.asarray, got)
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jtu.tree_leaves(tree)]
    same = jtu.tree_structure(got) == jtu.tree_structure(like)
    same = same and shapes(got) == shapes(like)
    kinds = lambda tree: [
        jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jtu.tree_leaves(tree)
    ]
    if not same or kinds(got) != kinds(like):
        describe = lambda tree: jtu.tree_map(
            lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree
        )
        raise ValueError(f"{message}, {describe(like)}, but it is {describe(got)}.")
    return jtu.tree_map(lambda a, b: a.astype(b.dtype), got, like)
