"""Event location: what `Locate` does in one iteration of the loop.

An iteration has one of these outcomes, lane by lane:

- *accept*: the step is good, and no guard is crossed in it;
- *reject*: the error is too large; the step size controller chooses a shorter one;
- *shorten*: a guard is not represented well enough; the next step is shorter;
- *aim*: a guard is crossed; the next step is to end there, the lane is landing;
- *correct*: the step did not end on the guard, which is aimed at once more;
- *give up*: nothing is crossed there; a step of half the length follows;
- *land*: the step ended on the guard, which fires (so may one that was not aimed at it,
  but at a time that is known beforehand);
- *fire*: a guard fires at the start of the step, which is thrown away.

Of a lane that goes on, the next state has a later time, one more event, or another,
shorter, step before it: it never stands still. That step leads to a later time, and
`guard_dt` is longer than zero. Events without time between them, and steps too short to
judge a guard, are counted. `tests/loop/test_state_machine.py` looks at every iteration.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._events.cubic import clearly_positive, contradicts
from .._events.firing import (
    candidates,
    comes_later,
    fires_at_once,
    instant_tol,
    is_inside,
    lateness,
    next_to_fire,
)
from .._events.locate import corner_tolerance
from .._jax.branch import cond_any, of_a_lane_that, settled, where
from .._jax.pack import Packer
from .._jax.reduce import any_of, first_least
from .crossing import Found, search
from .loop import AbstractLoop
from .results import RESULTS
from .state import Attempt, first, select, State
from .tape import Row


# A crossing time is refined by whole solver steps until Newton's correction, delta, is
# small; the rest is made up by a step along the flow. As steps dt are no longer than
# the flow takes to bend, its error is a time of delta^2 / dt at most (and delta / dt of
# that of the step): less than so many eps of the step, or than this share of what
# counts as one instant (by default, if more is said to).
_LANDING, _OF_INSTANT = 256, 0.01

# It is never larger than this share of the step.
_LAST = 1 / 64

# So many steps in a row that are too short to judge a guard do not lead away from where
# it cannot be judged. A kink or a jump of a guard is passed in one of them.
_MAX_BLURRED = 8

# So many steps in a row in which a guard contradicts its rates see what it is rounded
# to. A jump of a guard is passed in one of them, and a few more, each ten times longer,
# show again how it moves.
_MAX_NUMB = 16

# A flight that rises by so many roundings of its guard at most is that of what rests.
_ROUNDINGS = 64

# Landings are corrected backwards by this share of their length at most.
_BACK = 0.99

# Corrections are taken to shrink by this factor at least: those of u³ do by 2/3.
_SLOWEST = 0.75

# Landings that do not converge within so many steps are taken as they are.
_MAX_LANDINGS = 8

# Where a guard falls more slowly than on the way to a landing, by this factor, that is
# made from half the way, and so on, so many times: its rate may be mostly an error.
_SLOWER, _MAX_HALVED = 2, 6


class _Landing(eqx.Module):
    """The guard that the next step is to end on."""

    active: Bool[Array, ""]
    dt: Float[Array, ""]
    guard: Int[Array, ""]
    turn: Bool[Array, ""]  # is it the peak of a guard that stays below zero
    attempts: Int[Array, ""]
    delta: Float[Array, ""]  # by which it was corrected last
    # Of a landing that may be an error: how often it was made from half the way, and at
    # which time it was seen last. What is passed without an event was one.
    halved: Int[Array, ""]
    seen: Float[Array, ""]


class _Contact(NamedTuple):
    """Where a step that was to end on a guard is."""

    touches: Bool[Array, ""]  # is it there
    again: Bool[Array, ""]  # if not: is it worth another attempt
    halves: Bool[Array, ""]  # or one from half the way
    halved: Int[Array, ""]  # how often it was made from there
    delta: Float[Array, ""]  # how much later the guard is zero
    guard: Int[Array, ""]  # which one, of those that were crossed
    turns: Bool[Array, ""]  # does it turn there, inside its set


class Outcome(NamedTuple):
    """One of these is true, unless the lane is done."""

    accept: Bool[Array, ""]
    reject: Bool[Array, ""]
    shorten: Bool[Array, ""]
    aim: Bool[Array, ""]
    correct: Bool[Array, ""]
    give_up: Bool[Array, ""]
    land: Bool[Array, ""]
    fire: Bool[Array, ""]


class LandingLoop(AbstractLoop):
    projects = False

    def __init__(self, system, t0, t1, settings):
        super().__init__(system, t0, t1, settings)
        self.grazing_tol = settings.event_method.grazing_tolerance(t0.dtype)
        begin, end = settings.interval
        default = corner_tolerance(None, t0.dtype) * (end - begin)
        instant = jnp.minimum(self.corner_tol, default)
        # Without an error control nothing is known of what steps are off by.
        self.landing_tol = _OF_INSTANT * instant if settings.adaptive else 0

    def first_approach(self) -> _Landing:
        none = jnp.asarray(0, jnp.int32)
        false = jnp.asarray(False)
        zero = jnp.zeros_like(self.t0)
        inf = zero + jnp.inf
        return _Landing(false, zero, none, false, none, inf, none, -inf)

    def due(self, s: State) -> Bool[Array, ""]:
        return any_of(self.fires_now(s))

    def fires_now(self, s: State) -> Bool[Array, " n_guards"]:
        """Guards that fire where the lane stands: in the guard set, and not leaving it.

        After a jump, guards that would be crossed within the corner tolerance belong to
        the same instant.
        """
        within = instant_tol(self.corner_tol, self.same_time, s.later)
        tol = jnp.where(s.jumped, within, self.same_time)
        firing = fires_at_once(s.g, s.rate, tol)
        if self.settings.terminal is not None:
            # The last of its events, which need not lead to where it is not watched.
            firing = firing & ~(self.settings.terminal[0] & self.stops(s))
        return firing

    def iterate(self, states: Packer, rows: Packer, packed):
        s: State = states.unpack(packed)
        landing, t_aim = s.approach, self.aim(s)
        dt = jnp.where(landing.active, landing.dt, t_aim - s.t)
        dt = jnp.where(s.done, 0, dt)
        s, a = self.attempt(s, dt, jnp.where(landing.active, s.t + dt, t_aim))
        calm, new, row = self.glide(s, a)
        glided = (states.pack(new), rows.pack(row))

        attempts = Packer(a)
        attempt = attempts.pack(a)
        packed = states.pack(s) if self.looks_later else packed

        def eventful():
            new, row = self.manoeuvre(states.unpack(packed), attempts.unpack(attempt))
            return where(calm, glided, (states.pack(new), rows.pack(row)))

        if self.system.n_guards > 0:
            glided = cond_any(~calm, eventful, lambda: glided)
        return glided

    def glide(self, s: State, a: Attempt) -> tuple[Bool[Array, ""], State, Row]:
        """What comes of the step where no guard is near; and where that is so."""
        clear, factor = clearly_positive(
            s.g, a.dt * s.rate, a.g, a.dt * a.rate, a.g_check, self.grazing_tol
        )
        busy = s.approach.active | self.due(s)
        calm = s.done | (~busy & (clear | ~a.keep))
        accept, reject = ~s.done & a.keep, ~s.done & ~a.keep
        calm, accept, reject, factor = settled((calm, accept, reject, factor))
        start = dataclasses.replace(s, num_steps=s.num_steps + ~s.done)
        new = select(
            start,
            (accept, self.felt(self.accepted(start, a, a.dt * factor), s, a)),
            (reject, self.rejected(start, a)),
        )
        # The guards are positive at the end of this step: none fires there.
        new = self.ended(new, accept & (a.t1 >= self.t1))
        return calm, self.resumed(new, a, accept), self.row(s, a, accept)

    def manoeuvre(self, s: State, a: Attempt) -> tuple[State, Row]:
        """What comes of the step where a guard is near, or fires."""
        firing = self.fires_now(s)
        fire = ~s.done & any_of(firing)
        moving = ~s.done & ~fire & ~s.approach.active
        checked = moving & a.keep
        found = search(s, a, checked, self.grazing_tol, self.short)
        contact = self.contact(s, a)
        o = self.decide(s, a, fire, found, contact)
        if self.system.is_timed:
            o, contact = self.arrival(a, found, o, contact)

        # The event, if there is one.
        event = o.fire | o.land
        latest = next_to_fire(firing, lateness(s.g, s.rate, self.rests(s)))
        guard = jnp.where(fire, latest, contact.guard)
        x_pre = jnp.where(o.land, a.step.x + contact.delta * a.step.flow, s.x)
        t_pre = jnp.minimum(jnp.where(o.land, a.t1 + contact.delta, s.t), self.t1)

        halves = o.give_up & contact.halves
        approach = dataclasses.replace(
            self.first_approach(),
            halved=contact.halved + halves,
            seen=jnp.where(halves, a.t1, s.approach.seen),
        )
        start = dataclasses.replace(
            s, approach=approach, num_steps=s.num_steps + ~s.done
        )
        start = self.touched(start, a, checked, found)
        longer, shorter = (
            a.dt * jnp.clip(found.factor, *limits) for limits in ((1, 10), (0.1, 0.7))
        )
        # Where the event happens, on its left.
        g = jnp.where(fire, s.g, a.g + contact.delta * a.rate)
        rates = jnp.where(fire, s.rate, a.rate)
        later = comes_later(g, rates, self.corner_tol)
        later = jnp.where(fire & s.jumped, s.later, later)
        result, firings = self.judge(start, event, guard, t_pre)
        happens = event & (result == RESULTS.successful)

        # Nearly all entries of the next state depend on these.
        decided = o, contact, event, happens, guard, t_pre, x_pre, longer, shorter
        decided, (guard_end, touched, result) = settled(
            (decided, (start.guard_end, start.result, result))
        )
        o, contact, event, happens, guard, t_pre, x_pre, longer, shorter = decided
        start = dataclasses.replace(start, guard_end=guard_end, result=touched)
        judged = dataclasses.replace(start, later=later, firings=firings, result=result)
        fired = self.fired(judged, happens, guard, t_pre, x_pre)
        new = select(
            start,
            (o.accept, self.passed(start, s, a, longer, found)),
            (o.reject, self.rejected(start, a)),
            (o.shorten, self.blunted(self.shortened(start, a, shorter), s, a, found)),
            (o.aim, self.aimed(start, found)),
            (o.correct, self.corrected(start, s.approach, a, contact)),
            (o.give_up, self.shortened(start, a, a.dt / 2)),
            (happens, select(fired, (o.land, self.landed(fired, s, a)))),
            (event & ~happens, self.refused(start, fired)),
        )
        new = self.ended(new, o.accept & (a.t1 >= self.t1) & ~self.due(new))
        new = self.resumed(self.arrived(new, happens), a, o.accept)

        # At a turn the guard is at rest, up to the error with which it was found. How
        # the time of that moves is a matter of second derivatives: there is no rule.
        rate = jnp.where(o.fire, s.rate, a.rate)[guard]
        rate = jnp.where(o.land & contact.turns, 0, rate)
        row = self.row(s, a, o.accept)
        row = dataclasses.replace(
            row,
            dt=jnp.where(o.land & happens, t_pre - s.t, row.dt),
            x_pre=jnp.where(o.accept, a.step.x, x_pre),
            event=jnp.where(happens, guard, -1).astype(jnp.int32),
            rate=jnp.where(happens, rate, 1),
            inside=happens & o.fire & is_inside(s.g, s.rate, self.corner_tol)[guard],
            shared=happens & self.shared(s, g, rates, o.fire, guard),
        )
        return new, row

    def decide(
        self, s: State, a: Attempt, fire, found: Found, contact: _Contact
    ) -> Outcome:
        going = ~s.done & ~fire
        landing, moving = going & s.approach.active, going & ~s.approach.active
        known = moving & a.keep & found.certain
        return Outcome(
            accept=known & ~found.crossed,
            reject=moving & ~a.keep,
            shorten=moving & a.keep & ~found.certain,
            aim=known & found.crossed,
            correct=landing & contact.again,
            give_up=landing & ~contact.touches & ~contact.again,
            land=landing & contact.touches,
            fire=fire,
        )

    def touched(self, s: State, a: Attempt, checked, found: Found) -> State:
        """Is a guard touched tangentially, or does it move less than it is rounded?"""
        blurred = checked & found.blurred & (s.blurred >= _MAX_BLURRED)
        touches = blurred | (checked & found.grazing)
        numb = found.unsure & (s.numb >= _MAX_NUMB)
        rounded = checked & any_of(numb) & ~touches
        guard = jnp.where(rounded, first_least(jnp.where(numb, 0, 1)), found.unclear)
        touches = touches | rounded
        # A flight of less than sqrt(eps) is no higher than rounding: it is at rest.
        since = s.t - s.firings.last[guard]
        resting = touches & (since <= jnp.sqrt(self.eps) * self.scale)
        # Nor is one that rises by no more than what is seen of it.
        dt = jnp.where(checked, a.dt, 1)
        speed = jnp.maximum(jnp.abs(s.rate), jnp.abs(a.rate))
        rise = since * (speed + since * jnp.abs(a.rate - s.rate) / dt)
        seen = _ROUNDINGS * jnp.maximum(jnp.abs(s.g), jnp.abs(a.g))
        resting = resting | (touches & (rise <= seen)[guard])
        return dataclasses.replace(
            s,
            guard_end=jnp.where(touches, guard, -1),
            result=first(
                first(s.result, RESULTS.zeno, resting), RESULTS.grazing, touches
            ),
        )

    def passed(
        self, start: State, s: State, a: Attempt, guard_dt, found: Found
    ) -> State:
        new = self.felt(self.accepted(start, a, guard_dt), s, a, found.unsure)
        blurred = jnp.where(found.blurred, s.blurred + 1, 0)
        return dataclasses.replace(new, blurred=blurred)

    def felt(self, new: State, s: State, a: Attempt, unsure: Any = False) -> State:
        """The state `new` after a step from `s`: did guards move as their rates say?
        What is far, and moves little, may be rounded: that is no trouble until a step
        is `unsure` of it."""
        numb = self.is_numb(s, a) & (unsure | (s.numb > 0))
        return dataclasses.replace(new, numb=jnp.where(numb, s.numb + 1, 0))

    def blunted(self, new: State, s: State, a: Attempt, found: Found) -> State:
        """The state `new` where the step is made shorter, as it is unsure."""
        numb = self.is_numb(s, a) & found.unsure
        numb = jnp.where(numb, jnp.maximum(s.numb, 1), s.numb)
        return dataclasses.replace(new, numb=numb)

    def is_numb(self, s: State, a: Attempt):
        return contradicts(s.g, a.dt * s.rate, a.g, a.dt * a.rate)

    #
    # Landing
    #

    def aimed(self, s: State, found: Found) -> State:
        approach = dataclasses.replace(
            s.approach,
            active=jnp.ones_like(s.done),
            dt=found.dt,
            guard=found.guard,
            turn=found.turn,
        )
        return dataclasses.replace(s, approach=approach)

    def corrected(
        self, s: State, before: _Landing, a: Attempt, contact: _Contact
    ) -> State:
        # Newton's method is slow where the guard crosses without speed, like u³: what
        # follows is the sum of a geometric series. (But not where corrections grow:
        # the guard is rounded.)
        ratio = contact.delta / before.delta
        ratio = jnp.where(ratio < 1, jnp.clip(ratio, 0, _SLOWEST), 0)
        delta = jnp.clip(contact.delta / (1 - ratio), -_BACK * a.dt, a.dt)
        approach = dataclasses.replace(
            before,
            dt=a.dt + delta,
            guard=contact.guard,
            attempts=before.attempts + 1,
            delta=contact.delta,
        )
        return dataclasses.replace(s, approach=approach)

    def contact(self, s: State, a: Attempt) -> _Contact:
        """Did the step end on the guard? The earliest guard counts of those that were
        crossed, or will be until that one is."""
        approach, dt, g, rate = s.approach, a.dt, a.g, a.rate
        target = jnp.arange(g.shape[0]) == approach.guard
        correction = jnp.where(g == 0, 0, -g / jnp.where(rate == 0, 1, rate))
        enough = jnp.sqrt(dt) * jnp.sqrt(_LANDING * self.eps * dt + self.landing_tol)
        enough = jnp.minimum(enough, _LAST * dt)
        ahead = jnp.where(rate < 0, correction, jnp.inf)[approach.guard]
        ahead = jnp.where(ahead <= enough, ahead, 0)
        candidate = (target | (g <= 0) | (correction < ahead)) & (rate < 0)
        correction = jnp.where(candidate, correction, jnp.inf)
        guard = first_least(correction)
        delta = correction[guard]
        aimed = jnp.isfinite(delta)
        # Not falling where it should have been crossed. Then either the guard is at its
        # turning point, or the crossing was an error of the interpolant.
        touched = ~aimed & (g[approach.guard] <= 0)
        # It jumped, and no time nearer to that can be told.
        touched = touched | ((dt <= self.short) & (delta <= -dt))
        touched = touched | (~aimed & (dt <= 2 * self.least_dt(a.t1)))
        close = (jnp.abs(delta) <= enough) | (jnp.abs(delta) <= self.same_time)
        last = approach.attempts >= _MAX_LANDINGS
        touches = a.keep & ((aimed & (close | last)) | touched | approach.turn)
        guard = jnp.where(aimed & ~approach.turn, guard, approach.guard)
        # A flow that is stiff is off within its steps, and so is how a guard moves that
        # depends on it: shorter ones tell whether it is as slow as it seems, or rises.
        fell = s.g[guard] - g[guard]
        slow = (s.g[guard] > 0) & (-_SLOWER * dt * rate[guard] < fell)
        halves = touches & slow & ~approach.turn & (dt > self.short)
        halved = jnp.where(s.t < approach.seen, approach.halved, 0)
        halves = halves & (halved < _MAX_HALVED) & self.settings.adaptive
        touches = touches & ~halves
        delta = jnp.where(aimed & ~approach.turn, delta, 0)
        # Never further off than the step itself, nor back at its start.
        delta = jnp.clip(delta, -_BACK * dt, dt)
        return _Contact(
            touches=touches,
            again=a.keep & aimed & ~touches & ~halves,
            halves=halves,
            halved=halved,
            delta=jnp.where(touches & ~close, 0, delta),
            guard=guard,
            turns=touched | approach.turn,
        )

    def arrival(
        self, a: Attempt, found: Found, o: Outcome, contact: _Contact
    ) -> tuple[Outcome, _Contact]:
        """A step that was to end at a time that is known may end on a guard: then it
        need not be made again."""
        firing = fires_at_once(a.g, a.rate, self.same_time) & (a.rate < 0)
        late = lateness(a.g, a.rate, jnp.zeros_like(firing))
        guard = next_to_fire(firing, late)
        first = ~found.turn & (found.dt >= a.dt - self.same_time)
        arrives = (o.accept | (o.aim & first)) & any_of(firing)
        no = jnp.zeros_like(arrives)
        here = contact._replace(
            touches=arrives, halves=no, delta=late[guard], guard=guard, turns=no
        )
        o = o._replace(
            accept=o.accept & ~arrives, aim=o.aim & ~arrives, land=o.land | arrives
        )
        return o, where(arrives, here, contact)

    #
    # Firing
    #

    def shared(self, s: State, g, rate, fire, guard):
        """Where an event happens: could another guard have fired in its place?"""
        this = jnp.arange(g.shape[0]) == guard
        firing = fires_at_once(g, rate, self.corner_tol) | this
        rests = fire & self.rests(s)
        return any_of(candidates(g, rate, firing, rests, self.corner_tol) & ~this)

    def rests(self, s: State):
        # What came to rest when it fired, in this instant, lets others go first: bodies
        # that touch may be hit by a third one before they do it again.
        return s.jumped & (s.rate == 0) & (s.firings.last >= s.t)

    def fired(self, s: State, happens, guard, t, x):
        """The state after a guard fired at `(t, x)`, where that `happens`."""
        x, mode = cond_any(
            happens,
            lambda: self.system.jump(*of_a_lane_that(happens, (t, x, s.mode, guard))),
            lambda: (x, s.mode),
        )
        return dataclasses.replace(
            s,
            t=t,
            x=x,
            mode=mode,
            jumped=jnp.ones_like(s.jumped),
            approach=self.first_approach(),
            t_next=self.restarted(t, s.t_next),
            guard_dt=jnp.full_like(s.guard_dt, jnp.inf),
            to_fire=self.to_fire(s, guard),
            num_events=s.num_events + 1,
            guard_end=guard.astype(jnp.int32),
        )

    def landed(self, fired: State, before: State, a: Attempt) -> State:
        """A step led to the event: what the controller says of it counts."""
        t_next, controller = self.heed(before, a)
        if self.settings.adaptive:
            # A very short landing must not make the steps after it very short too.
            enough = jnp.minimum(before.t_next, a.t1 + 0.1 * (before.t_next - before.t))
            t_next = jnp.maximum(t_next, enough)
        # Nor may one that took no time be the last.
        t_next = jnp.maximum(t_next, fired.t + self.least_dt(fired.t))
        return dataclasses.replace(
            fired,
            t_next=self.restarted(fired.t, t_next),
            controller=controller,
            num_accepted=fired.num_accepted + 1,
        )

    def refused(self, s: State, fired: State) -> State:
        """An event that is one too many: it does not happen."""
        return dataclasses.replace(s, result=fired.result, guard_end=fired.guard_end)
