"""What filters are given, checked and in the form in which they carry it."""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .._jax.tracing import is_traced
from .._steps.method import default_controller, dynamic_tolerances, tolerance
from .._systems.flat import flatten_system
from .._systems.rest import at_tolerance
from .._systems.start import Start, start
from ..analysis._noise import NoiseRoot
from ._advance import Flow
from ._measurement import check_full_rank, Measurement, measurement_of


class Problem(eqx.Module):
    """A system that is measured at some times."""

    flow: Flow
    measurement: Measurement
    process_root: NoiseRoot
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
        # The square root of zero has no derivative.
        empty = duration <= 0
        scale = jnp.where(empty, 0, jnp.sqrt(jnp.where(empty, 1, duration)))
        return scale * self.process_root(t, x, mode)

    def steps(self):
        """What a filter goes through: for each measurement from when to when, what was
        measured, and how many entries of it; and one more that measures nothing, as the
        last update may have led beyond a guard."""
        ts = jnp.concatenate([self.t0[None], self.ts, self.ts[-1:]])
        ys = jnp.concatenate([self.ys, jnp.full_like(self.ys[:1], jnp.nan)])
        return ts[:-1], ts[1:], ys


class Given(eqx.Module):
    """What a filter was given. What is known has been checked; it passes `jax.jit`."""

    begin: Start
    ts: Array
    ys: Array
    root0: Array
    args: PyTree
    measurement: Any
    measurement_root: Any
    process_root: Any
    diffusion: Any
    solver: dfx.AbstractSolver
    controller: dfx.AbstractStepSizeController
    saltation: Bool[Array, ""]
    max_steps: int = eqx.field(static=True)
    max_events: int = eqx.field(static=True)
    linearised: bool = eqx.field(static=True)

    def problem(self) -> Problem:
        """
        **Raises:**

        - `ValueError` for shapes that do not fit; it names the argument.
        """
        begin, args = self.begin, self.args
        point, dtype = (begin.t, begin.x, begin.mode), begin.t.dtype
        system = at_tolerance(begin.system, tolerance("atol", self.controller))
        flat, x0, unravel = flatten_system(system, *point, args, self.solver)
        _check_root("root0", self.root0, x0.size)

        def noise(name, root):
            shown = root
            if callable(root):
                shown = eqx.filter_eval_shape(root, *point, args)
            _check_root(name, shown, x0.size)
            return NoiseRoot(root, unravel, args)

        root, diffusion = self.process_root, self.diffusion
        if root is None:
            root = jnp.zeros((x0.size, 1), dtype)
        if diffusion is not None:
            diffusion = noise("diffusion", diffusion)
        measurement = measurement_of(
            begin.system,
            self.measurement,
            self.measurement_root,
            self.ys.shape[1],
            *point,
            args,
            unravel,
        )
        flow = Flow(
            flat,
            diffusion,
            self.solver,
            self.controller,
            max_steps=self.max_steps,
            max_events=self.max_events,
            saltation=self.saltation,
            linearised=self.linearised,
        )
        return Problem(
            flow=flow,
            measurement=measurement,
            process_root=noise("process_root", root),
            t0=begin.t,
            ts=self.ts.astype(dtype),
            ys=self.ys.astype(dtype),
            x0=x0,
            root0=self.root0.astype(dtype),
            mode0=jtu.tree_map(jnp.asarray, begin.mode),
            unravel=unravel,
        )


def given(
    system,
    t0,
    ts,
    ys,
    x0,
    root0,
    mode0,
    args,
    *,
    measurement_root,
    process_root,
    diffusion=None,
    stepsize_controller,
    saltation,
    **options,
) -> Given:
    """
    **Raises:**

    - `ValueError` for what cannot be used; it names the argument.
    """
    begin = start(
        system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
    )
    dtype = begin.t.dtype
    _check_times(t0, ts)
    if jnp.ndim(ys) != 2 or jnp.shape(ys)[0] != jnp.size(ts):
        raise ValueError(
            f"Argument `ys` must have shape ({jnp.size(ts)}, m), a row of m entries "
            f"for each of the times `ts`, but it is {jnp.shape(ys)}. Pass "
            "`ys[:, None]` if there is one entry at each time."
        )
    if not callable(measurement_root) and not is_traced(measurement_root):
        check_full_rank(measurement_root)
    if stepsize_controller is None:
        stepsize_controller = default_controller(dtype)
    array = lambda root: root if root is None or callable(root) else jnp.asarray(root)
    return Given(
        begin=begin,
        ts=jnp.asarray(ts),
        ys=jnp.asarray(ys),
        root0=jnp.asarray(root0),
        args=args,
        measurement_root=array(measurement_root),
        process_root=array(process_root),
        diffusion=array(diffusion),
        controller=dynamic_tolerances(stepsize_controller, dtype),
        saltation=jnp.asarray(saltation),
        **options,
    )


def check_number(name, number):
    """
    **Raises:**

    - `ValueError` if it is no integer, or less than one.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(
            f"Argument `{name}` must be an integer, but it is a "
            f"{type(number).__name__}."
        )
    if number < 1:
        raise ValueError(f"Argument `{name}` must be at least 1, but it is {number}.")


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
