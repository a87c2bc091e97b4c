import functools
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

from .._derivatives.saltation import directional
from .._jax.deferred import deferred
from .._jax.gate import gate
from .._jax.tie import tie
from .._loop.results import RESULTS
from .._loop.tape import Tape
from .._steps.step import flow_for, with_gradients
from .._systems.flat import FlatSystem


class EventLog(eqx.Module):
    """The events of a simulation, in order. All arrays have length `max_events`.

    Entries beyond `count` are padding, which static shapes need: infinite times, NaN
    states, event number -1.

    **Attributes:**

    - `t`: times, shape `(max_events,)`.
    - `event`: numbers of the guards that fired, shape `(max_events,)`.
    - `mode_before`, `mode_after`: modes.
    - `x_before`, `x_after`: left and right limits of the state.
    - `normal_speed`: rate dg/dt of the guard when it fired, negative: how far from
        grazing the event was. Shape `(max_events,)`.
    - `count`: how many events there were.

    Floats are differentiable. A derivative of `x_before` or `x_after` is that of the
    state at the event, whose time moves too.
    """

    t: Float[Array, " max_events"]
    event: Int[Array, " max_events"]
    mode_before: PyTree
    mode_after: PyTree
    x_before: PyTree
    x_after: PyTree
    normal_speed: Float[Array, " max_events"]
    count: Int[Array, ""]


class Solution(eqx.Module):
    """What [`hybridjax.simulate`][] returns.

    Trajectories are right-continuous: the value at an event time is the one after the
    jump. The left limit is in `events`.

    **Attributes:**

    - `t0`, `t1`: the interval.
    - `ts`, `xs`, `modes`: times, states and modes as `saveat` asked. At times that a
        failed simulation did not reach, states are NaN; unused slots of
        `SaveAt(steps=True)` have infinite times.
    - `x1`, `mode1`: state and mode at the end. After a failure with `throw=False`,
        where the simulation stopped.
    - `events`: an [`hybridjax.EventLog`][].
    - `stats`: numbers of steps, and `t_end`, the time at which the simulation stopped.
    - `result`: a [`hybridjax.RESULTS`][].
    """

    t0: Float[Array, ""]
    t1: Float[Array, ""]
    ts: PyTree
    xs: PyTree
    modes: PyTree
    x1: PyTree
    mode1: PyTree
    events: EventLog
    stats: dict[str, Any]
    result: RESULTS  # pyright: ignore
    _path: "StoredPath | None"

    def evaluate(self, t: Real[Array, "..."] | float) -> PyTree:
        """The state at any time from `t0` to `t1`, by one solver step from the last
        recorded state before it. Differentiable, also with respect to `t`.

        **Arguments:**

        - `t`: a time or an array of times.

        **Returns:**

        The state; for an array of times, its leaves have the shape of `t` in front. NaN
        outside of the simulated interval.

        **Raises:**

        - `ValueError` after a simulation with `checkpoints`.
        """
        return self.evaluate_with_mode(t)[0]

    def evaluate_with_mode(
        self, t: Real[Array, "..."] | float
    ) -> tuple[PyTree, PyTree]:
        """As `evaluate`, and the mode at that time."""
        if self._path is None:
            raise ValueError(
                "A simulation with `checkpoints` keeps no path to evaluate. Leave that "
                "argument of `hj.simulate` out, or simulate to the time that is asked "
                "for."
            )
        path = self._path.open()
        t = jnp.asarray(t, path.tape.t_end.dtype)
        one = lambda t: path.at(t)
        for _ in range(t.ndim):
            one = jax.vmap(one)
        return one(t)


class _Static:
    """Holds what is not an array, out of sight of `jax.vmap` and `jax.jit`."""

    def __init__(self, value):
        self.value = value


class StoredPath(eqx.Module):
    """A `Path` of which only the arrays are leaves."""

    arrays: PyTree
    rest: _Static = eqx.field(static=True)

    def open(self) -> "Path":
        return eqx.combine(self.arrays, self.rest.value)


class Path(eqx.Module):
    """A tape, and what it takes to step off it."""

    tape: Tape
    system: FlatSystem
    solver: dfx.AbstractSolver
    same_time: Float[Array, ""]
    unravel: Callable

    def store(self) -> StoredPath:
        arrays, rest = eqx.partition(self, eqx.is_array)
        return StoredPath(arrays, _Static(rest))

    def reaches(self, s) -> Bool[Array, ""]:
        """Whether the simulation got to the time `s`."""
        return s <= self.tape.t_end + self.same_time

    def at(self, s) -> tuple[PyTree, PyTree]:
        """State and mode at time `s`: one solver step from the start of its row.

        A time equal to that of an event up to rounding is after it.
        """
        tape = self.tape
        time = jax.lax.stop_gradient(s)
        ended = time + self.same_time >= tape.t_end
        i = jnp.searchsorted(tape.t, time + self.same_time, side="right") - 1
        i = jnp.clip(i, 0, tape.t.shape[0] - 1)
        pick = lambda buffer, end: jnp.where(ended, end, buffer[i])
        t, x = pick(tape.t, tape.t_end), pick(tape.x, tape.x_end)
        mode = jtu.tree_map(pick, tape.mode, tape.mode_end)
        reached = self.reaches(time) & (time >= tape.t[0] - self.same_time)
        # Times from before the row, by rounding, are those of its start. Rows start at
        # fixed times, but the end moves with `t1`.
        start = jax.lax.stop_gradient(t)
        moved = (s - time) - (t - start)
        dt = jnp.where(reached, jnp.maximum(time - start, 0) + moved, 0)
        solver = with_gradients(self.solver)
        projected = (tape.event[i] >= 0) & ~ended if tape.projects else None
        x = flow_for(solver, self.system, t, dt, x, mode, projected)
        return self.unravel(jnp.where(reached, x, jnp.nan)), mode


@eqx.filter_custom_jvp
def shift_time(system: FlatSystem, t, x, mode, tau):
    """The state a time `tau` later, for a `tau` that is zero in value and carries
    derivatives."""
    return tie(x, (system, t, mode, tau))


@shift_time.def_jvp
def _shift_time_jvp(primals, tangents):
    system, t, x, mode, tau = primals
    t_system, _, t_x, _, t_tau = tangents
    shifted = shift_time(*primals)
    tangent = jnp.zeros_like(x) if t_x is None else t_x
    if t_x is not None or jtu.tree_leaves(t_system):
        # Zero, but its derivative with respect to `tau` is not.
        _, d_flow = directional(
            lambda system, x: system.flow(t, x, mode), (system, x), (t_system, t_x)
        )
        tangent = tangent + tau * d_flow
    if t_tau is not None:
        tangent = tangent + t_tau * system.flow(t + tau, shifted, mode)
    return shifted, tangent


def event_log(path: Path, max_events: int) -> EventLog:
    """Reads the events off the tape."""
    return deferred(functools.partial(_event_log, max_events=max_events), path)


def _event_log(path: Path, max_events: int) -> EventLog:
    tape = path.tape
    fired = tape.fired
    # Slots that stay empty repeat the first event: a reset may be undefined elsewhere.
    # Not `jnp.nonzero`, of which jax 0.12 cannot take a batch of batches.
    slot = jnp.arange(max_events)
    index = jnp.searchsorted(jnp.cumsum(fired), slot + 1)
    index = jnp.where(index < fired.shape[0], index, jnp.argmax(fired))
    valid = slot < tape.num_events
    system, t_event, x_pre = gate((path.system, tape.t_event, tape.x_pre), fired.any())

    def one(i, valid):
        mode = jtu.tree_map(lambda m: m[i], tape.mode)
        event = jnp.maximum(tape.event[i], 0)
        t, x = t_event[i], x_pre[i]
        time = jax.lax.stop_gradient(t)
        if system.n_guards == 0:
            mode_plus, x_plus, speed = mode, x, jnp.zeros_like(t)
        else:
            x = shift_time(system, time, x, mode, t - time)
            flow = system.flow(t, x, mode)
            speed = system.guard_rates(t, x, mode, flow)[1][event]
            x_plus, mode_plus = system.jump(t, x, mode, event)
        fill = lambda value: lambda a: jnp.where(valid, a, value)
        pad_mode = lambda m: jnp.where(valid, m, jnp.asarray(-1).astype(m.dtype))
        return EventLog(
            t=fill(jnp.inf)(t),
            event=fill(-1)(tape.event[i]),
            mode_before=jtu.tree_map(pad_mode, mode),
            mode_after=jtu.tree_map(pad_mode, mode_plus),
            x_before=path.unravel(fill(jnp.nan)(x)),
            x_after=path.unravel(fill(jnp.nan)(x_plus)),
            normal_speed=fill(jnp.nan)(speed),
            count=tape.num_events,
        )

    log = jax.vmap(one)(index, valid)
    return eqx.tree_at(lambda log: log.count, log, tape.num_events)
