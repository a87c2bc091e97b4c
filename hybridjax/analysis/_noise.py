from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class NoiseRoot(eqx.Module):
    """A root of the covariance of noise, of the flat state: a matrix, or a callable
    `(t, x, mode, args)` that returns one."""

    root: Any
    unravel: Callable
    args: PyTree

    def __call__(self, t, x, mode) -> Float[Array, "rows k"]:
        root = self.root
        if callable(root):
            root = root(t, self.unravel(x), mode, self.args)
        return jnp.asarray(root, x.dtype)
