"""Bringing what the user gave into the form that the engine carries."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._jax.tracing import as_array
from .automaton import HybridAutomaton, ModalState, state_range, target_name
from .inner import start_of
from .rest import at_tolerance
from .system import AbstractHybridSystem


class Start(eqx.Module):
    """A point of the state space: arrays of one floating-point dtype, and a mode."""

    system: AbstractHybridSystem
    t: Float[Array, ""]
    x: PyTree
    mode: PyTree

    def restrict(self, matrix, first, last, mode_after):
        """Cuts the blocks of the target and source modes out of the matrix of events
        on modal states; other states have no blocks."""
        if not isinstance(self.x, ModalState) or not isinstance(
            self.system, HybridAutomaton
        ):
            return matrix
        system: Any = self.system
        rows = state_range(self.x, target_name(system, int(last), mode_after))
        columns = state_range(self.x, system.transitions[int(first)].source)
        return matrix[rows, columns]


def start(
    system,
    t,
    x,
    mode,
    args,
    *,
    t_name="t",
    x_name="x",
    mode_name="mode",
    atol=lambda dtype: None,
):
    """Checks and converts; `mode` may be `None` where the system can tell it. Which it
    is may depend on the absolute tolerance, `atol`, for the state's dtype.

    **Raises:**

    - `ValueError` naming the argument, if it cannot be used.
    """
    if not isinstance(system, AbstractHybridSystem):
        raise ValueError(
            "Argument `system` must be a `hj.AbstractHybridSystem`, but it is a "
            f"{type(system).__name__}. Subclass that, or use `hj.HybridAutomaton` or "
            "`hj.EventSelectedSystem`."
        )
    x = jtu.tree_map(lambda leaf: _state_leaf(leaf, x_name), x)
    if not jtu.tree_leaves(x):
        raise ValueError(f"Argument `{x_name}` must have at least one array.")
    dtype = jnp.result_type(*jtu.tree_leaves(x))
    t = as_time(t, dtype, t_name)
    exact = at_tolerance(system, atol(dtype))
    x, mode = start_of(exact, t, x, mode, args, mode_name)
    mode = jtu.tree_map(lambda leaf: _mode_leaf(leaf, mode_name), mode)
    return Start(system, t, x, mode)


def as_time(t: Any, dtype, name: str) -> Array:
    if not eqx.is_array_like(t):
        raise ValueError(
            f"Argument `{name}` must be a real scalar, but it is a {type(t).__name__}."
        )
    t = as_array(t)
    if t.shape != () or jnp.issubdtype(t.dtype, jnp.complexfloating):
        raise ValueError(
            f"Argument `{name}` must be a real scalar, but it has shape {t.shape} and "
            f"dtype {t.dtype}."
        )
    return t if t.dtype == dtype else t.astype(dtype)


def _state_leaf(leaf, name):
    if isinstance(leaf, (float, complex)):
        leaf = jnp.asarray(leaf)
    dtype = jnp.result_type(leaf) if eqx.is_array_like(leaf) else type(leaf)
    if not eqx.is_array_like(leaf) or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"Argument `{name}` must be a pytree of floating-point arrays, but it has "
            f"a leaf of type {getattr(dtype, '__name__', dtype)}. Convert it, for "
            "example with `jnp.asarray(..., float)`; discrete variables belong into "
            "the mode."
        )
    return jnp.asarray(leaf)


def _mode_leaf(leaf, name):
    if isinstance(leaf, str):
        raise ValueError(
            f"Argument `{name}` is the name {leaf!r}, but only the modes of a "
            "`hj.HybridAutomaton` have names. Pass an integer."
        )
    array = as_array(leaf)
    if jnp.issubdtype(array.dtype, jnp.bool_):
        return array
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"Argument `{name}` must be a pytree of integer or boolean arrays, but it "
            f"has a leaf of dtype {array.dtype}. Continuous variables belong into the "
            "state."
        )
    return array if hasattr(leaf, "dtype") else as_array(np.asarray(leaf, np.int32))
