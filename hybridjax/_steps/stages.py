"""The stages of explicit Runge-Kutta methods, and their adjoint."""

from collections.abc import Callable

import diffrax as dfx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._jax.branch import where
from .adjoint_estimate import adjoint_estimate


def explicit_tableau(solver) -> dfx.ButcherTableau | None:
    tableau = getattr(solver, "tableau", None)
    explicit = isinstance(solver, dfx.AbstractERK) and isinstance(
        tableau, dfx.ButcherTableau
    )
    return tableau if explicit else None


def explicit_stages(tableau, system, t, dt, x, flow, mode):
    """The slopes of a step from `x`, where the vector field is `flow`, in units of the
    step, and the state that it leads to."""
    stages = _looped if system.is_large else _unrolled
    return stages(tableau, system, t, dt, x, flow, mode)


def _unrolled(tableau, system, t, dt, x, flow, mode):
    # diffrax's loop over the stages is what a small system spends most of its time in.
    ks = [dt * flow]
    last = None
    for row, c in zip(tableau.a_lower, tableau.c, strict=True):
        last = x + weighted(row, ks)
        ks.append(dt * system.flow(t + float(c) * dt, last, mode))
    if tableau.ssal and last is not None:
        return ks, last
    return ks, x + weighted(tableau.b_sol, ks)


def weighted(weights, ks):
    total = jnp.zeros_like(ks[0])
    for w, k in zip(weights, ks, strict=True):
        if w != 0:
            total = total + float(w) * k
    return total


def _looped(tableau, system, t, dt, x, flow, mode):
    # For fields that take long to compile.
    weights, times, last = _butcher(tableau, x.dtype)

    def stage(i, ks):
        at = x + _combined(weights[i], ks)
        return _with(ks, i, dt * system.flow(t + times[i] * dt, at, mode))

    size = weights.shape[0]
    ks = _with(jnp.zeros((size, *x.shape), x.dtype), 0, dt * flow)
    ks = lax.fori_loop(1, size, stage, ks)
    return ks, x + _combined(last, ks)


def looking_stages(tableau, system, t, dt, x, mode, here, known):
    """As `explicit_stages`, with the vector field, the guards and their rates at both
    ends; those at the start are `here` where they are `known`."""
    weights, times, last = _butcher(tableau, x.dtype)
    size = weights.shape[0]
    if not tableau.fsal:
        # One more stage, at the end of the step.
        weights = jnp.pad(jnp.concatenate([weights, last[None]]), ((0, 0), (0, 1)))
        times, last = jnp.append(times, 1), jnp.append(last, 0)

    def stage(i, carry):
        ks, here, _ = carry
        at, at_t = x + _combined(weights[i], ks), t + times[i] * dt
        start, end = i == 0, i == weights.shape[0] - 1
        flow = jnp.where(start & known, here[0], system.flow(at_t, at, mode))
        g, rate = lax.cond(
            start | end,
            lambda: system.guard_rates(at_t, at, mode, flow),
            lambda: here[1:],
        )
        there = flow, g, rate
        return _with(ks, i, dt * flow), where(start & ~known, there, here), there

    ks = _with(jnp.zeros((weights.shape[0], *x.shape), x.dtype), 0, dt * here[0])
    first = jnp.where(eqxi.unvmap_all(known), 1, 0)
    ks, here, there = lax.fori_loop(first, weights.shape[0], stage, (ks, here, here))
    return ks[:size], x + _combined(last, ks), here, there


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


def _with(ks, i, k):
    """Not `ks.at[i].set(k)`, a scatter, of which XLA makes a loop."""
    return lax.dynamic_update_index_in_dim(ks, k, i, 0)


def _combined(weights, ks):
    return jnp.sum(weights[:, None] * ks, axis=0)


def pull_stages(tableau, system_of: Callable, moving, t, dt, x, mode, ct):
    """Back from the state at the end of a step: cotangents of `moving`, of which
    `system_of(moving)` is made, and of `x`; an estimate of the error of the latter; and
    the state at the end."""
    pull = _pull_looped if system_of(moving).is_large else _pull_unrolled
    # Stages that only the error estimate needs come last.
    size = int(np.flatnonzero(tableau.b_sol)[-1]) + 1
    return pull(tableau, size, system_of, moving, t, dt, x, mode, ct)


def _pull_unrolled(tableau, size, system_of: Callable, moving, t, dt, x, mode, ct):
    rows, times = [(), *tableau.a_lower], [0.0, *tableau.c]
    ks, vjps = [], []
    for row, c in zip(rows[:size], times, strict=False):
        slope = lambda moving, at, c=c: (
            dt * system_of(moving).flow(t + float(c) * dt, at, mode)
        )
        k, vjp = jax.vjp(slope, moving, x + weighted(row, ks) if ks else x)
        ks.append(k)
        vjps.append(vjp)

    ct_moving = jtu.tree_map(jnp.zeros_like, moving)
    cts, back = [float(w) * ct for w in tableau.b_sol[:size]], [ct] * size
    for i in reversed(range(size)):
        d_moving, back[i] = vjps[i](cts[i])
        ct_moving = jtu.tree_map(jnp.add, ct_moving, d_moving)
        for j, w in enumerate(rows[i]):
            if w != 0:
                cts[j] = cts[j] + float(w) * back[i]
    ct_x = ct + weighted(np.ones(size), back)
    error = weighted(adjoint_estimate(tableau)[0], back)
    return ct_moving, ct_x, error, x + weighted(tableau.b_sol[:size], ks)


def _pull_looped(tableau, size, system_of: Callable, moving, t, dt, x, mode, ct):
    # The adjoint of a Runge-Kutta method is one itself.
    weights, times, last = _butcher(tableau, x.dtype)
    weights, last = weights[:, :size], last[:size]
    for_error = jnp.asarray(adjoint_estimate(tableau)[0], x.dtype)

    def slope(moving, i, at):
        return dt * system_of(moving).flow(t + times[i] * dt, at, mode)

    def stage(i, ks):
        return _with(ks, i, slope(moving, i, x + _combined(weights[i], ks)))

    ks = lax.fori_loop(0, size, stage, jnp.zeros((size, *x.shape), x.dtype))

    def back(k, carry):
        i = size - 1 - k
        ct_moving, ct_x, ct_ks, error = carry
        at = x + _combined(weights[i], ks)
        _, vjp = jax.vjp(lambda moving, at: slope(moving, i, at), moving, at)
        d_moving, d_at = vjp(ct_ks[i])
        ct_moving = jtu.tree_map(jnp.add, ct_moving, d_moving)
        ct_ks = ct_ks + jnp.outer(weights[i], d_at)
        return ct_moving, ct_x + d_at, ct_ks, error + for_error[i] * d_at

    zeros = jtu.tree_map(jnp.zeros_like, moving)
    init = zeros, ct, jnp.outer(last, ct), jnp.zeros_like(ct)
    ct_moving, ct_x, _, error = lax.fori_loop(0, size, back, init)
    return ct_moving, ct_x, error, x + _combined(last, ks)
