"""Tangents, forward through the rows of a tape."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._jax.branch import compute_if, cond_any, later_zero, where
from .._jax.directional import directional
from .._jax.pack import Packer
from .._jax.reduce import nonzero
from .._loop.tape import Row
from .._steps.variation import push_flow, scale_of
from .corner import Corner, not_passed, resolve_corner
from .passage import same_outcome
from .recording import AbstractTapeRecording, Inputs, Outputs, poison, Rows
from .saltation import event_map, event_tangent


class _Lead(eqx.Module):
    """The beginning of an instant with several events."""

    t: Array
    x: Array
    mode: PyTree
    dx: Array
    earliest: Array  # tangent of the time before which nothing can happen
    members: Array
    begins: Array  # the guard that was recorded first


class _Instant(eqx.Module):
    """An instant with several events."""

    lead: _Lead
    seen: Array  # how often each guard has fired in it
    corner: Corner  # how the tangent passes it


class _Place(NamedTuple):
    """Where a row with an event is, among others."""

    inner: Array  # does it belong to the instant of the row before
    more: Array  # does the next row belong to the same instant
    at_start: Array  # does no flow precede it
    shared: Array  # could another guard have fired in its place

    @property
    def leads(self):
        """Is it the first event of an instant in which there are, or could have been,
        several?"""
        return (self.more | self.shared) & ~self.inner


class _Carry(NamedTuple):
    """What goes from row to row."""

    dx: Array  # at fixed time
    dt: Array  # of the time of the event last passed
    fired: Array  # did the row before end in an event
    instant: PyTree  # the one that is being passed, packed


class Push:
    """With `twice`, in a form that can be differentiated with respect to what is
    recorded; events then have to be isolated."""

    def __init__(self, inputs: Inputs, recording: AbstractTapeRecording, twice: bool):
        self.inputs, self.recording, self.twice = inputs, recording, twice
        self.system, self.tape = recording.system, recording.tape
        # One guard has one order only: its events in one instant are a sequence.
        self.corners = self.system.n_guards > 1 and not twice
        self.scale = scale_of((inputs.x0, inputs.t0), inputs.system, recording.system)
        self.instants = Packer(self.no_instant())

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
        fired = later_zero(tape.num_rows) < 0
        start = _Carry(dx0, dt0, fired, self.instants.pack(self.no_instant()))
        carries = Packer(start)

        def body(carry):
            i, carried, tables = carry
            pair = rows.read_pair(i)

            def advance():
                row, next_ = rows.unpack_pair(pair)
                new, out = self.advance(i, row, next_, carries.unpack(carried))
                return i + 1, carries.pack(new), outs.pack(out)

            after, carried, out = compute_if(
                i < num_rows, advance, (i, carried, outs.zeros())
            )
            tables = tuple(
                lax.dynamic_update_index_in_dim(table, value, i, 0)
                for table, value in zip(tables, out, strict=True)
            )
            return after, carried, tables

        tables = tuple(
            jnp.zeros((tape.t.shape[0], size), dtype) for size, dtype in outs.sizes()
        )
        init = (jnp.asarray(0, jnp.int32), carries.pack(start), tables)
        _, carried, tables = lax.while_loop(lambda c: c[0] < num_rows, body, init)
        return carries.unpack(carried).dx, outs.unpack(tables)

    def advance(self, i, row: Row, next_: Row, before: _Carry):
        """Through one row."""
        last, fired = i + 1 >= self.tape.num_rows, row.event >= 0
        # Two events in rows that follow each other, with no flow between them.
        place = _Place(
            inner=before.fired & fired & (row.dt == 0),
            more=fired & ~last & (next_.event >= 0) & (next_.dt == 0),
            at_start=(i == 0) & (row.dt == 0),
            shared=row.shared,
        )
        dx_pre, dt_event = self.flow(row, before.dx), jnp.zeros_like(before.dt)
        after = (dx_pre, dx_pre, before.dt, dt_event, before.instant)
        if self.system.n_guards > 0:
            several = (place.leads | place.inner) & self.corners
            alone = fired & ~several
            dx_one, dt_one = cond_any(
                alone,
                lambda: where(
                    alone,
                    self.single(row, place, dx_pre, before.dt),
                    (dx_pre, dt_event),
                ),
                lambda: (dx_pre, dt_event),
            )
            dt_last = jnp.where(alone, dt_one, before.dt)
            after = (dx_pre, dx_one, dt_last, dt_one, before.instant)
        if self.corners:
            end = self.tape.x_end, self.tape.mode_end
            successor = where(last, end, (next_.x, next_.mode))
            carried = dx_pre, before.dt, before.instant
            after = cond_any(
                several,
                lambda: where(
                    several, self.together(row, place, successor, *carried), after
                ),
                lambda: after,
            )
        dx_pre, dx, dt_last, dt_event, instant = after
        return _Carry(dx, dt_last, fired, instant), (before.dx, dx_pre, dt_event)

    def flow(self, row: Row, dx):
        """The tangent after the flow of a row."""
        recording, euler = self.recording, self.tape.projects & (row.event >= 0)
        moved = push_flow(
            recording.solver,
            self.system,
            self.inputs.system,
            row.t,
            jnp.where(euler, 0, row.dt),
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
        tangents = event_tangent(
            self.system,
            t,
            row.x_pre,
            row.mode,
            row.event,
            (self.inputs.system, dx, dt_last),
            row.inside,
            place.at_start | place.inner,
        )
        # The rule divides by the rate. Where that is zero, what it says may be zero
        # too, and would pass for a derivative that exists.
        turns = ~row.inside & (row.rate == 0)
        return jtu.tree_map(lambda d: jnp.where(turns, jnp.nan, d), tangents)

    def no_instant(self):
        """What `instant` is before there is any, if there can be."""
        if not self.corners:
            return ()
        system, tape = self.system, self.tape
        t, x, mode = tape.t_end, tape.x_end, tape.mode_end
        none = jnp.zeros((system.n_guards,), jnp.int32)
        lead = _Lead(t, x, mode, x, t, none == 0, none == 0)
        return _Instant(lead, none, not_passed(system, t, x, mode, x))

    def lead(self, row: Row, place: _Place, dx, dt_last) -> _Lead:
        return _Lead(
            t=row.t + row.dt,
            x=row.x_pre,
            mode=row.mode,
            dx=dx,
            earliest=jnp.where(place.at_start, dt_last, -jnp.inf),
            members=self.tape.cluster(self.system, row.t, row.dt, row.x, row.mode),
            begins=jnp.arange(self.system.n_guards) == row.event,
        )

    def together(self, row: Row, place: _Place, successor, dx, dt_last, packed):
        """Tangents before and after an event that shares its instant with others, and
        of its time. `successor` is the recorded state and mode after it."""
        j = jnp.maximum(row.event, 0)
        this = jnp.arange(self.system.n_guards) == j
        old: Any = self.instants.unpack(packed)
        seen = jnp.where(place.leads, 0, old.seen)
        before = jnp.sum(jnp.where(this, seen, 0))
        # Once at the beginning; and again where a guard fires again.
        new = place.leads | (place.inner & (before > 0))

        def resolve():
            lead: Any = self.lead(row, place, dx, dt_last)
            lead = where(place.leads, lead, old.lead)
            corner = resolve_corner(
                self.system,
                lead.t,
                lead.x,
                lead.mode,
                self.inputs.system,
                lead.dx,
                self.tape.guard_set_tol,
                new,
                lead.earliest,
                lead.members,
                lead.begins,
                before,
            )
            return self.instants.pack(where(new, _Instant(lead, seen, corner), old))

        packed = cond_any(new, resolve, lambda: packed)
        instant: Any = self.instants.unpack(packed)
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
        dx_pre = jnp.where(replaced, dx, dx_pre)
        # Another order that leads elsewhere: the flow jumps, there is no derivative.
        x_next, mode_next = successor
        differs = ~same_outcome(c.x, c.mode, x_next, mode_next, allowed)
        dx_after = jnp.where(place.leads, c.dx, dx)
        dx_after = jnp.where(differs & ~place.more, jnp.nan, dx_after)
        instant = dataclasses.replace(instant, seen=instant.seen + this)
        dt_last = jnp.where(place.leads, c.dt, dt_last)
        return dx_pre, dx_after, dt_last, dt, self.instants.pack(instant)
