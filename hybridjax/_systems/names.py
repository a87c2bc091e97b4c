"""What modes, guards and states are called in messages."""

import jax.tree_util as jtu
import numpy as np

from .system import AbstractHybridSystem, AbstractSelfStartingSystem


def mode_name(system: AbstractHybridSystem, mode) -> str:
    if isinstance(system, AbstractSelfStartingSystem):
        return system.mode_name(mode)
    leaves = [np.asarray(leaf).tolist() for leaf in jtu.tree_leaves(mode)]
    return str(leaves[0] if len(leaves) == 1 else leaves)


def guard_name(system: AbstractHybridSystem, guard: int) -> str:
    if isinstance(system, AbstractSelfStartingSystem):
        return system.guard_name(guard)
    return f"guard {guard}"


def meant_as_vector(x) -> str:
    """What to add to a message about the structure of states."""
    is_number = [np.ndim(leaf) == 0 for leaf in jtu.tree_leaves(x)]
    if not isinstance(x, list | tuple) or not all(is_number):
        return ""
    return (
        f" The initial state is a {type(x).__name__} of numbers; if it is meant as one "
        "vector, pass `jnp.array(x0)` as `x0`."
    )
