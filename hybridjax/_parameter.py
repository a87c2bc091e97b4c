from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike


def parameter(value: ArrayLike | Sequence[ArrayLike]) -> Array:
    """A parameter as a floating-point array: Python numbers and integers get the
    default floating-point dtype, floating-point arrays keep theirs."""
    array = jnp.asarray(value)
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else float
    # The dtype is explicit so that a Python float does not become weakly typed.
    return jnp.asarray(array, dtype)
