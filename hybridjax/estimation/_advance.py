"""A point, and the derivative of where it goes, from one measurement to the next."""

import dataclasses

import diffrax as dfx
import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._events.locate import corner_tolerance
from .._events.terminal_event import TerminalEvent
from .._jax.branch import cond_any, where
from .._loop.results import choose, first_failure
from .._simulate import simulate
from .._systems.flat import FlatSystem
from ..analysis._noise import NoiseRoot
from ._linearised import FORWARD, Linearised, with_time
from ._results import RESULTS, SUCCESS


# A parabola that meets the guard at all does so within twice the time in which its
# tangent does. Others may bend more.
_FARTHER = 4


class Flow(eqx.Module):
    """The system, and how it is simulated."""

    system: FlatSystem
    # Of white noise on the way; `None` is none.
    diffusion: NoiseRoot | None
    solver: dfx.AbstractSolver
    controller: dfx.AbstractStepSizeController | None
    saltation: Bool[Array, ""]
    max_steps: int = eqx.field(static=True)
    max_events: int = eqx.field(static=True)
    # With derivatives, or without.
    linearised: bool = eqx.field(static=True)


class Passed(eqx.Module):
    """Where a point is, the derivative by where it was, and the covariance that noise
    has added on the way; how long ago the last event was, and the derivative of its
    time, zero if there was none."""

    x: Float[Array, " n"]
    mode: PyTree
    matrix: Float[Array, "n n"]
    noise: Float[Array, "n n"] | None
    since: Float[Array, ""]
    event_time: Float[Array, " n"]


class Advanced(eqx.Module):
    """From a time to the next.

    - `here`: at the first of them, after the guards beyond which the point was.
    - `there`: at the next, by `here`.
    - `rewound`: whether there were such guards.
    - `unreachable`: whether there is one to which the flow does not lead back.
    """

    here: Passed
    there: Passed
    rewound: Bool[Array, ""]
    unreachable: Bool[Array, ""]
    result: RESULTS  # pyright: ignore


def advance(flow: Flow, t, t_next, x, mode) -> Advanced:
    """Takes a point to the next time.

    A measurement, or noise, may have put it beyond a guard: that event has happened
    before. So the point goes back to the guard by the frozen field, in which it is
    thought of, jumps there, and comes on again to the time `t`. Three simulations:
    back, on to `t`, on to `t_next`; the first two only where they are needed.
    """
    guard, horizon = _overdue(flow.system, t, x, mode)
    overdue = horizon > 0

    def step(carry, number):
        x, mode, back, result = carry
        is_back, is_last = number == 0, number == 2
        origin = jnp.where(is_back | is_last, t, t - back)
        span = jnp.where(is_back, horizon, jnp.where(is_last, t_next - t, back))
        way = jnp.where(is_back & overdue, guard, FORWARD)
        sign = jnp.where(is_back, -jnp.ones_like(t), 1)
        identity, zero = _identity(flow, x), jnp.zeros_like(t)
        never = jnp.zeros_like(identity[0])
        here = Passed(x, mode, identity, _no_noise(flow, x), zero, never)
        stays = here, jnp.asarray(False), span, SUCCESS

        def moves(x, mode):
            sol = _simulate(flow, origin, sign, span, x, mode, way)
            reached = sol.result == RESULTS.event_occurred
            # Without the last rows, which are those of a time.
            n = x.shape[0]
            end, columns, noise, last = sol.x1
            noise = None if noise is None else noise[:n, :n]
            passed = Passed(
                end, sol.mode1[0], columns[:n], noise, sol.t1 - last, columns[n]
            )
            return passed, reached, sol.t1, sol.result

        # Most of the time no lane has met a guard too late.
        needed = is_last | (span > 0)
        moved = cond_any(needed, moves, lambda x, mode: stays, x, mode)
        passed, reached, time, ended = where(needed, moved, stays)
        # Back to nowhere is not at all.
        passed = where(is_back & ~reached, here, passed)
        back = jnp.where(is_back, jnp.where(reached, time, 0), back)
        ended = choose(is_back, SUCCESS, ended)
        carry = passed.x, passed.mode, back, first_failure(result, ended)
        return carry, (passed, reached)

    init = (x, mode, jnp.zeros_like(t), SUCCESS)
    (*_, result), (passed, reached) = lax.scan(step, init, jnp.arange(3))
    first, here, there = (jtu.tree_map(lambda a, i=i: a[i], passed) for i in range(3))
    if flow.linearised:
        matrix = jnp.matmul(here.matrix, first.matrix)
        here = dataclasses.replace(here, matrix=matrix)
    return Advanced(here, there, reached[0], overdue & ~reached[0], result)


def _simulate(flow: Flow, origin, sign, span, x, mode, way):
    dtype = x.dtype
    zero = jnp.zeros((), dtype)
    tol = corner_tolerance(None, dtype) * span
    system = Linearised(flow.system, flow.diffusion, origin, sign, tol, flow.saltation)
    columns = with_time(_identity(flow, x), 0)
    noise = _no_noise(flow, x)
    noise = None if noise is None else with_time(noise, 1)
    sol = simulate(
        system,
        zero,
        span,
        (x, columns, noise, zero),
        (mode, jnp.asarray(way, jnp.int32)),
        solver=flow.solver,
        stepsize_controller=flow.controller,
        max_steps=flow.max_steps,
        max_events=flow.max_events,
        terminal_event=TerminalEvent(flow.system.n_guards),
        throw=False,
    )
    return eqx.tree_at(lambda s: s.result, sol, RESULTS.promote(sol.result))


def _identity(flow: Flow, x):
    n = x.shape[0]
    return jnp.eye(n, n if flow.linearised else 0, dtype=x.dtype)


def _no_noise(flow: Flow, x):
    n = x.shape[0]
    return None if flow.diffusion is None else jnp.zeros((n, n), x.dtype)


def _overdue(system: FlatSystem, t, x, mode):
    """The guard that the point should have met, the one that is overdue for the
    longest; and for how long at most, zero where there is none."""
    g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
    is_due = (g < 0) & (rate < 0)
    late = jnp.where(is_due, g / jnp.where(is_due, rate, 1), 0)
    late = lax.stop_gradient(jnp.append(late, 0))
    return jnp.argmax(late).astype(jnp.int32), _FARTHER * jnp.max(late)
