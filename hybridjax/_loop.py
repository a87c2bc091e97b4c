"""The flat event loop: each iteration makes one solver step, for every lane.

An iteration ends in one of these ways, lane by lane:

- *accept*: the step is good, and no guard is crossed in it;
- *reject*: the error is too large, or a guard is not represented well enough;
- *aim*: a guard is crossed; the next iteration lands there;
- *land*: the step ended on the guard, which fires; or the aim is corrected;
- *fire*: a guard fires at the start of the step, which is thrown away.

There is no loop over events around a loop over steps: under `vmap` every lane would
wait for the slowest one at each event.
"""

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

from ._compute_if import compute_if
from ._cubic import CHECK_POINTS, clearly_positive, Crossing, find_crossings
from ._firing import fires_at_once
from ._flat import FlatSystem
from ._locate import Locate
from ._pack import Packer
from ._results import choose, RESULTS
from ._step import solver_step, StepResult, term
from ._tape import Row, Tape


# A crossing time is refined by whole solver steps until Newton's correction is smaller
# than this many sqrt(eps) of the step; the rest is made up by a step along the flow,
# whose error is the square of that.
_LANDING = 16

# Landings that do not converge within so many steps are taken as they are.
_MAX_LANDINGS = 8

# Times closer than this many eps (relative to the largest time) are the same time.
_SAME_TIME = 16

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
    locate: Locate
    progress_meter: dfx.AbstractProgressMeter
    max_steps: int = eqx.field(static=True)
    max_events: int = eqx.field(static=True)

    @property
    def adaptive(self) -> bool:
        return isinstance(self.controller, dfx.AbstractAdaptiveStepSizeController)


class _State(eqx.Module):
    t: Float[Array, ""]
    x: Float[Array, " n"]
    flow: Float[Array, " n"]  # the vector field at (t, x)
    mode: PyTree
    g: Float[Array, " n_guards"]
    rate: Float[Array, " n_guards"]  # dg/dt along the flow
    jumped: Bool[Array, ""]  # is this the right limit at an event
    # Step size.
    t_next: Float[Array, ""]  # where the controller wants to go
    controller: PyTree
    guard_dt: Float[Array, ""]  # how far the guards can be foreseen
    # Landing.
    landing: Bool[Array, ""]
    landing_dt: Float[Array, ""]
    landing_guard: Int[Array, ""]
    landing_turn: Bool[Array, ""]
    landings: Int[Array, ""]
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


class _Attempt(eqx.Module):
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


def run(system: FlatSystem, t0, t1, x0, mode0, settings: Settings) -> Tape:
    """Simulates, and returns the tape."""
    loop = _Loop(system, t0, t1, settings)
    states = Packer(jax.eval_shape(lambda: loop.start(x0, mode0)))
    rows = Packer(Row(t0, t0, t0, x0, x0, mode0, jnp.asarray(0, jnp.int32)))
    # Not `lax.empty`, which `jax.vmap` would batch although nothing in it is.
    table = tuple(
        jnp.zeros((settings.max_steps, size), dtype) for size, dtype in rows.sizes()
    )

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
    total, packed, table, meter = lax.while_loop(
        cond, body, (*compute_if(None, begin, nothing), table, meter)
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
    )


def _cond_any(pred, true_fn, false_fn, *operands):
    """`lax.cond` on whether any lane of a batch needs it: stays a branch under vmap."""
    return lax.cond(eqxi.unvmap_any(pred), true_fn, false_fn, *operands)


def _where(pred, a, b):
    return jtu.tree_map(lambda p, q: jnp.where(pred, p, q), a, b)


class _Loop:
    def __init__(self, system: FlatSystem, t0, t1, settings: Settings):
        self.system = system
        self.t1 = t1
        self.t0 = t0
        self.settings = settings
        # Tolerances in time.
        self.eps = jnp.finfo(t0.dtype).eps
        self.scale = jnp.maximum(jnp.maximum(jnp.abs(t0), jnp.abs(t1)), t1 - t0)
        self.same_time = _SAME_TIME * self.eps * self.scale
        corner_tol, self.grazing_tol = settings.locate.tolerances(t0.dtype)
        self.corner_tol = corner_tol * self.scale

    def start(self, x0, mode0) -> _State:
        system, t0 = self.system, self.t0
        flow = system.flow(t0, x0, mode0)
        g, rate = system.guard_rates(t0, x0, mode0, flow)
        t_next, controller = self.start_controller(t0, x0, mode0)
        false = jnp.asarray(False)
        zero, none = jnp.asarray(0, jnp.int32), jnp.asarray(-1, jnp.int32)
        inf = jnp.asarray(jnp.inf, t0.dtype)
        finite = jnp.isfinite(x0).all() & jnp.isfinite(flow).all()
        finite = finite & jnp.isfinite(g).all()
        state = _State(
            t=t0,
            x=x0,
            flow=flow,
            mode=mode0,
            g=g,
            rate=rate,
            jumped=false,
            t_next=t_next,
            controller=controller,
            guard_dt=inf,
            landing=false,
            landing_dt=jnp.zeros_like(t0),
            landing_guard=zero,
            landing_turn=false,
            landings=zero,
            last_fired=jnp.full_like(g, -jnp.inf),
            quick_firings=jnp.zeros(g.shape, jnp.int32),
            num_events=zero,
            num_steps=zero,
            num_accepted=zero,
            guard_end=none,
            result=choose(finite, RESULTS.successful, RESULTS.nonfinite_state),
            done=false,
        )
        done = ~finite | ((t0 >= self.t1) & ~self.fires_now(state).any())
        return eqx.tree_at(lambda s: s.done, state, done)

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

    def fires_now(self, s: _State) -> Bool[Array, " n_guards"]:
        """Guards that fire where the lane stands: in the guard set, and not leaving it.

        After a jump, guards that would be crossed within the corner tolerance belong to
        the same instant.
        """
        tol = jnp.where(s.jumped, self.corner_tol, self.same_time)
        return fires_at_once(s.g, s.rate, tol)

    def iterate(self, states: Packer, rows: Packer, packed):
        s: _State = states.unpack(packed)
        a = self.attempt(s)
        calm, new, row = self.glide(s, a)
        glided = (states.pack(new), rows.pack(row))

        attempts = Packer(a)
        attempt = attempts.pack(a)

        def eventful():
            s, a = states.unpack(packed), attempts.unpack(attempt)
            new, row = self.manoeuvre(s, a)
            return _where(calm, glided, (states.pack(new), rows.pack(row)))

        if self.system.n_guards > 0:
            glided = _cond_any(~calm, eventful, lambda: glided)
        return glided

    def attempt(self, s: _State) -> _Attempt:
        t_aim = jnp.minimum(jnp.minimum(s.t_next, s.t + s.guard_dt), self.t1)
        dt = jnp.where(s.landing, s.landing_dt, t_aim - s.t)
        dt = jnp.where(s.done, 0, dt)
        step = solver_step(
            self.settings.solver, self.system, s.t, dt, s.x, s.flow, s.mode
        )
        t1 = jnp.where(s.landing, s.t + dt, t_aim)
        g, rate = self.system.guard_rates(t1, step.x, s.mode, step.flow)

        def guards_at(point):
            x = step.interpolation.evaluate(point)
            return self.system.guards(s.t + point * dt, x, s.mode)

        g_check = jax.vmap(guards_at)(jnp.asarray(CHECK_POINTS, dt.dtype))
        finite = step.okay & jnp.isfinite(jnp.concatenate([step.x, step.flow])).all()
        guards = jnp.stack([g, rate, *g_check])
        finite = finite & jnp.isfinite(guards).all(axis=0).all()
        keep, t_next, controller, failed = self.adapt(s, t1, step, finite)
        return _Attempt(
            dt, t1, step, finite, keep, failed, t_next, controller, g, rate, g_check
        )

    def glide(self, s: _State, a: _Attempt) -> tuple[Bool[Array, ""], _State, Row]:
        """What comes of the step where no guard is near; and where that is so."""
        clear, factor = clearly_positive(
            s.g, a.dt * s.rate, a.g, a.dt * a.rate, a.g_check, self.grazing_tol
        )
        fire = self.fires_now(s).any()
        calm = s.done | (~fire & ~s.landing & (clear | ~a.keep))
        accept = ~s.done & a.keep
        if self.settings.adaptive:
            heard = ~s.done
        else:
            heard = accept & (a.t1 >= s.t_next - self.same_time)
        t_next, controller = _where(
            heard, (a.t_next, a.controller), (s.t_next, s.controller)
        )
        result = self.outcome(s, ~s.done & ~accept, a, t_next, s.guard_dt)
        failed = result != RESULTS.successful
        new = dataclasses.replace(
            s,
            t=jnp.where(accept, a.t1, s.t),
            x=jnp.where(accept, a.step.x, s.x),
            flow=jnp.where(accept, a.step.flow, s.flow),
            g=jnp.where(accept, a.g, s.g),
            rate=jnp.where(accept, a.rate, s.rate),
            jumped=s.jumped & ~accept,
            t_next=t_next,
            controller=controller,
            guard_dt=jnp.where(accept, a.dt * factor, s.guard_dt),
            num_steps=s.num_steps + ~s.done,
            num_accepted=s.num_accepted + accept,
            result=result,
            # The guards are positive at the end of this step: none fires there.
            done=s.done | failed | (accept & (a.t1 >= self.t1)),
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
        return calm, new, row

    def outcome(self, s: _State, rejected, a: _Attempt, t_next, guard_dt):
        """Is there no going on after a step that was rejected?"""
        stuck = rejected & ~self.resolvable(s.t, t_next, guard_dt)
        stuck = stuck | (
            rejected & (a.failed | ((not self.settings.adaptive) & ~a.keep))
        )
        dead_end = choose(a.finite, RESULTS.dt_min_reached, RESULTS.nonfinite_state)
        return _first(s.result, dead_end, stuck)

    def manoeuvre(self, s: _State, a: _Attempt) -> tuple[_State, Row]:
        """What comes of the step where a guard is near, or fires."""
        step, dt, t1, keep = a.step, a.dt, a.t1, a.keep
        active = ~s.done
        firing = self.fires_now(s)
        fire = active & firing.any()

        # What the guards say of it.
        moving = active & ~fire & ~s.landing
        checked = moving & keep
        nothing = dict(
            crossed=jnp.zeros_like(checked),
            certain=jnp.zeros_like(checked),
            factor=jnp.zeros_like(dt),
            grazing=jnp.zeros_like(checked),
            grazing_guard=jnp.zeros_like(s.landing_guard),
            turn=jnp.zeros_like(checked),
            dt=jnp.zeros_like(dt),
            guard=jnp.zeros_like(s.landing_guard),
        )
        check = compute_if(
            eqxi.unvmap_any(checked),
            lambda: self.check_guards(s, a, checked),
            nothing,
        )
        crossed, certain = check["crossed"], check["certain"]
        accept = moving & keep & certain & ~crossed
        aim = moving & keep & certain & crossed
        landing = active & ~fire & s.landing
        land, delta, landed_guard, give_up = self.landing(
            s, dt, a.g, a.rate, landing, keep
        )

        # The controller's wish counts only for steps that it has judged. One that knows
        # nothing of errors is heard where it wanted to go, not at events between.
        if self.settings.adaptive:
            heard = (moving & (accept | ~keep)) | land
        else:
            heard = (accept | land) & (t1 >= s.t_next - self.same_time)
        t_next, controller = _where(
            heard, (a.t_next, a.controller), (s.t_next, s.controller)
        )
        if self.settings.adaptive:
            # A very short landing must not make the steps after it very short too.
            enough = jnp.minimum(s.t_next, t1 + 0.1 * (s.t_next - s.t))
            t_next = jnp.where(land, jnp.maximum(t_next, enough), t_next)

        # The event, if there is one.
        guard = jnp.where(
            fire, jnp.argmin(jnp.where(firing, self.lateness(s), jnp.inf)), landed_guard
        ).astype(jnp.int32)
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
        flow = jnp.where(accept, step.flow, s.flow)
        g = jnp.where(accept, a.g, s.g)
        rate = jnp.where(accept, a.rate, s.rate)
        x, mode, flow, g, rate = self.jump(event, guard, t, x, s.mode, flow, g, rate)
        finite_jump = jnp.isfinite(jnp.concatenate([x, flow, g])).all()

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
        landing_dt = jnp.where(aim, check["dt"], dt + delta)
        landing_guard = jnp.where(aim, check["guard"], landed_guard)

        # The outcome.
        rejected = moving & ~accept & ~aim
        result = _first(result, RESULTS.grazing, grazing)
        result = _first(result, RESULTS.nonfinite_state, event & ~finite_jump)
        s_ = dataclasses.replace(s, result=result)
        result = self.outcome(s_, rejected, a, t_next, guard_dt)
        failed = active & (result != RESULTS.successful)
        named = jnp.where(grazing, check["grazing_guard"], guard)
        guard_end = jnp.where(failed & (event | fire | land | grazing), named, -1)

        new = _State(
            t=t,
            x=x,
            flow=flow,
            mode=mode,
            g=g,
            rate=rate,
            jumped=jnp.where(event, True, s.jumped & ~accept),
            t_next=t_next,
            controller=controller,
            guard_dt=guard_dt,
            landing=aiming,
            landing_dt=landing_dt,
            landing_guard=landing_guard,
            landing_turn=jnp.where(aim, check["turn"], s.landing_turn),
            landings=jnp.where(aiming & ~aim, s.landings + 1, 0),
            last_fired=last_fired,
            quick_firings=fire_count,
            num_events=s.num_events + event,
            num_steps=s.num_steps + active,
            num_accepted=s.num_accepted + (accept | (event & land)),
            guard_end=jnp.where(active, guard_end.astype(jnp.int32), s.guard_end),
            result=choose(active, result, s.result),
            done=s.done | failed,
        )
        done = (t >= self.t1) & ~self.fires_now(new).any()
        new = eqx.tree_at(lambda s: s.done, new, new.done | done)

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

    def lateness(self, s: _State):
        # Time to the crossing: the guard that has waited longest fires first.
        return s.g / jnp.maximum(jnp.abs(s.rate), jnp.finfo(s.g.dtype).tiny)

    def resolvable(self, t, t_next, guard_dt):
        least = self.eps * (jnp.abs(t) + self.eps * self.scale)
        return jnp.minimum(t_next - t, guard_dt) > least

    def adapt(self, s: _State, t1, step: StepResult, finite):
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

    def check_guards(self, s: _State, a: _Attempt, wanted):
        """Is every guard represented well enough, and is one of them crossed?"""
        dt = a.dt
        c = find_crossings(
            s.g, dt * s.rate, a.g, dt * a.rate, a.g_check, self.grazing_tol
        )
        # Below this length, shortening a step tells nothing more.
        short = dt <= 64 * self.same_time
        certain = c.certain.all() | short
        guard = jnp.argmin(c.root).astype(jnp.int32)
        root, turn = c.root[guard], c.turns[guard]
        crossed = jnp.isfinite(root)
        # A cubic that is as good as a landing needs is not improved upon.
        sharp = c.residual <= jnp.sqrt(self.eps) * jnp.abs(c.slope)
        wanted = wanted & certain & crossed & ~turn & ~sharp[guard]
        root, guard = _cond_any(
            wanted,
            lambda: self.refine(s, dt, a.step, c, guard, wanted),
            lambda: (root, guard),
        )
        return dict(
            crossed=crossed,
            certain=certain,
            factor=jnp.min(c.factor),
            grazing=c.grazing.any(),
            grazing_guard=jnp.argmax(c.grazing).astype(jnp.int32),
            turn=turn,
            dt=root * dt,
            guard=guard,
        )

    def refine(self, s: _State, dt, step: StepResult, c: Crossing, guard, wanted):
        """The first crossing of the least guard, on the step's interpolant, and which
        guard that is: by the secant method within a bracket, beginning with the slope
        of the cubic."""
        candidates = jnp.isfinite(c.root) & ~c.turns
        tol = jnp.sqrt(self.eps)

        def cond(carry):
            i, *_, open_ = carry
            return (i < 60) & eqxi.unvmap_any(open_)

        def body(carry):
            i, at, least, last, lower, upper, open_ = carry
            x = step.interpolation.evaluate(at)
            g = self.system.guards(s.t + at * dt, x, s.mode)
            g = jnp.where(candidates, g, jnp.inf)
            least = jnp.where(open_, jnp.argmin(g).astype(least.dtype), least)
            g = jnp.min(g)
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
            last, at = _where(open_, ((at, g, slope), new), (last, at))
            open_ = open_ & ~close & (g != 0)
            return i + 1, at, least, last, lower, upper, open_

        root, lower, upper = c.root[guard], c.lower[guard], c.upper[guard]
        last = (root, jnp.zeros_like(root), c.slope[guard])
        init = (jnp.asarray(0, jnp.int32), root, guard, last, lower, upper, wanted)
        return lax.while_loop(cond, body, init)[1:3]

    def landing(self, s: _State, dt, g, rate, landing, keep):
        """Did the step end on the guard? The earliest guard that was crossed counts."""
        target = jnp.arange(g.shape[0]) == s.landing_guard
        correction = jnp.where(g == 0, 0, -g / jnp.where(rate == 0, 1, rate))
        candidate = (target | (g <= 0)) & (rate < 0)
        correction = jnp.where(candidate, correction, jnp.inf)
        guard = jnp.argmin(correction).astype(jnp.int32)
        delta = correction[guard]
        aimed = jnp.isfinite(delta)
        # Not falling where it should have been crossed. Then either the guard is at its
        # turning point, or the crossing was an error of the interpolant.
        touched = ~aimed & (g[s.landing_guard] <= 0)
        guard = jnp.where(aimed, guard, s.landing_guard)
        close = jnp.abs(delta) <= _LANDING * jnp.sqrt(self.eps) * dt
        close = close | (jnp.abs(delta) <= self.same_time)
        last = s.landings >= _MAX_LANDINGS
        land = landing & keep & ((aimed & (close | last)) | touched | s.landing_turn)
        guard = jnp.where(s.landing_turn, s.landing_guard, guard)
        give_up = landing & (~keep | (~aimed & ~land))
        delta = jnp.where(aimed & ~s.landing_turn, delta, 0)
        # Never further off than the step itself.
        delta = jnp.clip(delta, -dt, dt)
        delta = jnp.where(land & ~close, 0, delta)
        return land, delta, guard, give_up

    def judge(self, s: _State, event, guard, t):
        """May this event happen? Too many events, or an accumulation, end the lane."""
        full = event & (s.num_events >= self.settings.max_events)
        result = choose(full, RESULTS.max_events_reached, s.result)
        fired = event & (jnp.arange(s.g.shape[0]) == guard)
        quick = t - s.last_fired <= _ZENO_GAP * self.eps * self.scale
        count = jnp.where(
            fired, jnp.where(quick, s.quick_firings + 1, 0), s.quick_firings
        )
        zeno = event & (count >= _ZENO_COUNT).any()
        result = choose(zeno, RESULTS.zeno, result)
        return result, count, jnp.where(fired, t, s.last_fired)

    def jump(self, event, guard, t, x, mode, flow, g, rate):
        before = (x, mode, flow, g, rate)

        def jumped():
            x_plus, mode_plus = self.system.jump(t, x, mode, jnp.where(event, guard, 0))
            flow = self.system.flow(t, x_plus, mode_plus)
            g, rate = self.system.guard_rates(t, x_plus, mode_plus, flow)
            return _where(event, (x_plus, mode_plus, flow, g, rate), before)

        return _cond_any(event, jumped, lambda: before)


def _first(result, new, happened):
    """`new` where it happened and nothing had gone wrong before."""
    return choose(happened & (result == RESULTS.successful), new, result)
