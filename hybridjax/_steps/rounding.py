"""Warnings of tolerances and steps that are known to be less than rounding."""

import warnings

import jax.numpy as jnp
import numpy as np

from .._jax.tracing import is_traced
from .method import LEAST_TANGENT, tolerance


# Below so many eps, relative and absolute, an error estimate is rounding, which shorter
# steps do not make less. Measured: docs/how_to/networks.md.
_LEAST = 2


def warn_of_rounding(controller, solver, tangent_rtol, dt0, times, dtype):
    eps = float(jnp.finfo(dtype).eps)
    root_finder = getattr(solver, "root_finder", None)
    given = {"stepsize_controller": controller, "solver": root_finder}
    for name, of_these in given.items():
        pair = [tolerance(field, of_these) for field in ("rtol", "atol")]
        if all(_below(tol, _LEAST * eps) for tol in pair):
            of = "" if name == "stepsize_controller" else " of its root finder"
            _warn(
                f"Argument `{name}` has tolerances{of}, {pair[0]} and {pair[1]}, but "
                f"the state is in {dtype}, which is rounded to {eps:.1e}: steps will "
                "be rejected for nothing. Leave them out, for those that suit the "
                "dtype, pass larger ones, or use a state in float64."
            )
    if _below(tangent_rtol, LEAST_TANGENT * eps):
        _warn(
            f"Argument `tangent_rtol` is {tangent_rtol}, but the state is in {dtype}, "
            f"for which {LEAST_TANGENT * eps:.1e} is taken instead. Pass at least "
            "that, leave it out, or use a state in float64."
        )
    if not is_traced(times) and _below(dt0, eps * max(map(abs, times))):
        _warn(
            f"Argument `dt0` is {dt0}, but times from {times[0]} to {times[1]} are "
            f"rounded in {dtype}, and such steps go nowhere. Leave it out, pass a "
            "larger one, or measure time from `t0`."
        )


def _below(value, bound: float) -> bool:
    """Is it a number that is known, and less?"""
    number = isinstance(value, (int, float)) or hasattr(value, "dtype")
    return number and not is_traced(value) and bool(np.all(value < bound))


def _warn(message: str):
    # At the line that calls `hj.simulate`.
    warnings.warn(message, UserWarning, stacklevel=4)
