"""What all event methods have in common in one iteration of the loop."""

import abc
import dataclasses
from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._events.cubic import CHECK_POINTS
from .._events.firing import max_firings, same_time
from .._events.locate import corner_tolerance
from .._jax.branch import computed_once, cond_any, where
from .._jax.pack import Packer
from .._jax.reduce import all_of, any_of
from .._steps.step import can_look, looking_step, solver_step, StepResult, term
from .._systems.flat import FlatSystem
from .results import choose, RESULTS
from .state import Attempt, Firings, first, Settings, State
from .tape import Row


# An interval of less than so many eps of the largest time is not divided into steps.
LEAST_INTERVAL = 1024

# Steps shorter than this many times that are not judged by cubics, whose values are
# those of rounded times: only the signs of the guards at their ends count.
_SHORT = 8


class AbstractLoop(abc.ABC):
    """One iteration of the loop, for one lane; a subclass for each event method."""

    corner_tol: Float[Array, ""]  # an absolute time
    projects: bool  # are rows with an event Euler steps

    def __init__(self, system: FlatSystem, t0, t1, settings: Settings):
        self.system = system
        self.t1 = t1
        self.t0 = t0
        self.settings = settings
        # Tolerances in time: those of all pieces are the same.
        self.eps = jnp.finfo(t0.dtype).eps
        begin, end = settings.interval
        self.scale = jnp.maximum(jnp.abs(begin), jnp.abs(end))
        self.same_time = same_time(begin, end)
        corner_tol = corner_tolerance(settings.event_method.corner_tol, t0.dtype)
        self.corner_tol = jnp.maximum(corner_tol * (end - begin), self.same_time)
        self.short = _SHORT * self.same_time
        # Others want their steps to end at given times.
        self.may_delay = isinstance(settings.controller, dfx.PIDController)
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
        resolved = self.settings.resolved
        result = choose(resolved, RESULTS.successful, RESULTS.unresolved_interval)
        result = choose(interval, result, RESULTS.invalid_interval)
        result = first(result, RESULTS.invalid_times, ~self.valid_times())
        if self.settings.dt0 is not None:
            result = first(result, RESULTS.dt_min_reached, ~(self.settings.dt0 > 0))
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
            later=jnp.zeros((n_guards,), bool),
            t_next=t_next,
            controller=controller,
            guard_dt=inf,
            approach=self.first_approach(),
            firings=Firings(
                last=jnp.full_like(unwatched, -jnp.inf),
                gap=unwatched,
                close=jnp.zeros((n_guards,), jnp.int32),
            ),
            blurred=zero,
            numb=jnp.zeros((n_guards,), jnp.int32),
            to_fire=self.settings.terminal and self.settings.terminal[1],
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

    def valid_times(self) -> Bool[Array, ""]:
        valid = jnp.asarray(True)
        for ts in self.settings.unknown_times:
            ts = ts.astype(self.t0.dtype)
            inside = (ts >= self.t0 - self.same_time) & (ts <= self.t1 + self.same_time)
            valid = valid & inside.all() & (ts[1:] >= ts[:-1]).all()
        return valid

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
        stays = ~self.due(s)
        result = first(result, RESULTS.event_occurred, new & stays & self.stops(s))
        done = s.done | (new & (failed | ((s.t >= self.t1) | self.stops(s)) & stays))
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

    def least_dt(self, t) -> Float[Array, ""]:
        """The shortest step after which the time is another one."""
        return 2 * self.eps * (jnp.abs(t) + self.eps * self.scale)

    def aim(self, s: State) -> Float[Array, ""]:
        """Where the step size controller and the guards let the next step end; and what
        comes at a time that is known, unless that is here."""
        end = jnp.minimum(jnp.minimum(s.t_next, s.t + s.guard_dt), self.t1)
        if self.system.is_timed:
            time = self.system.next_time(s.t, s.x, s.mode).astype(end.dtype)
            ahead = time > s.t + self.least_dt(s.t)
            end = jnp.where(ahead, jnp.minimum(end, time), end)
        return end

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
        adapted = self.adapt(s, t1, step, finite)
        return s, Attempt(
            dt, t1, step, finite, **adapted, g=g, rate=rate, g_check=g_check
        )

    #
    # What may come of it
    #

    def accepted(self, s: State, a: Attempt, guard_dt) -> State:
        """The step is good, and no guard is crossed in it."""
        t_next, controller = self.heed(s, a)
        return dataclasses.replace(
            s,
            t=a.t1 if a.t_after is None else a.t_after,
            x=a.step.x,
            flow=a.step.flow,
            g=a.g,
            rate=a.rate,
            jumped=jnp.zeros_like(s.jumped),
            t_next=t_next,
            controller=controller,
            guard_dt=guard_dt,
            blurred=jnp.zeros_like(s.blurred),
            num_accepted=s.num_accepted + 1,
        )

    def resumed(self, s: State, a: Attempt, accept) -> State:
        """The state after a step, looked at anew where the controller says that the
        vector field jumped at its end."""
        return s if a.made_jump is None else self.arrived(s, accept & a.made_jump)

    def rejected(self, s: State, a: Attempt) -> State:
        """The step size controller wants a shorter one."""
        if self.settings.adaptive:
            s = dataclasses.replace(s, t_next=a.t_next, controller=a.controller)
            return self.shortened(s, a, s.guard_dt)
        return self.stuck(s, a, jnp.asarray(True))

    def shortened(self, s: State, a: Attempt, guard_dt) -> State:
        """The guards want a shorter one."""
        least = self.least_dt(s.t)
        s = dataclasses.replace(
            s,
            t_next=jnp.maximum(s.t_next, s.t + least),
            guard_dt=jnp.maximum(guard_dt, least),
        )
        return self.stuck(s, a, a.failed | (a.dt <= 2 * least))

    def stuck(self, s: State, a: Attempt, stuck) -> State:
        dead_end = choose(a.finite, RESULTS.dt_min_reached, RESULTS.nonfinite_state)
        return dataclasses.replace(s, result=first(s.result, dead_end, stuck))

    def ended(self, s: State, arrived) -> State:
        failed = s.result != RESULTS.successful
        return dataclasses.replace(s, done=s.done | failed | arrived)

    def row(self, s: State, a: Attempt, accept) -> Row:
        """Of a step, where there is no event."""
        return Row(
            t=s.t,
            dt=jnp.where(accept, a.dt, 0),
            rate=jnp.ones_like(s.t),
            x=s.x,
            x_pre=a.step.x,
            mode=s.mode,
            event=jnp.asarray(-1, jnp.int32),
            inside=jnp.zeros_like(accept),
            shared=jnp.zeros_like(accept),
        )

    #
    # Parts
    #

    def stops(self, s: State) -> Bool[Array, ""]:
        """Has a terminal event happened?"""
        return jnp.asarray(False) if s.to_fire is None else s.to_fire <= 0

    def to_fire(self, s: State, guard):
        """After `guard` fired."""
        if self.settings.terminal is None:
            return None
        return s.to_fire - self.settings.terminal[0][guard]

    def adapt(self, s: State, t1, step: StepResult, finite) -> dict[str, Any]:
        """Asks the step size controller."""
        adapt = self.settings.controller.adapt_step_size
        error = step.error
        if self.settings.adaptive and error is not None:
            error = jnp.where(finite, error, jnp.inf)
        keep, t_after, t_next, made_jump, state, result = adapt(
            s.t,
            t1,
            s.x,
            step.x,
            None,
            error,
            self.settings.solver.error_order(term(self.system, s.mode)),
            s.controller,
        )
        jumps = not isinstance(made_jump, bool)
        return dict(
            keep=keep & finite,
            failed=result != dfx.RESULTS.successful,
            t_next=jnp.asarray(t_next, s.t.dtype),
            t_after=jnp.asarray(t_after, s.t.dtype) if jumps else None,
            made_jump=made_jump if jumps else None,
            controller=jtu.tree_map(jnp.asarray, state),
        )

    def heed(self, s: State, a: Attempt):
        """Where the controller wants to go after a step that was taken. One that knows
        nothing of errors is heard where it wanted to go, not at events between."""
        if self.settings.adaptive:
            return a.t_next, a.controller
        there = a.t1 >= s.t_next - self.same_time
        return where(there, (a.t_next, a.controller), (s.t_next, s.controller))

    def restarted(self, t, t_next):
        """Where the first step after an event at `t` is to end, if the controller wants
        that to be `t_next`."""
        dt0 = self.settings.dt0
        # Steps without an error control lie on a grid, which goes on.
        if dt0 is None or not self.settings.adaptive:
            return t_next
        return t + dt0 if self.may_delay else jnp.minimum(t_next, t + dt0)

    def judge(self, s: State, event, guard, t):
        """May this event happen? Too many events, or an accumulation, end the lane."""
        full = event & (s.num_events >= self.settings.max_events)
        result = choose(full, RESULTS.max_events_reached, s.result)
        fired = event & (jnp.arange(s.g.shape[0]) == guard)
        before = s.firings
        gap = t - before.last
        # If the gaps go on to shrink as they do, all that follow take so long. What is
        # at rest up to rounding fires in each of the shortest steps.
        shrunk = before.gap - gap
        rest = gap * gap / jnp.where(shrunk > 0, shrunk, 1)
        close = (shrunk > 0) & (rest <= self.corner_tol)
        close = close | (gap <= 2 * self.short)
        firings = Firings(
            last=jnp.where(fired, t, before.last),
            gap=jnp.where(fired, gap, before.gap),
            close=jnp.where(fired, jnp.where(close, before.close + 1, 0), before.close),
        )
        endless = any_of(fired & (firings.close >= max_firings(self.system.n_guards)))
        return choose(endless, RESULTS.zeno, result), firings
