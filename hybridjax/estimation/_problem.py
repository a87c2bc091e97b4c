"""What filters are given, checked and in the form in which they carry it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._jax.tracing import is_traced
from .._steps.method import default_controller, tolerance
from .._systems.flat import flatten_system
from .._systems.rest import at_tolerance
from .._systems.start import start
from ._advance import Flow
from ._measurement import Measurement, measurement_of


class Problem(eqx.Module):
    """A system that is measured at some times."""

    flow: Flow
    measurement: Measurement
    process_root: Any
    t0: Float[Array, ""]
    ts: Float[Array, " times"]
    ys: Float[Array, "times m"]
    x0: Float[Array, " n"]
    root0: Float[Array, "n n"]
    mode0: PyTree
    unravel: Callable

    def noise_root(self, t, x, mode, duration) -> Float[Array, "n k"]:
        """A root of the covariance of the process noise of an interval that begins
        here."""
        root = self.process_root
        if callable(root):
            root = root(t, self.unravel(x), mode, self.measurement.args)
        # The square root of zero has no derivative.
        empty = duration <= 0
        scale = jnp.where(empty, 0, jnp.sqrt(jnp.where(empty, 1, duration)))
        return scale * jnp.asarray(root, x.dtype)

    def steps(self):
        """What a filter goes through: for each measurement from when to when, what was
        measured, and how many entries of it; and one more that measures nothing, as the
        last update may have led beyond a guard."""
        ts = jnp.concatenate([self.t0[None], self.ts, self.ts[-1:]])
        ys = jnp.concatenate([self.ys, jnp.full_like(self.ys[:1], jnp.nan)])
        return ts[:-1], ts[1:], ys


def problem_of(
    system,
    t0,
    ts,
    ys,
    x0,
    root0,
    mode0,
    args,
    *,
    measurement,
    measurement_root,
    process_root,
    solver,
    stepsize_controller,
    **flow,
) -> Problem:
    """
    **Raises:**

    - `ValueError` for what cannot be used; it names the argument.
    """
    begin = start(
        system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
    )
    x, dtype = begin.x, begin.t.dtype
    flat, unravel = ravel_pytree(x)
    _check_times(t0, ts)
    ts, ys = jnp.asarray(ts, dtype), jnp.asarray(ys, dtype)
    if ys.ndim != 2 or ys.shape[0] != ts.shape[0]:
        raise ValueError(
            f"Argument `ys` must have shape ({ts.shape[0]}, m), a row of m entries for "
            f"each of the times `ts`, but it is {ys.shape}. Pass `ys[:, None]` if "
            "there is one entry at each time."
        )
    point = (begin.t, x, begin.mode)
    if process_root is None:
        process_root = jnp.zeros((flat.size, 1), dtype)
    given = process_root
    if callable(process_root):
        given = eqx.filter_eval_shape(process_root, *point, args)
    _check_root("root0", root0, flat.size)
    _check_root("process_root", given, flat.size)
    if stepsize_controller is None:
        stepsize_controller = default_controller(dtype)
    tolerant = at_tolerance(begin.system, tolerance("atol", stepsize_controller))
    system_, x_flat, unravel = flatten_system(tolerant, *point, args, solver)
    return Problem(
        flow=Flow(system_, solver, stepsize_controller, **flow),
        measurement=measurement_of(
            begin.system,
            measurement,
            measurement_root,
            ys.shape[1],
            *point,
            args,
            unravel,
        ),
        process_root=process_root,
        t0=begin.t,
        ts=ts,
        ys=ys,
        x0=x_flat,
        root0=jnp.asarray(root0, dtype),
        mode0=jtu.tree_map(jnp.asarray, begin.mode),
        unravel=unravel,
    )


def _check_times(t0, ts):
    if jnp.ndim(ts) != 1 or jnp.size(ts) == 0:
        raise ValueError(
            "Argument `ts` must be a vector of at least one time, but its shape is "
            f"{jnp.shape(ts)}. Pass `jnp.array([t])` for one time."
        )
    if is_traced((t0, ts)):
        return
    times = np.concatenate([np.reshape(t0, (1,)), np.asarray(ts)])
    if not np.all(np.isfinite(times)):
        raise ValueError(
            "Argument `ts` must be finite, but it is not, or `t0` is not. Leave out "
            "times at which nothing was measured."
        )
    if np.any(np.diff(times) < 0):
        raise ValueError(
            "Argument `ts` must be in ascending order, and begin no earlier than `t0`, "
            f"which is {t0}, but there is {times[:-1][np.diff(times) < 0][0]} before "
            f"{times[1:][np.diff(times) < 0][0]}. Sort the measurements by time."
        )


def _check_root(name, root, n):
    shape = jnp.shape(root)
    if len(shape) != 2 or shape[0] != n:
        raise ValueError(
            f"Argument `{name}` must be a matrix, a square root of a covariance, with "
            f"a row for each of the {n} entries of the raveled state, but its shape is "
            f"{shape}. For a standard deviation of `sigma` in each entry, pass "
            f"`sigma * jnp.eye({n})`; for a covariance that is positive definite, its "
            "`jnp.linalg.cholesky`."
        )
