"""What modes and guards are called in messages."""

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
