from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float

from ._branch import cond_any
from ._flat import FlatSystem


class StepResult(NamedTuple):
    x: Float[Array, " n"]
    error: Float[Array, " n"] | None
    flow: Float[Array, " n"]  # the vector field at the end of the step
    interpolation: dfx.AbstractPath  # over the unit interval
    okay: Bool[Array, ""]


def term(system: FlatSystem, mode) -> dfx.ODETerm:
    return dfx.ODETerm(lambda t, x, args: system.flow(t, x, mode))  # pyright: ignore


def solver_step(
    solver: dfx.AbstractSolver, system: FlatSystem, t, dt, x, flow, mode
) -> StepResult:
    """One step of length `dt` from `(t, x)`, where the vector field is `flow`."""
    tableau = _explicit_tableau(solver)
    if tableau is None:
        return _diffrax_step(solver, system, t, dt, x, flow, mode)
    stages = _looped_stages if system.is_large else _explicit_stages
    ks, x1 = stages(tableau, system, t, dt, x, flow, mode)
    if tableau.fsal:
        # The last slope is the one at the end. A step may have length zero.
        flow1 = jnp.where(dt == 0, flow, ks[-1] / jnp.where(dt == 0, 1, dt))
    else:
        flow1 = system.flow(t + dt, x1, mode)
    error = _weighted(tableau.b_error, ks)
    dense_info = dict(y0=x, y1=x1, k=jnp.asarray(ks))
    interpolation = _interpolation(solver, dt, x, x1, flow, flow1, dense_info)
    return StepResult(x1, error, flow1, interpolation, jnp.asarray(True))


def flow_for(
    solver: dfx.AbstractSolver,
    system: FlatSystem,
    t,
    dt,
    x,
    mode,
    projected: Bool[Array, ""] | None = None,
) -> Float[Array, " n"]:
    """The state after `dt`, and nothing else: what the replay differentiates.

    A step of the solver, or of Euler where it is `projected`.
    """
    tableau = _explicit_tableau(solver)
    flow = system.flow(t, x, mode)

    def step():
        if tableau is None:
            return _diffrax_step(solver, system, t, dt, x, flow, mode).x
        stages = _looped_stages if system.is_large else _explicit_stages
        return stages(tableau, system, t, dt, x, flow, mode)[1]

    if projected is None:
        return step()
    euler = x + dt * flow
    return cond_any(
        ~projected,
        lambda: jnp.where(projected, euler, step()),
        lambda: euler,
    )


def _explicit_tableau(solver) -> dfx.ButcherTableau | None:
    tableau = getattr(solver, "tableau", None)
    explicit = isinstance(solver, dfx.AbstractERK) and isinstance(
        tableau, dfx.ButcherTableau
    )
    return tableau if explicit else None


def _explicit_stages(tableau, system, t, dt, x, flow, mode):
    # The stages are unrolled: diffrax's loop over them is what a small system spends
    # most of its time in.
    ks = [dt * flow]
    last = None
    for row, c in zip(tableau.a_lower, tableau.c, strict=True):
        last = x + _weighted(row, ks)
        ks.append(dt * system.flow(t + float(c) * dt, last, mode))
    if tableau.ssal and last is not None:
        return ks, last
    return ks, x + _weighted(tableau.b_sol, ks)


def _looped_stages(tableau, system, t, dt, x, flow, mode):
    """The same in a loop, for fields that take long to compile."""
    weights, times, last = _butcher(tableau, x.dtype)

    def stage(i, ks):
        at = x + _combined(weights[i], ks)
        return ks.at[i].set(dt * system.flow(t + times[i] * dt, at, mode))

    size = weights.shape[0]
    ks = jnp.zeros((size, *x.shape), x.dtype).at[0].set(dt * flow)
    ks = lax.fori_loop(1, size, stage, ks)
    return ks, x + _combined(last, ks)


def _butcher(tableau, dtype):
    """The matrix of weights, with that of the first stage, the times, and the weights
    of the solution."""
    size = len(tableau.c) + 1
    weights = np.zeros((size, size))
    for i, row in enumerate(tableau.a_lower):
        weights[i + 1, : i + 1] = row
    times = np.concatenate([[0.0], tableau.c])
    as_arrays = (weights, times, np.asarray(tableau.b_sol))
    return tuple(jnp.asarray(a, dtype) for a in as_arrays)


def _combined(weights, ks):
    return jnp.sum(weights[:, None] * ks, axis=0)


def pull_flow(solver, system_of: Callable, moving, t, dt, x, mode, ct):
    """Back through `flow_for`: cotangents of `moving`, of which `system_of(moving)` is
    made, and of `x`.

    Stage by stage, as the adjoint of a Runge-Kutta method is one itself, for fields
    that take long to compile.
    """
    tableau = _explicit_tableau(solver)
    if tableau is None or not system_of(moving).is_large:
        fn = lambda moving, x: flow_for(solver, system_of(moving), t, dt, x, mode)
        return jax.vjp(fn, moving, x)[1](ct)
    weights, times, last = _butcher(tableau, x.dtype)
    # Stages that only the error estimate needs come last.
    size = int(np.flatnonzero(tableau.b_sol)[-1]) + 1
    weights, last = weights[:, :size], last[:size]

    def slope(moving, i, at):
        return dt * system_of(moving).flow(t + times[i] * dt, at, mode)

    def stage(i, ks):
        return ks.at[i].set(slope(moving, i, x + _combined(weights[i], ks)))

    ks = lax.fori_loop(0, size, stage, jnp.zeros((size, *x.shape), x.dtype))

    def back(k, carry):
        i = size - 1 - k
        ct_moving, ct_x, ct_ks = carry
        at = x + _combined(weights[i], ks)
        _, vjp = jax.vjp(lambda moving, at: slope(moving, i, at), moving, at)
        d_moving, d_at = vjp(ct_ks[i])
        ct_moving = jtu.tree_map(jnp.add, ct_moving, d_moving)
        return ct_moving, ct_x + d_at, ct_ks + jnp.outer(weights[i], d_at)

    zeros = jtu.tree_map(jnp.zeros_like, moving)
    init = zeros, ct, jnp.outer(last, ct)
    ct_moving, ct_x, _ = lax.fori_loop(0, size, back, init)
    return ct_moving, ct_x


def _weighted(weights, ks):
    total = jnp.zeros_like(ks[0])
    for w, k in zip(weights, ks, strict=True):
        if w != 0:
            total = total + float(w) * k
    return total


def _diffrax_step(solver, system, t, dt, x, flow, mode) -> StepResult:
    terms = term(system, mode)
    state = solver.init(terms, t, t + dt, x, None)
    x1, error, dense_info, _, result = solver.step(
        terms, t, t + dt, x, None, state, made_jump=False
    )
    flow1 = system.flow(t + dt, x1, mode)
    interpolation = _interpolation(solver, dt, x, x1, flow, flow1, dense_info)
    return StepResult(x1, error, flow1, interpolation, result == dfx.RESULTS.successful)


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


def stop_gradient(tree):
    return jtu.tree_map(
        lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree
    )
