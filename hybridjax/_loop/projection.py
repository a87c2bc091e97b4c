"""Events without root finding: what `Project` does in one iteration of the loop.

An iteration ends in one of these ways, lane by lane:

- *project*: guards are near; an Euler step leads to the one that is met first, and it
  fires;
- *accept*: a solver step is good, and no guard is passed in it;
- *reject*: the error is too large, a guard is not represented well enough, or a guard
  would be passed; the next step is shorter.

Anderson and Revzen, Section 3. A guard is `g = -h`: their event functions increase.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._events.cubic import stays_above
from .._events.firing import crossing_times
from .._jax.branch import cond_any, where
from .._jax.pack import Packer
from .._jax.reduce import any_of
from .loop import AbstractLoop
from .results import RESULTS
from .state import first, select, State
from .tape import Row


# The first-order impact map is trusted where neither the rate of the guard changes by
# more than this share of it on the way, nor the guard by more than half as much of it
# beyond what was expected. (A half would be that of a parabola that touches zero.)
_TRUST = 0.25

# Solver steps stay above this share of the neighbourhood of a guard, or of what is left
# of it. If they do not, the next one aims at so many times as much.
_FLOOR = 0.5
_AIM = 1.5


class ProjectionLoop(AbstractLoop):
    projects = True

    def __init__(self, system, t0, t1, settings):
        super().__init__(system, t0, t1, settings)
        method, n_guards = settings.event_method, system.n_guards
        self.near = method.thresholds(n_guards, t0.dtype)

    def first_approach(self) -> Bool[Array, " n_guards"]:
        """The guards that are met in this very instant, after that which fired last."""
        return jnp.zeros((self.system.n_guards,), bool)

    def times(self, s: State) -> Float[Array, " n_guards"]:
        times = crossing_times(s.g, s.rate)
        return jnp.where(s.approach & jnp.isfinite(times), 0, times)

    def due(self, s: State) -> Bool[Array, ""]:
        """Is a guard near, and is it met before the simulation, or a step that has to
        end at a given time?"""
        near = (s.g <= self.near) & (s.rate < 0)
        time = jnp.min(self.times(s), initial=jnp.inf)
        until = self.t1 if self.may_delay else jnp.minimum(s.t_next, self.t1)
        return any_of(near) & (s.t + time <= until + self.same_time)

    def iterate(self, states: Packer, rows: Packer, packed):
        s: State = states.unpack(packed)
        due = ~s.done & self.due(s)
        none = jnp.asarray(-1, jnp.int32)
        zero, one = jnp.zeros_like(s.t), jnp.ones_like(s.t)
        no = jnp.zeros_like(s.done)
        start = Row(s.t, zero, one, s.x, s.x, s.mode, none, no, no)
        stay = packed, rows.pack(start)
        if self.system.n_guards == 0:
            return self.advance(states, rows, packed)

        def project():
            s: State = states.unpack(packed)
            new, row, trusted = self.project(s, due)
            # Where it is not to be trusted, nothing has happened yet.
            new, row = where(trusted, (states.pack(new), rows.pack(row)), stay)
            return new, row, trusted

        new, row, projected = cond_any(due, project, lambda: (*stay, due))
        step = ~s.done & ~projected

        def advance():
            return where(step, self.advance(states, rows, packed), (new, row))

        return cond_any(step, advance, lambda: (new, row))

    def project(self, s: State, due) -> tuple[State, Row, Bool[Array, ""]]:
        """Through the guard that is met first; and whether that, or the failure in
        which it ends, is to be trusted."""
        times = self.times(s)
        guard = jnp.argmin(times).astype(jnp.int32)
        # Rows without duration belong to the instant of the event before.
        least = jnp.where(s.jumped & ~s.approach[guard], self.same_time, 0)
        tau = jnp.where(due, jnp.maximum(times[guard], least), 0)
        t = jnp.minimum(s.t + tau, self.t1)
        tau = t - s.t
        x_pre = s.x + tau * s.flow
        flow = self.system.flow(t, x_pre, s.mode)
        g_pre, rate_pre = self.system.guard_rates(t, x_pre, s.mode, flow)
        g_pre, rate_pre, rate = g_pre[guard], rate_pre[guard], s.rate[guard]
        trust = jnp.abs(rate_pre - rate) <= _TRUST * jnp.abs(rate)
        # What cannot be told from zero.
        tiny = jnp.sqrt(self.eps) * self.near[guard]
        unexpected = jnp.abs(g_pre - (s.g[guard] + tau * rate))
        trust = trust & (unexpected <= _TRUST / 2 * jnp.abs(tau * rate) + tiny)

        x, mode = self.system.jump(t, x_pre, s.mode, guard)
        flow = self.system.flow(t, x, mode)
        g, rates = self.system.guard_rates(t, x, mode, flow)
        beyond = self.system.guard_rates(t, x, s.mode, flow)[1][guard]
        # At the guard, as far as can be told, and still it is not met.
        stuck = s.g[guard] <= tiny
        not_live = jnp.where(trust, ~(beyond < 0), stuck)

        # Where it is not trusted (a NaN is not), there is no event to be judged.
        result, firings = self.judge(s, due & trust, guard, t)
        finite = jnp.isfinite(jnp.concatenate([x, flow, g, rates])).all()
        result = first(result, RESULTS.nonfinite_state, trust & ~finite)
        result = first(result, RESULTS.not_live, not_live)
        failed = result != RESULTS.successful
        event = due & ~failed
        tied = jnp.abs(times - times[guard]) <= self.corner_tol
        tied = tied & (jnp.arange(times.shape[0]) != guard)
        new = dataclasses.replace(
            s,
            t=t,
            x=x,
            flow=flow,
            mode=mode,
            g=g,
            rate=rates,
            jumped=jnp.ones_like(s.jumped),
            t_next=self.restarted(t, s.t_next + tau if self.may_delay else s.t_next),
            guard_dt=jnp.full_like(s.guard_dt, jnp.inf),
            approach=tied,
            firings=firings,
            to_fire=self.to_fire(s, guard),
            num_events=s.num_events + 1,
            num_accepted=s.num_accepted + 1,
        )
        new = where(event, new, s)
        # Others that are met in this instant still are.
        stops = self.stops(new) & ~any_of(new.approach & (self.times(new) == 0))
        result = first(result, RESULTS.event_occurred, stops)
        new = dataclasses.replace(
            new,
            num_steps=s.num_steps + 1,
            guard_end=jnp.where(failed, guard, s.guard_end),
            result=result,
            done=failed | stops | ((new.t >= self.t1) & ~self.due(new)),
        )
        row = Row(
            t=s.t,
            dt=jnp.where(event, tau, 0),
            rate=jnp.where(event, rate_pre, 1),
            x=s.x,
            x_pre=x_pre,
            mode=s.mode,
            event=jnp.where(event, guard, -1).astype(jnp.int32),
            # It comes from outside to all surfaces, and leaves none of them unmet.
            inside=jnp.zeros_like(event),
            shared=jnp.zeros_like(event),
        )
        return new, row, due & (trust | failed)

    def advance(self, states: Packer, rows: Packer, packed):
        """A step of the solver, that stays off the guards."""
        s: State = states.unpack(packed)
        t_aim = jnp.maximum(self.aim(s), s.t)
        s, a = self.attempt(s, jnp.where(s.done, 0, t_aim - s.t), t_aim)
        dt, keep, active = a.dt, a.keep, ~s.done
        floor = _FLOOR * jnp.clip(s.g, 0, self.near)
        clear, shorter, longer = stays_above(
            floor, _AIM * floor, s.g, dt * s.rate, a.g, dt * a.rate, a.g_check
        )
        # Below this length, shortening a step tells nothing more.
        clear = clear | (dt <= 64 * self.same_time)
        accept = active & keep & clear
        shorten = active & keep & ~clear
        start = dataclasses.replace(
            s, num_steps=s.num_steps + active, approach=s.approach & ~active
        )
        accepted = self.accepted(start, a, dt * longer)
        if self.may_delay:
            # A step that the guards made short must not make those after it short too.
            short = a.t1 < s.t_next - self.same_time
            enough = jnp.maximum(accepted.t_next, a.t1 + 0.5 * (s.t_next - s.t))
            t_next = jnp.where(short, enough, accepted.t_next)
            accepted = dataclasses.replace(accepted, t_next=t_next)
        new = select(
            start,
            (accept, accepted),
            (active & ~keep, self.rejected(start, a)),
            (shorten, self.shortened(start, a, dt * shorter)),
        )
        new = self.resumed(new, a, accept)
        new = self.ended(new, (new.t >= self.t1) & ~self.due(new))
        return states.pack(new), rows.pack(self.row(s, a, accept))
