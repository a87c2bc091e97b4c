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

from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._cubic import CHECK_POINTS, find_crossings
from ._firing import fires_at_once
from ._flat import FlatSystem
from ._locate import Locate
from ._results import RESULTS
from ._step import solver_step, StepResult, term
from ._tape import Tape


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
    bad_step: Bool[Array, ""]  # was the last attempt nonfinite
    guard_end: Int[Array, ""]
    result: RESULTS  # pyright: ignore
    done: Bool[Array, ""]


class _Rows(eqx.Module):
    t: Float[Array, " rows"]
    dt: Float[Array, " rows"]
    x: Float[Array, "rows n"]
    x_pre: Float[Array, "rows n"]
    mode: PyTree
    event: Int[Array, " rows"]
    rate: Float[Array, " rows"]


def run(system: FlatSystem, t0, t1, x0, mode0, settings: Settings) -> Tape:
    """Simulates, and returns the tape."""
    loop = _Loop(system, t0, t1, settings)
    state = loop.start(x0, mode0)
    rows = _empty_rows(x0, mode0, settings.max_steps)
    meter = settings.progress_meter.init()

    def cond(carry):
        i, _, state, _, _ = carry
        return (i < settings.max_steps) & eqxi.unvmap_any(~state.done)

    def body(carry):
        i, row, old, rows, meter = carry
        state, entry = loop.iterate(old)
        rows = jtu.tree_map(
            lambda buffer, value: lax.dynamic_update_index_in_dim(
                buffer, value, row, 0
            ),
            rows,
            entry,
        )
        # A row in which no lane did anything is written over.
        row = row + eqxi.unvmap_any((entry.dt > 0) | (entry.event >= 0))
        span = jnp.where(t1 > t0, t1 - t0, 1)
        meter = settings.progress_meter.step(meter, (state.t - t0) / span)
        return i + 1, row, state, rows, meter

    zero = jnp.asarray(0, jnp.int32)
    _, num_rows, state, rows, meter = lax.while_loop(
        cond, body, (zero, zero, state, rows, meter)
    )
    settings.progress_meter.close(meter)
    t = jnp.where(jnp.arange(settings.max_steps) < num_rows, rows.t, jnp.inf)
    return Tape(
        t=t,
        dt=rows.dt,
        x=rows.x,
        x_pre=rows.x_pre,
        mode=rows.mode,
        event=rows.event,
        rate=rows.rate,
        t_event=t + rows.dt,
        num_rows=num_rows,
        t_end=state.t,
        x_end=state.x,
        mode_end=state.mode,
        guard_end=state.guard_end,
        result=RESULTS.where(state.done, state.result, RESULTS.max_steps_reached),  # pyright: ignore
        num_events=state.num_events,
        num_steps=state.num_steps,
        num_accepted=state.num_accepted,
        corner_tol=loop.corner_tol,
    )


def _empty_rows(x, mode, n) -> _Rows:
    # Not `lax.empty`, which `jax.vmap` would batch although nothing in it is.
    empty = lambda shape, dtype: jnp.zeros((n, *shape), dtype)
    return _Rows(
        t=empty((), x.dtype),
        dt=empty((), x.dtype),
        x=empty(x.shape, x.dtype),
        x_pre=empty(x.shape, x.dtype),
        mode=jtu.tree_map(lambda m: empty(m.shape, m.dtype), mode),
        event=empty((), jnp.int32),
        rate=empty((), x.dtype),
    )


def _cond_any(pred, true_fn, false_fn, *operands):
    """`lax.cond` on whether any lane of a batch needs it: stays a branch under vmap."""
    return lax.cond(eqxi.unvmap_any(pred), true_fn, false_fn, *operands)


def _where(pred, a, b):
    return jtu.tree_map(lambda p, q: jnp.where(pred, p, q), a, b)


class _Loop(eqx.Module):
    system: FlatSystem
    t0: Float[Array, ""]
    t1: Float[Array, ""]
    settings: Settings

    # Tolerances in time.
    @property
    def scale(self):
        return jnp.maximum(
            jnp.maximum(jnp.abs(self.t0), jnp.abs(self.t1)), self.t1 - self.t0
        )

    @property
    def eps(self):
        return jnp.finfo(self.t0.dtype).eps

    @property
    def same_time(self):
        return _SAME_TIME * self.eps * self.scale

    @property
    def corner_tol(self):
        return self.settings.locate.tolerances(self.t0.dtype)[0] * self.scale

    @property
    def grazing_tol(self):
        return self.settings.locate.tolerances(self.t0.dtype)[1]

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
            bad_step=false,
            guard_end=none,
            result=RESULTS.where(finite, RESULTS.successful, RESULTS.nonfinite_state),
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

    def iterate(self, s: _State) -> tuple[_State, _Rows]:
        active = ~s.done
        firing = self.fires_now(s)
        fire = active & firing.any()

        # One solver step.
        t_aim = jnp.minimum(jnp.minimum(s.t_next, s.t + s.guard_dt), self.t1)
        dt = jnp.where(s.landing, s.landing_dt, t_aim - s.t)
        dt = jnp.where(active, dt, 0)
        step = solver_step(
            self.settings.solver, self.system, s.t, dt, s.x, s.flow, s.mode
        )
        t1 = jnp.where(s.landing, s.t + dt, t_aim)
        g, rate = self.system.guard_rates(t1, step.x, s.mode, step.flow)
        finite = (
            step.okay
            & jnp.isfinite(step.x).all()
            & jnp.isfinite(step.flow).all()
            & jnp.isfinite(g).all()
        )
        keep, proposal, ctrl_failed = self.adapt(s, t1, step, finite)

        # What the guards say of it.
        moving = active & ~fire & ~s.landing
        check = self.check_guards(s, dt, step, g, rate, moving & keep)
        crossed, certain = check["crossed"], check["certain"]
        accept = moving & keep & certain & ~crossed
        aim = moving & keep & certain & crossed
        landing = active & ~fire & s.landing
        land, delta, landed_guard, give_up = self.landing(s, dt, g, rate, landing, keep)

        # The controller's wish counts only for steps that it has judged. One that knows
        # nothing of errors is heard where it wanted to go, not at events between.
        if self.settings.adaptive:
            heard = moving & (accept | ~keep)
        else:
            heard = (accept | land) & (t1 >= s.t_next - self.same_time)
        t_next, controller = _where(heard, proposal, (s.t_next, s.controller))

        # The event, if there is one.
        guard = jnp.where(
            fire, jnp.argmin(jnp.where(firing, self.lateness(s), jnp.inf)), landed_guard
        ).astype(jnp.int32)
        event = fire | land
        x_pre = jnp.where(land, step.x + delta * step.flow, s.x)
        t_pre = jnp.where(land, t1 + delta, s.t)
        t_pre = jnp.minimum(t_pre, self.t1)
        event_rate = _at(jnp.where(fire, s.rate, rate), guard)
        result, fire_count, last_fired = self.judge(s, event, guard, t_pre)
        event = event & (result == RESULTS.successful)
        grazing = moving & keep & check["grazing"]

        # The state after it all.
        t = jnp.where(accept, t1, jnp.where(event, t_pre, s.t))
        x = jnp.where(accept, step.x, jnp.where(event, x_pre, s.x))
        flow = jnp.where(accept, step.flow, s.flow)
        g = jnp.where(accept, g, s.g)
        rate = jnp.where(accept, rate, s.rate)
        after = self.jump(event, guard, t, x, s.mode, flow, g, rate, t_next, controller)
        x, mode, flow, g, rate, t_next, controller = after
        finite_jump = jnp.isfinite(x).all() & jnp.isfinite(g).all()
        finite_jump = finite_jump & jnp.isfinite(flow).all()

        # Step sizes.
        bad_step = jnp.where(moving | landing, ~finite, s.bad_step)
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
        stuck = moving & ~accept & ~aim & ~self.resolvable(s.t, t_next, guard_dt)
        stuck = stuck | (moving & ~keep & (not self.settings.adaptive))
        dead_end = RESULTS.where(
            bad_step, RESULTS.nonfinite_state, RESULTS.dt_min_reached
        )
        result = _first(result, RESULTS.grazing, grazing)
        result = _first(result, RESULTS.nonfinite_state, event & ~finite_jump)
        result = _first(result, dead_end, stuck | (moving & ctrl_failed))
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
            bad_step=bad_step,
            guard_end=jnp.where(active, guard_end.astype(jnp.int32), s.guard_end),
            result=RESULTS.where(active, result, s.result),
            done=s.done | failed,
        )
        done = (t >= self.t1) & ~self.fires_now(new).any()
        new = eqx.tree_at(lambda s: s.done, new, new.done | done)

        row = _Rows(
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
        """Asks the step size controller. Landings are shorter than a step that it has
        accepted before, or are about to be: it is not asked about them."""
        controller, adaptive = self.settings.controller, self.settings.adaptive
        error = step.error
        if adaptive and error is not None:
            error = jnp.where(finite, error, jnp.inf)
        keep, t0_next, t_next, jump, state, result = controller.adapt_step_size(
            s.t,
            t1,
            s.x,
            step.x,
            None,
            error,
            self.settings.solver.error_order(term(self.system, s.mode)),
            s.controller,
        )
        del t0_next, jump
        keep = (jnp.asarray(keep) | s.landing) & finite
        proposal = (
            jnp.asarray(t_next, s.t.dtype),
            jtu.tree_map(jnp.asarray, state),
        )
        return keep, proposal, result != dfx.RESULTS.successful

    def check_guards(self, s: _State, dt, step: StepResult, g, rate, wanted):
        """Is every guard represented well enough, and is one of them crossed?"""
        n_guards = g.shape[0]
        if n_guards == 0:
            false, zero = jnp.asarray(False), jnp.asarray(0, jnp.int32)
            return dict(
                crossed=false,
                certain=jnp.asarray(True),
                factor=jnp.asarray(jnp.inf, dt.dtype),
                grazing=false,
                grazing_guard=zero,
                turn=false,
                dt=dt,
                guard=zero,
            )
        points = jnp.asarray(CHECK_POINTS, dt.dtype)

        def guards_at(point):
            t = s.t + point * dt
            return self.system.guards(t, step.interpolation.evaluate(t), s.mode)

        g_check = jax.vmap(guards_at)(points)
        c = find_crossings(s.g, dt * s.rate, g, dt * rate, g_check, self.grazing_tol)
        # Below this length, shortening a step tells nothing more.
        short = dt <= 64 * self.same_time
        certain = (c.certain.all() | short) & jnp.isfinite(g_check).all()
        guard = jnp.argmin(c.root).astype(jnp.int32)
        root, turn = c.root[guard], c.turns[guard]
        crossed = jnp.isfinite(root)
        wanted = wanted & certain & crossed
        root = _cond_any(
            wanted,
            lambda: self.refine(
                s, dt, step, c, root, c.lower[guard], c.upper[guard], wanted & ~turn
            ),
            lambda: root,
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

    def refine(self, s: _State, dt, step: StepResult, c, root, lower, upper, wanted):
        """The first crossing of the least guard, on the step's interpolant, by Newton's
        method within a bracket."""
        candidates = jnp.isfinite(c.root) & ~c.turns
        tol = jnp.sqrt(self.eps)

        def cond(carry):
            i, _, _, _, open_ = carry
            return (i < 60) & eqxi.unvmap_any(open_)

        def body(carry):
            i, at, lower, upper, open_ = carry
            t = s.t + at * dt
            x, dx = jax.jvp(step.interpolation.evaluate, (t,), (jnp.ones_like(t),))
            g, rate = self.system.guard_rates(t, x, s.mode, dx)
            k = jnp.argmin(jnp.where(candidates, g, jnp.inf))
            g, rate = g[k], rate[k] * dt
            lower_ = jnp.where(g > 0, at, lower)
            upper_ = jnp.where(g > 0, upper, at)
            newton = at - g / jnp.where(rate == 0, 1, rate)
            inside = (rate != 0) & (newton >= lower_) & (newton <= upper_)
            new = jnp.where(inside, newton, (lower_ + upper_) / 2)
            new = jnp.where(g == 0, at, new)
            still = open_ & (jnp.abs(new - at) > tol)
            at = jnp.where(open_, new, at)
            return i + 1, at, lower_, upper_, still

        init = (jnp.asarray(0, jnp.int32), root, lower, upper, wanted)
        return lax.while_loop(cond, body, init)[1]

    def landing(self, s: _State, dt, g, rate, landing, keep):
        """Did the step end on the guard? The earliest guard that was crossed counts."""
        if g.shape[0] == 0:
            false, zero = jnp.asarray(False), jnp.zeros_like(dt)
            return false, zero, jnp.asarray(0, jnp.int32), false
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
        result = RESULTS.where(full, RESULTS.max_events_reached, s.result)
        if s.g.shape[0] == 0:
            return result, s.quick_firings, s.last_fired
        fired = event & (jnp.arange(s.g.shape[0]) == guard)
        quick = t - s.last_fired <= _ZENO_GAP * self.eps * self.scale
        count = jnp.where(
            fired, jnp.where(quick, s.quick_firings + 1, 0), s.quick_firings
        )
        zeno = event & (count >= _ZENO_COUNT).any()
        result = RESULTS.where(zeno, RESULTS.zeno, result)
        return result, count, jnp.where(fired, t, s.last_fired)

    def jump(self, event, guard, t, x, mode, flow, g, rate, t_next, controller):
        """The state after the event, and a fresh step size for what comes."""
        before = (x, mode, flow, g, rate, t_next, controller)
        if g.shape[0] == 0:
            return before

        def jumped():
            x_plus, mode_plus = self.system.jump(t, x, mode, jnp.where(event, guard, 0))
            flow = self.system.flow(t, x_plus, mode_plus)
            g, rate = self.system.guard_rates(t, x_plus, mode_plus, flow)
            if self.settings.adaptive:
                fresh = self.start_controller(t, x_plus, mode_plus)
            else:
                fresh = (t_next, controller)
            after = (x_plus, mode_plus, flow, g, rate, *fresh)
            return _where(event, after, before)

        return _cond_any(event, jumped, lambda: before)


def _at(vector, index):
    return vector[index] if vector.shape[0] else jnp.zeros((), vector.dtype)


def _first(result, new, happened):
    """`new` where it happened and nothing had gone wrong before."""
    return RESULTS.where(happened & (result == RESULTS.successful), new, result)
