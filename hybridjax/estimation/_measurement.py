"""What is measured, as a function of the flat state."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._jax.branch import switch
from .._jax.gate import gate
from .._systems.automaton import HybridAutomaton, ModalState
from ..analysis._noise import NoiseRoot


_SAME_ENTRIES = (
    "A measurement has the same entries in all modes: where one is not measured, "
    "return any number, and put NaN into `ys`."
)


class Measurement(eqx.Module):
    """`y = h(t, x, mode) + noise`, with a root of the covariance of the noise."""

    function: Callable
    noise_root: NoiseRoot
    unravel: Callable
    args: PyTree

    def value(self, t, x, mode) -> Float[Array, " m"]:
        return jnp.asarray(self.function(t, self.unravel(x), mode, self.args), x.dtype)


def measurement_of(
    system, measurement, measurement_root, n_entries, t, x, mode, args, unravel
) -> Measurement:
    """
    **Raises:**

    - `ValueError` if there is no measurement of a mode, or one of another size than
        `ys`; or if the root of its noise has another number of rows.
    """
    if isinstance(measurement, Mapping):
        measurement = _by_mode(system, measurement, n_entries, t, x, args)
    elif not callable(measurement):
        raise ValueError(
            "Argument `measurement` must be a callable `(t, x, mode, args) -> y`, or a "
            "mapping from the names of modes to callables `(t, x, args) -> y`, but it "
            f"is a {type(measurement).__name__}."
        )
    noise_root = NoiseRoot(measurement_root, unravel, args)
    model = Measurement(measurement, noise_root, unravel, args)
    flat = ravel_pytree(x)[0]
    try:
        struct = jax.eval_shape(model.value, t, flat, mode)
    except TypeError as error:
        # Of `jax.lax.switch`, whose branches differ; or of anything else.
        raise ValueError(
            f"Argument `measurement` could not be evaluated. {_SAME_ENTRIES}"
        ) from error
    _check_size(struct, n_entries, "")
    root = jax.eval_shape(model.noise_root, t, flat, mode)
    if len(root.shape) != 2 or root.shape[0] != n_entries:
        raise ValueError(
            "Argument `measurement_root` must be a matrix, a square root of the "
            f"covariance of the noise, with a row for each of the {n_entries} entries "
            f"of a measurement, but its shape is {root.shape}. For a standard "
            f"deviation of `sigma` in each, pass `sigma * jnp.eye({n_entries})`; for a "
            "covariance, its `jnp.linalg.cholesky`."
        )
    return model


def _check_size(struct, n_entries, of):
    if struct.shape != (n_entries,):
        raise ValueError(
            f"Argument `measurement` must return an array of shape ({n_entries},), as "
            f"`ys` has {n_entries} entries at each time, but it returned shape "
            f"{struct.shape}{of}. {_SAME_ENTRIES}"
        )


def check_full_rank(root):
    """A root that is known; that it is a matrix is checked elsewhere.

    **Raises:**

    - `ValueError` if its rows are not linearly independent.
    """
    root = np.asarray(root)
    if root.ndim != 2:
        return
    if not np.all(np.isfinite(root)) or np.linalg.matrix_rank(root) < root.shape[0]:
        raise ValueError(
            "Argument `measurement_root` must have linearly independent rows, so that "
            "the covariance of the noise is positive definite, but it is "
            f"{root.tolist()}. Give every entry some noise of its own."
        )


def _by_mode(system, measurement, n_entries, t, x, args) -> Callable:
    """One function for all modes of an automaton."""
    names = system.names if isinstance(system, HybridAutomaton) else ()
    if set(names) != set(measurement):
        raise ValueError(
            "Argument `measurement` must be a callable, or, for a "
            f"`hj.HybridAutomaton`, have an entry for each mode: {list(names)}, but it "
            f"has {list(measurement)}."
        )

    def branch(name):
        def run(t, x, mode, args):
            x = x[name] if isinstance(x, ModalState) else x
            # What is not measured must not make a derivative NaN.
            inputs = (measurement[name], t, x, args)
            of_mode, t, x, args = gate(inputs, mode == names.index(name))
            return jnp.asarray(of_mode(t, x, args))

        return run

    branches = [branch(name) for name in names]
    mode = jnp.asarray(0, jnp.int32)
    for name, run in zip(names, branches, strict=True):
        struct = eqx.filter_eval_shape(run, t, x, mode, args)
        _check_size(struct, n_entries, f" in mode {name!r}")
    return lambda t, x, mode, args: switch(mode, branches, t, x, mode, args)
