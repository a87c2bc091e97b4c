"""Tangents, forward through the rows of a tape."""

from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._jax.branch import compute_if, cond_any, later_zero, of_a_lane_that, where
from .._jax.directional import directional
from .._jax.pack import Packer
from .._jax.reduce import nonzero
from .._loop.tape import Row
from .._steps.variation import push_flow, scale_of
from .corner import Corner, Lead, not_passed, resolve_corner
from .passage import same_outcome
from .recording import AbstractTapeRecording, Inputs, Outputs, poison, Rows
from .saltation import event_map, event_tangent


# What is remembered of an instant is packed with all else that goes from row to row, up
# to this many numbers. More are not touched in other rows.
_PACKED = 4096


class _Instant(eqx.Module):
    """An instant with several events."""

    lead: Lead
    before: Array  # of which firing of each guard is known how the tangent passes it
    corner: Corner  # that


class _Place(NamedTuple):
    """Where a row with an event is, among others."""

    inner: Array  # does it belong to the instant of the row before
    more: Array  # does the next row belong to the same instant
    at_start: Array  # does no flow precede it
    shared: Array  # could another guard have fired in its place
    alone: Array  # is it passed as the only event of an instant

    @property
    def leads(self):
        """Is it the first event of an instant in which there are, or could have been,
        several; or `alone`?"""
        return ((self.more | self.shared) & ~self.inner) | self.alone


class _Carry(NamedTuple):
    """What goes from row to row."""

    dx: Array  # at fixed time
    dt: Array  # of the time of the event last passed
    fired: Array  # did the row before end in an event
    seen: Array  # how often each guard has fired in its instant
    instant: PyTree  # that, if several events share it; packed, if it is small


class Push:
    """With `twice`, in a form that can be differentiated with respect to what is
    recorded; events then have to be isolated."""

    def __init__(self, inputs: Inputs, recording: AbstractTapeRecording, twice: bool):
        self.inputs, self.recording, self.twice = inputs, recording, twice
        self.system, self.tape = recording.system, recording.tape
        # One guard has one order only: its events in one instant are a sequence.
        self.corners = self.system.n_guards > 1 and not twice
        self.instants = Packer(self.no_instant())
        self.packs = self.instants.sizes()[0][0] <= _PACKED
        # Large jumps are differentiated in one place: a single event is a corner, too.
        self.one_place = self.corners and self.packs and self.system.has_large_jumps

    def __call__(self) -> Outputs:
        inputs, system, tape = self.inputs, self.system, self.tape
        dx0 = jnp.zeros_like(tape.x_end) if inputs.x0 is None else inputs.x0
        dt0 = jnp.zeros_like(tape.t_end) if inputs.t0 is None else inputs.t0
        dx, rows = self.through(dx0, dt0)
        dt1 = jnp.zeros_like(tape.t_end) if inputs.t1 is None else inputs.t1
        dt1 = jnp.where(tape.stopped, 0, dt1)
        if self.twice:
            _, d_flow = directional(
                lambda system, x: system.flow(tape.t_end, x, tape.mode_end),
                (system, tape.x_end),
                (inputs.system, dx),
            )
            dx = dx + (tape.t_end - lax.stop_gradient(tape.t_end)) * d_flow
        if inputs.t1 is not None:
            dx = dx + dt1 * system.flow(tape.t_end, tape.x_end, tape.mode_end)
        out_x, out_pre, out_t = rows
        out = Outputs(out_x, out_pre, dx, out_t, dt1)
        return poison(out, nonzero(inputs), self.recording.differentiable)

    def through(self, dx0, dt0):
        """The tangent at the end; and of every row those of the states at its start and
        before its event, and of the time of that."""
        tape = self.tape
        num_rows = eqxi.unvmap_max(tape.num_rows)
        rows, outs = Rows(tape, self.twice), Packer((dx0, dx0, dt0))
        # What is packed is zero before there is an instant: nobody reads it.
        instant = self.instants.zeros() if self.packs else ()
        aside = () if self.packs else self.no_instant()
        never = later_zero(tape.num_rows) < 0

        def later(tree) -> Any:
            """Not ready before the tape."""
            floats, others = eqx.partition(tree, eqx.is_inexact_array)
            select = lambda a: lax.select(never, jnp.zeros_like(a), a)
            return eqx.combine(jtu.tree_map(select, floats), others)

        given: Inputs = later(self.inputs)
        self.scale = scale_of((given.x0, given.t0), given.system, later(self.system))
        seen = jnp.zeros((self.system.n_guards,), jnp.int32)
        dx0, dt0 = later((dx0, dt0))
        start = _Carry(dx0, dt0, never, seen, instant)
        carries = Packer(start)

        def body(carry):
            i, carried, aside, tables = carry
            pair = rows.read_pair(i)

            def advance():
                row, next_ = rows.unpack_pair(pair)
                before: _Carry = carries.unpack(carried)
                if not self.packs:
                    before = before._replace(instant=aside)
                new, out = self.advance(i, row, next_, before)
                aside_after = () if self.packs else new.instant
                new = new if self.packs else new._replace(instant=())
                return i + 1, carries.pack(new), outs.pack(out), aside_after

            # Not a branch with a large instant in it: that would be copied.
            after, carried, out, aside = (
                compute_if(None, advance, (i, carried, outs.zeros(), ()))
                if self.packs
                else advance()
            )
            tables = tuple(
                lax.dynamic_update_index_in_dim(table, value, i, 0)
                for table, value in zip(tables, out, strict=True)
            )
            return after, carried, aside, tables

        tables = tuple(
            jnp.zeros((tape.t.shape[0], size), dtype) for size, dtype in outs.sizes()
        )
        init = (jnp.asarray(0, jnp.int32), carries.pack(start), aside, tables)
        _, carried, _, tables = lax.while_loop(lambda c: c[0] < num_rows, body, init)
        return carries.unpack(carried).dx, outs.unpack(tables)

    def advance(self, i, row: Row, next_: Row, before: _Carry):
        """Through one row."""
        last, fired = i + 1 >= self.tape.num_rows, row.event >= 0
        inner, more = row.inner(before.fired), next_.inner(fired) & ~last
        several = (inner | more | row.shared) & self.corners
        alone = fired & ~several
        place = _Place(
            inner=inner,
            more=more,
            at_start=(i == 0) & (row.dt == 0),
            shared=row.shared,
            alone=alone & self.one_place,
        )
        dx_pre, dt_event = self.flow(row, before.dx), jnp.zeros_like(before.dt)
        dx, dt_last, seen, instant = dx_pre, before.dt, before.seen, before.instant
        if self.system.n_guards > 0 and not self.one_place:
            dx, dt_event = cond_any(
                alone,
                lambda: where(
                    alone,
                    self.single(row, place, dx_pre, before.dt),
                    (dx_pre, dt_event),
                ),
                lambda: (dx_pre, dt_event),
            )
            dt_last = jnp.where(alone, dt_event, before.dt)
        if self.corners:
            several = several | place.alone
            end = self.tape.x_end, self.tape.mode_end
            successor = where(last, end, (next_.x, next_.mode))
            here = row, place, dx_pre, before.dt, seen
            if not self.packs:
                instant = self.resolved(*here, instant)
            after = (dx_pre, dx, dt_last, dt_event, seen)

            def together():
                packed = self.resolved(*here, instant) if self.packs else instant
                new = self.together(*here, successor, packed)
                return where(several, new, after), packed if self.packs else ()

            unchanged = instant if self.packs else ()
            after, packed = cond_any(several, together, lambda: (after, unchanged))
            dx_pre, dx, dt_last, dt_event, seen = after
            instant = packed if self.packs else instant
        new = _Carry(dx, dt_last, fired, seen, instant)
        return new, (before.dx, dx_pre, dt_event)

    def flow(self, row: Row, dx):
        """The tangent after the flow of a row."""
        recording, euler = self.recording, self.tape.projects & (row.event >= 0)
        moved = push_flow(
            recording.solver,
            self.system,
            self.inputs.system,
            row.t,
            recording.duration(row),
            row.x,
            row.mode,
            dx,
            recording.tangent_tol,
            self.scale,
        )
        if not self.tape.projects:
            return moved

        def projected():
            step = lambda system, x: x + row.dt * system.flow(row.t, x, row.mode)
            tangents = self.inputs.system, dx
            return directional(step, (self.system, row.x), tangents)[1]

        return cond_any(
            euler, lambda: jnp.where(euler, projected(), moved), lambda: moved
        )

    def single(self, row: Row, place: _Place, dx, dt_last):
        """The tangents after an event that is alone in its instant, and of its time."""
        t = row.t + row.dt
        if self.twice:
            event = jnp.maximum(row.event, 0)
            return directional(
                lambda system, x: event_map(system, t, x, row.mode, event),
                (self.system, row.x_pre),
                (self.inputs.system, dx),
            )[1]
        # What lanes without an event compute here is thrown away.
        here = t, row.x_pre, row.mode, row.event
        t, x, mode, event = of_a_lane_that(row.event >= 0, here)
        return event_tangent(
            self.system,
            t,
            x,
            mode,
            event,
            (self.inputs.system, dx, dt_last),
            row.inside,
            place.at_start | place.inner,
        )

    def no_instant(self):
        """What `instant` is before there is any, if there can be."""
        if not self.corners:
            return ()
        system, tape = self.system, self.tape
        t, x, mode = tape.t_end, tape.x_end, tape.mode_end
        none = jnp.zeros((system.n_guards,), bool)
        no = jnp.asarray(False)
        lead = Lead(t, x, mode, x, t, none, none, no, no)
        before = jnp.asarray(0, jnp.int32)
        return _Instant(lead, before, not_passed(system, t, x, mode, x))

    def lead(self, row: Row, place: _Place, dx, dt_last) -> Lead:
        return Lead(
            t=row.t + row.dt,
            x=row.x_pre,
            mode=row.mode,
            dx=dx,
            earliest=jnp.where(place.at_start, dt_last, -jnp.inf),
            members=self.tape.cluster(self.system, row.t, row.dt, row.x, row.mode),
            begins=jnp.arange(self.system.n_guards) == row.event,
            alone=place.alone,
            inside=row.inside,
        )

    def seen_before(self, row: Row, place: _Place, seen):
        """How often each guard has fired in the instant of this event; and how often
        the one that fires now."""
        seen = jnp.where(place.leads, 0, seen)
        this = jnp.arange(self.system.n_guards) == row.event
        return seen, jnp.sum(jnp.where(this, seen, 0), dtype=seen.dtype)

    def resolved(self, row: Row, place: _Place, dx, dt_last, seen, instant):
        """What is known of the instant of this event, packed or not as `instant` is: at
        its beginning, and where it is another firing of a guard, that is found out."""
        _, before = self.seen_before(row, place, seen)
        known = self.instants.unpack(instant) if self.packs else instant
        new = place.leads | (place.inner & (before != known.before))

        def resolve(old: _Instant) -> _Instant:
            lead: Any = self.lead(row, place, dx, dt_last)
            lead = where(place.leads, lead, old.lead)
            tols = self.tape.guard_set_tol, self.tape.same_time
            corner = resolve_corner(
                self.system, self.inputs.system, lead, before, *tols, new
            )
            return where(new, _Instant(lead, before, corner), old)

        if self.packs:
            packed = lambda: self.instants.pack(resolve(self.instants.unpack(instant)))
            return cond_any(new, packed, lambda: instant)
        # What a loop carries stays where it is; from branches XLA would copy it.
        once = lambda carry: (jnp.zeros((), bool), resolve(carry[1]))
        init = (eqxi.unvmap_any(new), instant)
        return lax.while_loop(lambda carry: carry[0], once, init)[1]

    def together(self, row: Row, place: _Place, dx, dt_last, seen, successor, instant):
        """Tangents before and after an event that shares its instant with others, or is
        a corner of one, `alone`; of the time of the last event, and of its time; and
        the guards `seen` until then. `successor` is the recorded state and mode after
        it."""
        j = jnp.maximum(row.event, 0)
        seen, _ = self.seen_before(row, place, seen)
        if self.packs:
            instant = self.instants.unpack(instant)
        c: Corner = instant.corner
        allowed = c.reach.allowed(self.tape.corner_tol)
        # At a corner the tangent before an event is that of the perturbed trajectory
        # when it meets this guard, brought back to fixed time by the recorded flow.
        flow_here = self.system.flow(row.t + row.dt, row.x_pre, row.mode)
        # If the order of the tangent gets there in another state, the state before this
        # event jumps; so does its time, if this is another one of several firings.
        as_recorded = same_outcome(c.guard_x[j], (), row.x_pre, (), allowed)
        known = as_recorded | (c.guard_count[j] == 1)
        dt = jnp.where(known, c.guard_dt[j], jnp.nan)
        dx_pre = jnp.where(as_recorded, c.guard_dx[j] - dt * flow_here, jnp.nan)
        # Or another guard fires in the place of this one, and nothing else happens.
        replaced = place.leads & ~place.more & (c.guard_count[j] == 0)
        replaced = replaced & (jnp.sum(c.guard_count) == 1)
        dt = jnp.where(replaced, c.dt, dt)
        dx_pre = jnp.where(replaced | place.alone, dx, dx_pre)
        # Another order that leads elsewhere: the flow jumps, there is no derivative.
        x_next, mode_next = successor
        differs = ~same_outcome(c.x, c.mode, x_next, mode_next, allowed)
        # (The same event alone leads to the same state, though where contacts are
        # redundant two evaluations may differ by more than is allowed.)
        same = place.leads & (c.count == 1) & (c.guard_count[j] == 1)
        dx_after = jnp.where(place.leads, c.dx, dx)
        dx_after = jnp.where(differs & ~same & ~place.more, jnp.nan, dx_after)
        dt_last = jnp.where(place.leads, c.dt, dt_last)
        seen = seen + (jnp.arange(seen.size) == j)
        return dx_pre, dx_after, dt_last, dt, seen
