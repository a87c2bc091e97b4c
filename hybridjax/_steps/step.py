import functools
from typing import Any, NamedTuple

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._jax.gate import gate
from .._jax.reduce import all_of
from .._systems.flat import FlatSystem
from .stages import (
    explicit_stages,
    explicit_tableau,
    looking_stages,
    weighted,
)


class StepResult(NamedTuple):
    x: Float[Array, " n"]
    error: Float[Array, " n"] | None
    flow: Float[Array, " n"]  # the vector field at the end of the step
    interpolation: dfx.AbstractPath  # over the unit interval
    okay: Bool[Array, ""]


def term(system: FlatSystem, mode, exists: Any = None) -> dfx.ODETerm:
    """The vector field, and zero where it does not exist, if that is said."""

    def field(t, x, args):
        if exists is None:
            return system.flow(t, x, mode)
        kept, t, x = gate((system, t, x), exists)
        flow = kept.flow(t, x, mode)
        return jnp.where(exists, flow, jnp.zeros_like(flow))

    return dfx.ODETerm(field)  # pyright: ignore


def solver_step(
    solver: dfx.AbstractSolver, system: FlatSystem, t, dt, x, flow, mode
) -> StepResult:
    """One step of length `dt` from `(t, x)`, where the vector field is `flow`."""
    tableau = explicit_tableau(solver)
    if tableau is None:
        return _diffrax_step(solver, system, t, dt, x, flow, mode)
    ks, x1 = explicit_stages(tableau, system, t, dt, x, flow, mode)
    if tableau.fsal:
        # The last slope is the one at the end. A step may have length zero.
        flow1 = jnp.where(dt == 0, flow, ks[-1] / jnp.where(dt == 0, 1, dt))
    else:
        flow1 = system.flow(t + dt, x1, mode)
    return _step_result(solver, tableau, dt, x, flow, ks, x1, flow1)


def _step_result(solver, tableau, dt, x, flow, ks, x1, flow1) -> StepResult:
    error = weighted(tableau.b_error, ks)
    dense_info = dict(y0=x, y1=x1, k=jnp.asarray(ks))
    interpolation = _interpolation(solver, dt, x, x1, flow, flow1, dense_info)
    return StepResult(x1, error, flow1, interpolation, jnp.asarray(True))


def can_look(solver: dfx.AbstractSolver, system: FlatSystem) -> bool:
    return system.is_large and explicit_tableau(solver) is not None


def looking_step(solver, system: FlatSystem, t, dt, x, mode, here, known):
    """`solver_step` where it `can_look`: it also returns the vector field, the guards
    and their rates at its start, `here` where they are `known`, and the guards and
    their rates at its end. One place in the program computes all of them."""
    tableau: Any = explicit_tableau(solver)
    ks, x1, here, (flow1, *ends) = looking_stages(
        tableau, system, t, dt, x, mode, here, known
    )
    return _step_result(solver, tableau, dt, x, here[0], ks, x1, flow1), here, ends


def flow_for(
    solver: dfx.AbstractSolver, system: FlatSystem, t, dt, x, mode
) -> Float[Array, " n"]:
    """The state after `dt`, and nothing else: what the replay differentiates."""
    tableau = explicit_tableau(solver)
    flow = system.flow(t, x, mode)
    if tableau is None:
        return _diffrax_step(solver, system, t, dt, x, flow, mode).x
    return explicit_stages(tableau, system, t, dt, x, flow, mode)[1]


def _diffrax_step(solver, system, t, dt, x, flow, mode) -> StepResult:
    # An implicit step solves linear systems, and so does its derivative: these end the
    # whole program if one lane has a NaN in its Jacobian, or call what they return a
    # solution. Such a lane has no field; and no step leads to, or past, where that is
    # so: none of its stages lies there.
    exists = _is_smooth(system, mode, t, x)
    terms = term(system, mode, exists)
    state = solver.init(terms, t, t + dt, x, None)
    x1, error, dense_info, _, result = solver.step(
        terms, t, t + dt, x, None, state, made_jump=False
    )
    flow1 = system.flow(t + dt, x1, mode)
    interpolation = _interpolation(solver, dt, x, x1, flow, flow1, dense_info)
    stages = _implicit_stages(solver, t, dt, x, x1, dense_info)
    each_smooth = jax.vmap(functools.partial(_is_smooth, system, mode))(*stages)
    smooth = exists & each_smooth.all()
    okay = smooth & (result == dfx.RESULTS.successful)
    return StepResult(x1, error, flow1, interpolation, okay)


def _implicit_stages(solver, t, dt, x, x1, dense_info):
    """Times and states of the stages after the first, as far as they are known, and of
    the end: their first axis."""
    times, states = jnp.stack([t + dt]), x1[None]
    tableau = getattr(solver, "tableau", None)
    if not isinstance(tableau, dfx.ButcherTableau) or tableau.a_diagonal is None:
        return times, states
    weights = np.diag(tableau.a_diagonal)[1:]
    for i, row in enumerate(tableau.a_lower):
        weights[i, : i + 1] = row
    inner = x[None] + jnp.asarray(weights, x.dtype) @ dense_info["k"]
    times = jnp.append(t + jnp.asarray(tableau.c, dt.dtype) * dt, times)
    return times, jnp.concatenate([inner, states])


def _is_smooth(system, mode, t, x) -> Bool[Array, ""]:
    """Are the vector field and its derivative (in one direction) finite?"""
    field = lambda x: system.flow(t, x, mode)
    flow, slope = jax.jvp(field, (x,), (jnp.ones_like(x),))
    return all_of(jnp.isfinite(jnp.concatenate([x, flow, slope])))


def _interpolation(solver, dt, x0, x1, flow0, flow1, dense_info):
    # In units of the step: its weights at given points are then the same for all lanes.
    interval = dict(t0=jnp.zeros((), dt.dtype), t1=jnp.ones((), dt.dtype))
    cls = solver.interpolation_cls
    if cls is dfx.LocalLinearInterpolation or "k" not in dense_info:
        # The slopes at both ends are known: no need to be content with a line.
        return dfx.ThirdOrderHermitePolynomialInterpolation(
            y0=x0, y1=x1, k0=dt * flow0, k1=dt * flow1, **interval
        )
    return cls(**interval, **dense_info)
