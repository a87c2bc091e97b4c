from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike

from .._jax.tracing import as_array


def parameter(value: ArrayLike | Sequence[ArrayLike]) -> Array:
    """A parameter as a floating-point array: Python numbers and integers get the
    default floating-point dtype, floating-point arrays keep theirs."""
    array = as_array(value)
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else float
    # The dtype is explicit so that a Python float does not become weakly typed.
    return jnp.asarray(array, dtype)


def in_dtype(tree, dtype):
    """With the floating-point type of the state: parameters may have another."""
    cast = lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a
    return jtu.tree_map(cast, tree)
