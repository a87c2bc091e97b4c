import contextlib

import equinox as eqx
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree


def is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jtu.tree_leaves(tree))


def as_array(value) -> Array:
    """As `jnp.asarray`, of numbers without weak types. That compiles a program for each
    type of number and each shape, some 30 ms in a new process; NumPy converts them."""
    if any(isinstance(leaf, jax.Array) for leaf in jtu.tree_leaves(value)):
        return jnp.asarray(value)
    return jax.device_put(np.asarray(value))


def stop_gradient(tree):
    return jtu.tree_map(
        lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree
    )


def nans_allowed():
    """Where `jax_debug_nans` and `jax_debug_infs` look away: a program in which NaN and
    infinity mean something. What a user makes of them is looked at again."""
    stack = contextlib.ExitStack()
    if jax.config.jax_debug_nans:  # pyright: ignore
        stack.enter_context(jax.debug_nans(False))
    if jax.config.jax_debug_infs:  # pyright: ignore
        stack.enter_context(jax.debug_infs(False))
    return stack
