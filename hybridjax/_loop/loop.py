"""The flat event loop: each iteration makes one solver step, for every lane.

There is no loop over events around a loop over steps: under `vmap` every lane would
wait for the slowest one at each event. What an iteration does about events is the
matter of the event method: `_landing.py`, `_projection.py`.
"""

import abc
import dataclasses
from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.cubic import CHECK_POINTS
from .._jax.branch import compute_if, computed_once, cond_any, later_zero, where
from .._jax.pack import Packer
from .._jax.reduce import all_of, any_of
from .._steps.step import can_look, looking_step, solver_step, StepResult, term
from .._systems.flat import FlatSystem
from .results import choose, RESULTS
from .tape import Row, Tape


# Times closer than this many eps (relative to the largest time) are the same time.
SAME_TIME = 16

# Gaps between firings of one guard shorter than this many eps are no gaps, and so many
# of them in a row are an accumulation. Several are legitimate: a shock travelling to
# and fro between bodies in contact fires the same guard a few times in one instant.
_ZENO_GAP = 4096
_ZENO_COUNT = 5


class Settings(eqx.Module):
    """What the loop needs to know besides the problem."""

    solver: dfx.AbstractSolver
    controller: Any
    dt0: Float[Array, ""] | None
    event_method: Any
    progress_meter: dfx.AbstractProgressMeter
    max_steps: int = eqx.field(static=True)
    max_events: int = eqx.field(static=True)

    @property
    def adaptive(self) -> bool:
        return isinstance(self.controller, dfx.AbstractAdaptiveStepSizeController)


class State(eqx.Module):
    t: Float[Array, ""]
    x: Float[Array, " n"]
    flow: Float[Array, " n"]  # the vector field at (t, x)
    mode: PyTree
    g: Float[Array, " n_guards"]
    rate: Float[Array, " n_guards"]  # dg/dt along the flow
    # Are these three those of here, a boolean? Where it takes long to compile them, the
    # step finds out that begins at the start, or after a jump. Elsewhere they always
    # are, and this is `None`.
    known: Any
    jumped: Bool[Array, ""]  # is this the right limit at an event
    # Step size.
    t_next: Float[Array, ""]  # where the controller wants to go
    controller: PyTree
    guard_dt: Float[Array, ""]  # how far the guards can be foreseen
    approach: PyTree  # what the event method remembers
    # Zeno.
    last_fired: Float[Array, " n_guards"]
    quick_firings: Int[Array, " n_guards"]
    # Outcome.
    num_events: Int[Array, ""]
    num_steps: Int[Array, ""]
    num_accepted: Int[Array, ""]
    guard_end: Int[Array, ""]
    result: RESULTS  # pyright: ignore
    done: Bool[Array, ""]


class Attempt(eqx.Module):
    """One solver step, what the controller says of it, and the guards over it."""

    dt: Float[Array, ""]
    t1: Float[Array, ""]
    step: StepResult
    finite: Bool[Array, ""]
    keep: Bool[Array, ""]
    failed: Bool[Array, ""]
    t_next: Float[Array, ""]
    controller: PyTree
    g: Float[Array, " n_guards"]
    rate: Float[Array, " n_guards"]
    g_check: Float[Array, "points n_guards"]


def run(loop: "AbstractLoop", x0, mode0) -> Tape:
    """Simulates, and returns the tape."""
    t0, t1, settings = loop.t0, loop.t1, loop.settings
    states = Packer(jax.eval_shape(lambda: loop.start(x0, mode0)))
    rows = Packer(Row(t0, t0, t0, x0, x0, mode0, jnp.asarray(0, jnp.int32)))
    # Of all lanes together, and so not in `packed`: how many iterations there were, how
    # many rows, and whether a lane is not done.
    counters = lambda i, row, s: jnp.stack(
        [jnp.asarray(n, jnp.int32) for n in (i, row, eqxi.unvmap_any(~s.done))]
    )

    def cond(carry):
        (i, _, running), *_ = carry
        return (i < settings.max_steps) & (running > 0)

    def body(carry):
        before, packed, table, meter = carry
        _, row, running = before

        def iterate():
            i, row, _ = before
            state, entry = loop.iterate(states, rows, packed)
            new, did = states.unpack(state), rows.unpack(entry)
            # A row in which no lane did anything is written over.
            wrote = eqxi.unvmap_any((did.dt > 0) | (did.event >= 0))
            return counters(i + 1, row + wrote, new), state, entry

        # What reads and writes the tape stays outside of it.
        after, state, entry = compute_if(
            running > 0, iterate, (before, packed, rows.zeros())
        )
        table = tuple(
            lax.dynamic_update_index_in_dim(buffer, value, row, 0)
            for buffer, value in zip(table, entry, strict=True)
        )
        span = jnp.where(t1 > t0, t1 - t0, 1)
        progress = (states.unpack(state).t - t0) / span
        meter = settings.progress_meter.step(meter, progress)
        return after, state, table, meter

    def begin():
        state = loop.start(x0, mode0)
        return counters(0, 0, state), states.pack(state)

    nothing = jnp.zeros((3,), jnp.int32), states.zeros()
    meter = settings.progress_meter.init()
    # Not the loop as well: XLA leaves out a tape that nobody reads, but not from there.
    total, packed = compute_if(None, begin, nothing)
    # Not `lax.empty`, which `jax.vmap` would batch although nothing in it is.
    zero = later_zero(total[0])
    table = tuple(
        jnp.full((settings.max_steps, size), zero, dtype)
        for size, dtype in rows.sizes()
    )
    total, packed, table, meter = lax.while_loop(
        cond, body, (total, packed, table, meter)
    )
    settings.progress_meter.close(meter)
    num_rows = total[1]
    state = states.unpack(packed)
    recorded = rows.unpack(table)
    t = jnp.where(jnp.arange(settings.max_steps) < num_rows, recorded.t, jnp.inf)
    return Tape(
        table=table,
        t=t,
        dt=recorded.dt,
        x=recorded.x,
        x_pre=recorded.x_pre,
        mode=recorded.mode,
        event=recorded.event,
        rate=recorded.rate,
        t_event=t + recorded.dt,
        num_rows=num_rows,
        t_end=state.t,
        x_end=state.x,
        mode_end=state.mode,
        guard_end=state.guard_end,
        result=choose(state.done, state.result, RESULTS.max_steps_reached),
        num_events=state.num_events,
        num_steps=state.num_steps,
        num_accepted=state.num_accepted,
        corner_tol=loop.corner_tol,
        smooth=jnp.asarray(True),
        projects=loop.projects,
    )


class AbstractLoop(abc.ABC):
    """One iteration of the loop, for one lane; a subclass for each event method."""

    corner_tol: Float[Array, ""]  # an absolute time
    projects: bool  # are rows with an event Euler steps

    def __init__(self, system: FlatSystem, t0, t1, settings: Settings):
        self.system = system
        self.t1 = t1
        self.t0 = t0
        self.settings = settings
        # Tolerances in time.
        self.eps = jnp.finfo(t0.dtype).eps
        self.scale = jnp.maximum(jnp.maximum(jnp.abs(t0), jnp.abs(t1)), t1 - t0)
        self.same_time = SAME_TIME * self.eps * self.scale
        self.looks_later = not self.projects and can_look(settings.solver, system)

    @abc.abstractmethod
    def first_approach(self) -> PyTree:
        """What the event method remembers, at the start."""

    @abc.abstractmethod
    def due(self, s: State) -> Bool[Array, ""]:
        """Does a guard fire here and now?"""

    @abc.abstractmethod
    def iterate(self, states: Packer, rows: Packer, packed) -> tuple[Any, Any]:
        """From the packed state to the next one, and a packed row of what was done."""

    def start(self, x0, mode0) -> State:
        t0, n_guards = self.t0, self.system.n_guards
        t_next, controller = self.start_controller(t0, x0, mode0)
        false = jnp.asarray(False)
        zero, none = jnp.asarray(0, jnp.int32), jnp.asarray(-1, jnp.int32)
        inf = jnp.asarray(jnp.inf, t0.dtype)
        interval = (self.t1 >= t0) & jnp.isfinite(t0) & jnp.isfinite(self.t1)
        result = choose(interval, RESULTS.successful, RESULTS.invalid_interval)
        unwatched = jnp.zeros((n_guards,), x0.dtype)
        state = State(
            t=t0,
            x=x0,
            flow=jnp.zeros_like(x0),
            mode=mode0,
            g=unwatched,
            rate=unwatched,
            known=false if self.looks_later else None,
            jumped=false,
            t_next=t_next,
            controller=controller,
            guard_dt=inf,
            approach=self.first_approach(),
            last_fired=jnp.full_like(unwatched, -jnp.inf),
            quick_firings=jnp.zeros((n_guards,), jnp.int32),
            num_events=zero,
            num_steps=zero,
            num_accepted=zero,
            guard_end=none,
            result=result,
            done=result != RESULTS.successful,
        )
        if self.looks_later:
            return state
        return self.judged(state, self.look(t0, x0, mode0), ~false)

    def arrived(self, s: State, new: Bool[Array, ""]) -> State:
        """The state after a jump, where that is `new`, looked at."""
        if self.looks_later:
            return dataclasses.replace(s, known=s.known & ~new)
        here = lambda: self.look(s.t, s.x, s.mode)
        return self.judged(s, cond_any(new, here, lambda: (s.flow, s.g, s.rate)), new)

    def look(self, t, x, mode):
        flow = self.system.flow(t, x, mode)
        return flow, *self.system.guard_rates(t, x, mode, flow)

    def judged(self, s: State, here, new: Bool[Array, ""]) -> State:
        """The state, where it is `new` with what was found there. Is that finite, and
        the end?"""
        flow, g, rate = where(new, here, (s.flow, s.g, s.rate))
        s = dataclasses.replace(s, flow=flow, g=g, rate=rate)
        finite = all_of(jnp.isfinite(jnp.concatenate([s.x, flow, g])))
        result = first(s.result, RESULTS.nonfinite_state, new & ~finite)
        failed = result != RESULTS.successful
        done = s.done | (new & (failed | ((s.t >= self.t1) & ~self.due(s))))
        # The guard that led here is to blame only for what is wrong here.
        guard_end = jnp.where(new & ~failed, -1, s.guard_end)
        return dataclasses.replace(s, result=result, done=done, guard_end=guard_end)

    def start_controller(self, t, x, mode):
        settings = self.settings
        terms = term(self.system, mode)
        t_next, controller = settings.controller.init(
            terms,
            t,
            self.t1,
            x,
            settings.dt0,
            None,
            settings.solver.func,
            settings.solver.error_order(terms),
        )
        controller = jtu.tree_map(jnp.asarray, controller)
        return jnp.asarray(t_next, t.dtype), controller

    def aim(self, s: State) -> Float[Array, ""]:
        """Where the step size controller and the guards let the next step end."""
        return jnp.minimum(jnp.minimum(s.t_next, s.t + s.guard_dt), self.t1)

    def attempt(self, s: State, dt, t1) -> tuple[State, Attempt]:
        """A step of length `dt` to `t1`, and the state, of which all is known then."""
        solver, system = self.settings.solver, self.system
        ends = None
        if self.looks_later:
            here = s.flow, s.g, s.rate
            step, here, ends = looking_step(
                solver, system, s.t, dt, s.x, s.mode, here, s.known | s.done
            )
            new = ~s.known & ~s.done
            s = dataclasses.replace(self.judged(s, here, new), known=s.known | new)
        else:
            step = solver_step(solver, system, s.t, dt, s.x, s.flow, s.mode)

        def guards(system, t, dt, t1, step, mode, ends):
            def at(point):
                x = step.interpolation.evaluate(point)
                return system.guards(t + point * dt, x, mode)

            if ends is None:
                ends = system.guard_rates(t1, step.x, mode, step.flow)
            return *ends, jax.vmap(at)(jnp.asarray(CHECK_POINTS, dt.dtype))

        nothing = s.g, s.g, jnp.stack([s.g] * len(CHECK_POINTS))
        g, rate, g_check = computed_once(
            guards, nothing, system, s.t, dt, t1, step, s.mode, ends
        )
        state = jnp.concatenate([step.x, step.flow])
        finite = step.okay & all_of(jnp.isfinite(state))
        watched = jnp.isfinite(jnp.stack([g, rate, *g_check])).all(axis=0)
        finite = finite & all_of(watched)
        keep, t_next, controller, failed = self.adapt(s, t1, step, finite)
        return s, Attempt(
            dt, t1, step, finite, keep, failed, t_next, controller, g, rate, g_check
        )

    def step_taken(self, s: State, a: Attempt, accept) -> tuple[State, Row]:
        """What a step changes where it is accepted, and its row."""
        new = dataclasses.replace(
            s,
            t=jnp.where(accept, a.t1, s.t),
            x=jnp.where(accept, a.step.x, s.x),
            flow=jnp.where(accept, a.step.flow, s.flow),
            g=jnp.where(accept, a.g, s.g),
            rate=jnp.where(accept, a.rate, s.rate),
            jumped=s.jumped & ~accept,
            num_steps=s.num_steps + ~s.done,
            num_accepted=s.num_accepted + accept,
        )
        row = Row(
            t=s.t,
            dt=jnp.where(accept, a.dt, 0),
            rate=jnp.ones_like(s.t),
            x=s.x,
            x_pre=a.step.x,
            mode=s.mode,
            event=jnp.asarray(-1, jnp.int32),
        )
        return new, row

    def outcome(self, s: State, rejected, a: Attempt, t_next, guard_dt):
        """Is there no going on after a step that was rejected?"""
        stuck = rejected & ~self.resolvable(s.t, t_next, guard_dt)
        stuck = stuck | (
            rejected & (a.failed | ((not self.settings.adaptive) & ~a.keep))
        )
        dead_end = choose(a.finite, RESULTS.dt_min_reached, RESULTS.nonfinite_state)
        return first(s.result, dead_end, stuck)

    def resolvable(self, t, t_next, guard_dt):
        least = self.eps * (jnp.abs(t) + self.eps * self.scale)
        return jnp.minimum(t_next - t, guard_dt) > least

    def adapt(self, s: State, t1, step: StepResult, finite):
        """Asks the step size controller."""
        error = step.error
        if self.settings.adaptive and error is not None:
            error = jnp.where(finite, error, jnp.inf)
        keep, _, t_next, _, state, result = self.settings.controller.adapt_step_size(
            s.t,
            t1,
            s.x,
            step.x,
            None,
            error,
            self.settings.solver.error_order(term(self.system, s.mode)),
            s.controller,
        )
        failed = result != dfx.RESULTS.successful
        t_next = jnp.asarray(t_next, s.t.dtype)
        return keep & finite, t_next, jtu.tree_map(jnp.asarray, state), failed

    def heed(self, s: State, a: Attempt, taken, refused):
        """Where the controller wants to go after a step that was taken, or `refused` by
        it; otherwise as before. One that knows nothing of errors is heard where it
        wanted to go, not at events between."""
        if self.settings.adaptive:
            heard = taken | refused
        else:
            heard = taken & (a.t1 >= s.t_next - self.same_time)
        return where(heard, (a.t_next, a.controller), (s.t_next, s.controller))

    def judge(self, s: State, event, guard, t):
        """May this event happen? Too many events, or an accumulation, end the lane."""
        full = event & (s.num_events >= self.settings.max_events)
        result = choose(full, RESULTS.max_events_reached, s.result)
        fired = event & (jnp.arange(s.g.shape[0]) == guard)
        quick = t - s.last_fired <= _ZENO_GAP * self.eps * self.scale
        count = jnp.where(
            fired, jnp.where(quick, s.quick_firings + 1, 0), s.quick_firings
        )
        zeno = event & any_of(count >= _ZENO_COUNT)
        result = choose(zeno, RESULTS.zeno, result)
        return result, count, jnp.where(fired, t, s.last_fired)


def first(result, new, happened):
    """`new` where it happened and nothing had gone wrong before."""
    return choose(happened & (result == RESULTS.successful), new, result)
