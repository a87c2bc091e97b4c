"""Events by root finding: what `Locate` does in one iteration of the loop.

An iteration ends in one of these ways, lane by lane:

- *accept*: the step is good, and no guard is crossed in it;
- *reject*: the error is too large, or a guard is not represented well enough;
- *aim*: a guard is crossed; the next iteration lands there;
- *land*: the step ended on the guard, which fires; or the aim is corrected;
- *fire*: a guard fires at the start of the step, which is thrown away.
"""

import dataclasses

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._events.cubic import clearly_positive, Crossing, find_crossings
from .._events.firing import fires_at_once
from .._jax.branch import compute_if, computed_once, cond_any, where
from .._jax.pack import Packer
from .._jax.reduce import all_of, any_of, first_least, least
from .._steps.step import StepResult
from .loop import AbstractLoop, Attempt, first, State
from .results import choose, RESULTS
from .tape import Row


# A crossing time is refined by whole solver steps until Newton's correction is smaller
# than this many sqrt(eps) of the step; the rest is made up by a step along the flow,
# whose error is the square of that.
_LANDING = 16

# Landings that do not converge within so many steps are taken as they are.
_MAX_LANDINGS = 8


class _Landing(eqx.Module):
    """The guard that the next step is to end on."""

    active: Bool[Array, ""]
    dt: Float[Array, ""]
    guard: Int[Array, ""]
    turn: Bool[Array, ""]  # is it the peak of a guard that stays below zero
    attempts: Int[Array, ""]


class LandingLoop(AbstractLoop):
    projects = False

    def __init__(self, system, t0, t1, settings):
        super().__init__(system, t0, t1, settings)
        corner_tol, self.grazing_tol = settings.event_method.tolerances(t0.dtype)
        self.corner_tol = corner_tol * self.scale

    def first_approach(self) -> _Landing:
        none = jnp.asarray(0, jnp.int32)
        false = jnp.asarray(False)
        return _Landing(false, jnp.zeros_like(self.t0), none, false, none)

    def due(self, s: State) -> Bool[Array, ""]:
        return any_of(self.fires_now(s))

    def fires_now(self, s: State) -> Bool[Array, " n_guards"]:
        """Guards that fire where the lane stands: in the guard set, and not leaving it.

        After a jump, guards that would be crossed within the corner tolerance belong to
        the same instant.
        """
        tol = jnp.where(s.jumped, self.corner_tol, self.same_time)
        return fires_at_once(s.g, s.rate, tol)

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
        accept = ~s.done & a.keep
        t_next, controller = self.heed(s, a, accept, ~s.done & ~a.keep)
        result = self.outcome(s, ~s.done & ~accept, a, t_next, s.guard_dt)
        failed = result != RESULTS.successful
        new, row = self.step_taken(s, a, accept)
        new = dataclasses.replace(
            new,
            t_next=t_next,
            controller=controller,
            guard_dt=jnp.where(accept, a.dt * factor, s.guard_dt),
            result=result,
            # The guards are positive at the end of this step: none fires there.
            done=s.done | failed | (accept & (a.t1 >= self.t1)),
        )
        return calm, new, row

    def manoeuvre(self, s: State, a: Attempt) -> tuple[State, Row]:
        """What comes of the step where a guard is near, or fires."""
        step, dt, t1, keep = a.step, a.dt, a.t1, a.keep
        active = ~s.done
        firing = self.fires_now(s)
        fire = active & any_of(firing)

        # What the guards say of it.
        moving = active & ~fire & ~s.approach.active
        checked = moving & keep
        nothing = dict(
            crossed=jnp.zeros_like(checked),
            certain=jnp.zeros_like(checked),
            factor=jnp.zeros_like(dt),
            grazing=jnp.zeros_like(checked),
            grazing_guard=jnp.zeros_like(s.approach.guard),
            turn=jnp.zeros_like(checked),
            dt=jnp.zeros_like(dt),
            guard=jnp.zeros_like(s.approach.guard),
        )
        check = compute_if(
            eqxi.unvmap_any(checked),
            lambda: self.check_guards(s, a, checked),
            nothing,
        )
        crossed, certain = check["crossed"], check["certain"]
        accept = moving & keep & certain & ~crossed
        aim = moving & keep & certain & crossed
        landing = active & ~fire & s.approach.active
        land, delta, landed_guard, give_up = self.landing(
            s, dt, a.g, a.rate, landing, keep
        )

        # The controller's wish counts only for steps that it has judged.
        t_next, controller = self.heed(s, a, accept | land, moving & ~keep)
        if self.settings.adaptive:
            # A very short landing must not make the steps after it very short too.
            enough = jnp.minimum(s.t_next, t1 + 0.1 * (s.t_next - s.t))
            t_next = jnp.where(land, jnp.maximum(t_next, enough), t_next)

        # The event, if there is one.
        latest = first_least(jnp.where(firing, self.lateness(s), jnp.inf))
        guard = jnp.where(fire, latest, landed_guard)
        event = fire | land
        x_pre = jnp.where(land, step.x + delta * step.flow, s.x)
        t_pre = jnp.where(land, t1 + delta, s.t)
        t_pre = jnp.minimum(t_pre, self.t1)
        event_rate = jnp.where(fire, s.rate, a.rate)[guard]
        result, fire_count, last_fired = self.judge(s, event, guard, t_pre)
        event = event & (result == RESULTS.successful)
        grazing = moving & keep & check["grazing"]

        # The state after it all.
        t = jnp.where(accept, t1, jnp.where(event, t_pre, s.t))
        x = jnp.where(accept, step.x, jnp.where(event, x_pre, s.x))
        x, mode = cond_any(
            event,
            lambda: where(
                event,
                self.system.jump(t, x, s.mode, jnp.where(event, guard, 0)),
                (x, s.mode),
            ),
            lambda: (x, s.mode),
        )

        # Step sizes.
        shrink = moving & keep & ~certain
        guard_dt = jnp.where(
            event,
            jnp.inf,
            jnp.where(
                shrink,
                dt * jnp.clip(check["factor"], 0.1, 0.7),
                jnp.where(
                    accept, dt * jnp.clip(check["factor"], 1.0, 10.0), s.guard_dt
                ),
            ),
        )
        guard_dt = jnp.where(give_up, dt / 2, guard_dt)
        aiming = aim | (landing & ~land & ~give_up)
        approach = _Landing(
            active=aiming,
            dt=jnp.where(aim, check["dt"], dt + delta),
            guard=jnp.where(aim, check["guard"], landed_guard),
            turn=jnp.where(aim, check["turn"], s.approach.turn),
            attempts=jnp.where(aiming & ~aim, s.approach.attempts + 1, 0),
        )

        # The outcome.
        rejected = moving & ~accept & ~aim
        result = first(result, RESULTS.grazing, grazing)
        s_ = dataclasses.replace(s, result=result)
        result = self.outcome(s_, rejected, a, t_next, guard_dt)
        failed = active & (result != RESULTS.successful)
        named = jnp.where(grazing, check["grazing_guard"], guard)
        named = jnp.where(event | fire | land | grazing, named, -1)

        new = State(
            t=t,
            x=x,
            flow=jnp.where(accept, step.flow, s.flow),
            mode=mode,
            g=jnp.where(accept, a.g, s.g),
            rate=jnp.where(accept, a.rate, s.rate),
            known=s.known,
            jumped=jnp.where(event, True, s.jumped & ~accept),
            t_next=t_next,
            controller=controller,
            guard_dt=guard_dt,
            approach=approach,
            last_fired=last_fired,
            quick_firings=fire_count,
            num_events=s.num_events + event,
            num_steps=s.num_steps + active,
            num_accepted=s.num_accepted + (accept | (event & land)),
            guard_end=jnp.where(active, named.astype(jnp.int32), s.guard_end),
            result=choose(active, result, s.result),
            done=s.done | failed,
        )
        done = accept & (t >= self.t1) & ~self.due(new)
        new = dataclasses.replace(new, done=new.done | done)
        new = self.arrived(new, event)

        row = Row(
            t=s.t,
            dt=jnp.where(accept, dt, jnp.where(event & land, t_pre - s.t, 0)),
            x=s.x,
            x_pre=jnp.where(accept, step.x, x_pre),
            mode=s.mode,
            event=jnp.where(event, guard, -1).astype(jnp.int32),
            rate=jnp.where(event, event_rate, 1),
        )
        return new, row

    def lateness(self, s: State):
        # Time to the crossing: the guard that has waited longest fires first.
        return s.g / jnp.maximum(jnp.abs(s.rate), jnp.finfo(s.g.dtype).tiny)

    def check_guards(self, s: State, a: Attempt, wanted):
        """Is every guard represented well enough, and is one of them crossed?"""
        dt = a.dt
        c = find_crossings(
            s.g, dt * s.rate, a.g, dt * a.rate, a.g_check, self.grazing_tol
        )
        # Below this length, shortening a step tells nothing more.
        short = dt <= 64 * self.same_time
        certain = all_of(c.certain) | short
        guard = first_least(c.root)
        root, turn = c.root[guard], c.turns[guard]
        crossed = jnp.isfinite(root)
        # A cubic that is as good as a landing needs is not improved upon.
        sharp = c.residual <= jnp.sqrt(self.eps) * jnp.abs(c.slope)
        wanted = wanted & certain & crossed & ~turn & ~sharp[guard]
        root, guard = cond_any(
            wanted,
            lambda: self.refine(s, dt, a.step, c, guard, wanted),
            lambda: (root, guard),
        )
        return dict(
            crossed=crossed,
            certain=certain,
            factor=least(c.factor),
            grazing=any_of(c.grazing),
            grazing_guard=first_least(~c.grazing),
            turn=turn,
            dt=root * dt,
            guard=guard,
        )

    def refine(self, s: State, dt, step: StepResult, c: Crossing, guard, wanted):
        """The first crossing of the least guard, on the step's interpolant, and which
        guard that is: by the secant method within a bracket, beginning with the slope
        of the cubic."""
        candidates = jnp.isfinite(c.root) & ~c.turns
        tol = jnp.sqrt(self.eps)

        def guards(system, t, at, dt, step, mode):
            x = step.interpolation.evaluate(at)
            return system.guards(t + at * dt, x, mode)

        def cond(carry):
            i, *_, open_ = carry
            return (i < 60) & eqxi.unvmap_any(open_)

        def body(carry):
            i, at, guard, last, lower, upper, open_ = carry
            g = computed_once(guards, s.g, self.system, s.t, at, dt, step, s.mode)
            g = jnp.where(candidates, g, jnp.inf)
            guard = jnp.where(open_, first_least(g), guard)
            g = least(g)
            at_last, g_last, slope = last
            run = at - at_last
            slope = jnp.where(run == 0, slope, (g - g_last) / run)
            secant = at - g / jnp.where(slope == 0, 1, slope)
            lower = jnp.where(g > 0, at, lower)
            upper = jnp.where(g > 0, upper, at)
            inside = (slope != 0) & (secant >= lower) & (secant <= upper)
            new = jnp.where(inside, secant, (lower + upper) / 2)
            new = jnp.where(g == 0, at, new)
            # The slope of the cubic is not trusted with the decision.
            close = (i > 0) & (jnp.abs(new - at) <= tol)
            last, at = where(open_, ((at, g, slope), new), (last, at))
            open_ = open_ & ~close & (g != 0)
            return i + 1, at, guard, last, lower, upper, open_

        root, lower, upper = c.root[guard], c.lower[guard], c.upper[guard]
        last = (root, jnp.zeros_like(root), c.slope[guard])
        init = (jnp.asarray(0, jnp.int32), root, guard, last, lower, upper, wanted)
        return lax.while_loop(cond, body, init)[1:3]

    def landing(self, s: State, dt, g, rate, landing, keep):
        """Did the step end on the guard? The earliest guard that was crossed counts."""
        target = jnp.arange(g.shape[0]) == s.approach.guard
        correction = jnp.where(g == 0, 0, -g / jnp.where(rate == 0, 1, rate))
        candidate = (target | (g <= 0)) & (rate < 0)
        correction = jnp.where(candidate, correction, jnp.inf)
        guard = first_least(correction)
        delta = correction[guard]
        aimed = jnp.isfinite(delta)
        # Not falling where it should have been crossed. Then either the guard is at its
        # turning point, or the crossing was an error of the interpolant.
        touched = ~aimed & (g[s.approach.guard] <= 0)
        guard = jnp.where(aimed, guard, s.approach.guard)
        close = jnp.abs(delta) <= _LANDING * jnp.sqrt(self.eps) * dt
        close = close | (jnp.abs(delta) <= self.same_time)
        last = s.approach.attempts >= _MAX_LANDINGS
        land = landing & keep & ((aimed & (close | last)) | touched | s.approach.turn)
        guard = jnp.where(s.approach.turn, s.approach.guard, guard)
        give_up = landing & (~keep | (~aimed & ~land))
        delta = jnp.where(aimed & ~s.approach.turn, delta, 0)
        # Never further off than the step itself.
        delta = jnp.clip(delta, -dt, dt)
        delta = jnp.where(land & ~close, 0, delta)
        return land, delta, guard, give_up
