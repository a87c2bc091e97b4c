"""Cotangents, back through the rows of a tape: the transpose of `Push`."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._jax.branch import (
    add_where,
    compute_if,
    cond_any,
    later_zero,
    of_a_lane_that,
    where,
)
from .._jax.pack import Packer
from .._jax.reduce import nonzero
from .._loop.tape import Row
from .._steps.variation import pull_flow, scale_of
from .recording import (
    AbstractTapeRecording,
    entry,
    Inputs,
    Outputs,
    poison,
    Rows,
)
from .saltation import event_map


# Cotangents of parameters up to this size are packed: to assemble large ones would take
# longer than to carry them.
_SMALL = 16

# Cotangents of parameters larger than this are not gone through for every event, of
# which each may touch a part of them only.
_LARGE = 1024

# Events that add to these at a time: together they go through them once.
_BLOCK = 128


def _split(tree: PyTree):
    return eqx.partition(tree, lambda leaf: leaf.size <= _SMALL)


class Pull:
    """Arguments are as in `AbstractRecording.pull`."""

    def __init__(
        self,
        cts: Outputs,
        wanted: Inputs,
        recording: AbstractTapeRecording,
        twice: bool,
    ):
        self.cts, self.wanted = cts, wanted
        # Not of the tables: XLA would fold those that are constant, for half a minute.
        self.scale = scale_of((cts.x_end, cts.t_end))
        self.recording, self.twice = recording, twice
        self.system, self.tape = recording.system, recording.tape
        self.moving, self.fixed = recording.split(wanted)
        # What only events depend on, and is large: its cotangents are found at the end.
        self.late = jtu.tree_map(lambda _: None, self.moving)
        if self.system.n_guards > 0 and not twice:
            self.moving, self.late = self.split_large()
            self.fixed = eqx.combine(self.fixed, self.late)

    def __call__(self) -> Inputs:
        recording, wanted = self.recording, self.wanted
        zero = later_zero(recording.differentiable.astype(jnp.int32))
        zeros = jtu.tree_map(
            lambda leaf: jnp.full_like(leaf, zero), recording.like_inputs(wanted)
        )
        return compute_if(None, self.pulled, zeros)

    def split_large(self):
        by_flow, others = self.system.split_by_flow(self.moving)
        others, late = eqx.partition(others, lambda leaf: leaf.size <= _LARGE)
        return eqx.combine(by_flow, others), late

    def combined(self, moving):
        return eqx.combine(moving, self.fixed)

    def pulled(self) -> Inputs:
        cts, wanted, tape = self.cts, self.wanted, self.tape
        ct = jnp.zeros_like(tape.x_end) if cts.x_end is None else cts.x_end
        ct_t1 = ct @ self.system.flow(tape.t_end, tape.x_end, tape.mode_end)
        if cts.t_end is not None:
            ct_t1 = ct_t1 + cts.t_end
        ct_system = jtu.tree_map(jnp.zeros_like, self.moving)
        if self.twice:
            _, vjp = jax.vjp(
                lambda moving, x: self.combined(moving).flow(
                    tape.t_end, x, tape.mode_end
                ),
                self.moving,
                tape.x_end,
            )
            later = tape.t_end - lax.stop_gradient(tape.t_end)
            ct_system, ct_x = vjp(later * ct)
            ct = ct + ct_x
        ct_x0, ct_t0, ct_system = self.through(ct, ct_system)

        out = Inputs(
            system=ct_system,
            x0=None if wanted.x0 is None else ct_x0,
            t0=None if wanted.t0 is None else ct_t0,
            t1=None if wanted.t1 is None else jnp.where(tape.stopped, 0, ct_t1),
        )
        return poison(out, nonzero(cts), self.recording.differentiable)

    def through(self, ct, ct_system):
        """From the cotangents at the end to those at the start, of state and time, and
        of the system."""
        cts, tape = self.cts, self.tape
        rows = Rows(tape, self.twice)
        given = (cts.x, cts.x_pre, cts.t_event)
        outs = Packer(jtu.tree_map(lambda buffer: buffer[0], given))
        asked_rows = len(jtu.tree_leaves(given)) > 0
        tables = jax.vmap(outs.pack)(given) if asked_rows else outs.pack(given)
        # Only what is small is packed: see `_SMALL`.
        small, large = _split(ct_system)
        start = (ct, jnp.zeros_like(tape.t_end), small)
        carries = Packer(start)
        # What comes back to the events, if that is needed once more.
        keeps = len(jtu.tree_leaves(self.late)) > 0
        met = (jnp.zeros_like(tape.x), jnp.zeros_like(tape.t)) if keeps else ()

        def body(carry):
            i, carried, large, met = carry
            pair = rows.read_pair(i)
            here = tuple(entry(table, i) for table in tables) if asked_rows else tables

            def retreat():
                row, next_ = rows.unpack_pair(pair)
                ct, ct_t, small = carries.unpack(carried)
                ct, ct_t, ct_system, met = self.retreat(
                    i,
                    row,
                    next_,
                    outs.unpack(here),
                    ct,
                    ct_t,
                    eqx.combine(small, large),
                )
                small, new = _split(ct_system)
                return i - 1, carries.pack((ct, ct_t, small)), new, met if keeps else ()

            none = jtu.tree_map(lambda table: jnp.zeros_like(table[0]), met)
            after, carried, large, here = compute_if(
                None, retreat, (i, carried, large, none)
            )
            met = jtu.tree_map(
                lambda table, new: lax.dynamic_update_index_in_dim(table, new, i, 0),
                met,
                here,
            )
            return after, carried, large, met

        num_rows = eqxi.unvmap_max(tape.num_rows)
        init = (num_rows - 1, carries.pack(start), large, met)
        _, carried, large, met = lax.while_loop(lambda c: c[0] >= 0, body, init)
        ct_x0, ct_t0, small = carries.unpack(carried)
        ct_late = self.of_events(rows, *met) if keeps else self.late
        return ct_x0, ct_t0, eqx.combine(small, large, ct_late)

    def retreat(self, i, row: Row, next_: Row, given, ct, ct_t, ct_system):
        """Back through one row, with the cotangents `given` of what it put out."""
        tape = self.tape
        last = i + 1 >= tape.num_rows
        after = where(last, (tape.x_end, tape.mode_end), (next_.x, next_.mode))
        zero = jnp.zeros_like(ct), jnp.zeros_like(ct), jnp.zeros_like(ct_t)
        ct_x, ct_pre, ct_event = (
            z if ct is None else ct for ct, z in zip(given, zero, strict=True)
        )
        fired = row.event >= 0

        ct_plus, ct_g = ct, jnp.zeros_like(ct_t)

        def back_event():
            d_system, d_x, d_t, ct_g = self.event(row, after, ct, ct_t + ct_event)
            return (
                jnp.where(fired, d_x, ct),
                jnp.where(fired, d_t, ct_t),
                add_where(fired, ct_system, d_system),
                ct_g,
            )

        if self.system.n_guards > 0:
            ct, ct_t, ct_system, ct_g = cond_any(
                fired, back_event, lambda: (ct, ct_t, ct_system, ct_g)
            )
        ct = ct + ct_pre

        ct_system, ct = self.flow(row, ct, ct_system)
        return ct + ct_x, ct_t, ct_system, (ct_plus, ct_g)

    def flow(self, row: Row, ct, ct_system):
        """Back through the flow of a row."""
        recording, euler = self.recording, self.tape.projects & (row.event >= 0)
        ct_moved, ct_before = pull_flow(
            recording.solver,
            self.combined,
            self.moving,
            row.t,
            recording.duration(row),
            row.x,
            row.mode,
            ct,
            ct_system,
            recording.tangent_tol,
            self.scale,
            self.twice,
        )
        if not self.tape.projects:
            return ct_moved, ct_before

        def projected():
            flow = lambda moving, x: self.combined(moving).flow(row.t, x, row.mode)
            step = lambda moving, x: x + row.dt * flow(moving, x)
            d_system, d_x = jax.vjp(step, self.moving, row.x)[1](ct)
            return add_where(euler, ct_moved, d_system), jnp.where(
                euler, d_x, ct_before
            )

        return cond_any(euler, projected, lambda: (ct_moved, ct_before))

    def event(self, row: Row, after, ct, ct_t):
        """Back through the saltation rule: its transpose, line by line. `after` is the
        recorded state and mode after the event. The last result is the cotangent of the
        guard; that of the jump is `ct`."""
        moving, combined = self.moving, self.combined
        t, x, mode = row.t + row.dt, row.x_pre, row.mode
        fired = row.event >= 0
        event = jnp.maximum(row.event, 0)
        if self.twice:
            _, vjp = jax.vjp(
                lambda moving, x: event_map(combined(moving), t, x, mode, event),
                moving,
                x,
            )
            return *vjp((ct, ct_t)), jnp.zeros_like(ct_t), jnp.zeros_like(ct_t)

        # What lanes without an event compute here is thrown away.
        t, x, mode, event = of_a_lane_that(fired, (t, x, mode, event))

        def guard(moving, t, x):
            return combined(moving).guards(t, x, mode)[event]

        def jump(moving, t, x):
            return combined(moving).jump(t, x, mode, event)[0]

        flow, flow_after = self.system.flows(t, (x, mode), after)
        g, vjp_guard = jax.vjp(guard, moving, t, x)
        dg_system, dg_t, dg_x = vjp_guard(jnp.ones_like(g))
        rate = jnp.where(fired & ~row.inside, dg_t + dg_x @ flow, 1)
        _, vjp_jump = jax.vjp(jump, moving, t, x)
        ct_system, ct_time, ct_x = vjp_jump(ct)
        ct_dt = ct_time + ct_x @ flow - ct @ flow_after + ct_t
        ct_g = jnp.where(row.inside, 0, -ct_dt / rate)
        return (
            # Parameters may have a dtype of their own.
            jtu.tree_map(
                lambda a, b: a + (ct_g * b).astype(a.dtype), ct_system, dg_system
            ),
            ct_x + ct_g * dg_x,
            jnp.where(row.inside, ct_dt, 0),
            ct_g,
        )

    def of_events(self, rows: Rows, ct_plus, ct_g):
        """The cotangents of what is `late`, from those of the guards and the jumps of
        all events: a block of events at a time."""
        fired = self.tape.fired
        total = jnp.cumsum(fired)
        fixed = eqx.combine(self.fixed, self.moving)

        def add(carry):
            k, ct_late = carry
            slot = k * _BLOCK + jnp.arange(_BLOCK)
            valid = slot < total[-1]
            # Slots that stay empty repeat an event: elsewhere a reset may be undefined.
            index = jnp.searchsorted(total, slot + 1)
            index = jnp.where(valid, index, jnp.argmax(fired))

            def at_events(late):
                system = eqx.combine(late, fixed)
                return jax.vmap(lambda row: _at_event(system, row))(rows.read(index))

            _, vjp = jax.vjp(at_events, self.late)
            cts = jnp.where(valid[:, None], ct_plus[index], 0), ct_g[index]
            (more,) = vjp((cts[0], jnp.where(valid, cts[1], 0)))
            return k + 1, add_where(total[-1] > 0, ct_late, more)

        blocks = -(-eqxi.unvmap_max(total[-1]) // _BLOCK)
        init = jnp.zeros_like(blocks), jtu.tree_map(jnp.zeros_like, self.late)
        return lax.while_loop(lambda carry: carry[0] < blocks, add, init)[1]


def _at_event(system, row: Row):
    """The state after an event, and its guard."""
    t, event = row.t + row.dt, jnp.maximum(row.event, 0)
    x_plus, _ = system.jump(t, row.x_pre, row.mode, event)
    return x_plus, system.guards(t, row.x_pre, row.mode)[event]
