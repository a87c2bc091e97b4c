"""The solver and the step size controller that a user passed, checked and completed."""

from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from .._jax.tracing import as_array, is_traced
from .stages import explicit_tableau


_TOLERANCES = ("rtol", "atol", "dtmin", "dtmax")


def check_method(solver, controller):
    structure = getattr(solver, "term_structure", None)
    for_odes = isinstance(structure, type) and issubclass(dfx.ODETerm, structure)
    if not (isinstance(solver, dfx.AbstractSolver) and for_odes):
        raise ValueError(
            "Argument `solver` must be a diffrax solver for ordinary differential "
            f"equations, such as `diffrax.Tsit5()`, but it is {solver!r}."
        )
    if isinstance(solver, dfx.LeapfrogMidpoint):
        raise ValueError(
            "Argument `solver` must be a one-step method: `diffrax.LeapfrogMidpoint` "
            "needs the step before, which there is not after an event. Use "
            "`diffrax.Midpoint()`."
        )
    if not isinstance(controller, dfx.AbstractStepSizeController):
        raise ValueError(
            "Argument `stepsize_controller` must be a diffrax step size controller, "
            f"such as `diffrax.PIDController(rtol=1e-8, atol=1e-8)`, but it is "
            f"{controller!r}."
        )


def default_controller(dtype) -> dfx.AbstractStepSizeController:
    # In float32, as far above rounding as leaves room for vector fields that lose two
    # digits to cancellation.
    tol = 1e-8 if dtype == jnp.float64 else 1e-5
    return dfx.PIDController(rtol=tol, atol=tol)


def dynamic_tolerances(controller, dtype):
    """Tolerances as arrays: their values then do not belong to the compiled program."""

    def convert(path, leaf):
        name = getattr(path[-1], "name", None)
        if name in _TOLERANCES and isinstance(leaf, (int, float)):
            return np.asarray(leaf, dtype)
        return leaf

    return jtu.tree_map_with_path(convert, controller)


def tolerance(name: str, controller) -> Any:
    """The `rtol` or `atol` of a controller, within others; `None` if it has none."""
    while hasattr(controller, "controller"):
        controller = controller.controller
    return getattr(controller, name, None)


def implicit_tolerances(solver, controller):
    """As in `diffrax.diffeqsolve`, an implicit solver's root finder takes tolerances
    that it was not given from the step size controller."""
    root_finder = getattr(solver, "root_finder", None)
    if root_finder is None:
        return solver
    given = lambda v: callable(v) or isinstance(v, (int, float)) or eqx.is_array_like(v)
    names = ("rtol", "atol", "norm")
    missing = [
        name
        for name in names
        if hasattr(root_finder, name) and not given(getattr(root_finder, name))
    ]
    if not missing:
        return solver
    if not isinstance(controller, dfx.AbstractAdaptiveStepSizeController):
        raise ValueError(
            "Argument `solver` must have tolerances for its root finder if "
            "`stepsize_controller` has none, for example "
            "`diffrax.Kvaerno5(root_finder=diffrax.VeryChord(rtol=..., atol=..., "
            "norm=optimistix.max_norm))`."
        )
    where = lambda s: [getattr(s.root_finder, name) for name in missing]
    return eqx.tree_at(where, solver, [getattr(controller, name) for name in missing])


# Steps that suit the state suit a tangent as well, most of the time, with an error that
# is larger by some factor. They are left as they are up to this many times the relative
# tolerance; a tangent that gets shorter ones gets those that it needs.
_KEEP, _AIM = 300, 10


# The error of a tangent cannot be told from rounding below so many eps.
LEAST_TANGENT = 100

# With it, derivatives come of other, shorter steps: `hj.check_derivative`.
finer = jax.make_user_context(False)


class TangentTolerance(NamedTuple):
    """Relative errors of a tangent in one step."""

    keep: Float[Array, ""]  # up to which it is taken through the recorded step
    aim: Float[Array, ""]  # with which it is taken through other ones
    first: float = 1.0  # the part of the recorded step that is tried first


def tangent_tolerance(given, solver, controller, dtype) -> TangentTolerance | None:
    """`None` if the derivative is to be that of the recorded steps."""
    tableau = explicit_tableau(solver)
    if tableau is None or not np.any(tableau.b_error):
        if given is not None:
            raise ValueError(
                "Argument `tangent_rtol` needs an explicit Runge-Kutta method with an "
                f"error estimate as `solver`, such as `diffrax.Tsit5()`, not a "
                f"`{type(solver).__name__}`, whose derivatives are those of its steps. "
                "Leave it out, and choose the steps by `stepsize_controller`."
            )
        return None
    if given is not None and not is_traced(given) and not 0 < float(given) < 1:
        raise ValueError(
            "Argument `tangent_rtol` must be a relative error between 0 and 1, such as "
            f"1e-8, but it is {given}."
        )
    rtol = tolerance("rtol", controller)
    if given is not None:
        keep = aim = given
    elif rtol is not None:
        keep, aim = _KEEP * rtol, _AIM * rtol
    elif finer.value:
        keep = aim = jnp.sqrt(jnp.finfo(dtype).eps)
    else:
        return None
    least = LEAST_TANGENT * jnp.finfo(dtype).eps
    larger = jnp.maximum if isinstance(keep, jax.Array) else np.maximum
    keep, aim = (as_array(larger(a, least).astype(dtype)) for a in (keep, aim))
    return TangentTolerance(keep, aim, 0.5 if finer.value else 1.0)


def without_gradients(solver: Any) -> Any:
    """The solver, told that nothing differentiates through its stage loop."""
    return _replace_scan_kind(solver, {None: "lax"})


def with_gradients(solver: Any) -> Any:
    return _replace_scan_kind(solver, {None: "bounded", "lax": "bounded"})


def _replace_scan_kind(solver, replacements):
    is_leaf = lambda x: x is None
    if hasattr(solver, "scan_kind"):
        kind = replacements.get(solver.scan_kind, solver.scan_kind)
        solver = eqx.tree_at(lambda s: s.scan_kind, solver, kind, is_leaf=is_leaf)
    if hasattr(solver, "solver"):  # it wraps another one
        inner = _replace_scan_kind(solver.solver, replacements)
        solver = eqx.tree_at(lambda s: s.solver, solver, inner)
    return solver
