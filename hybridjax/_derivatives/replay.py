"""The tangent map of a tape, and its transpose, as a pair of primitives.

`push` takes tangents of the system's parameters, of the initial state and of the
initial time forward through the rows; `pull` takes cotangents back. Each is the other's
transpose, except at corners: there `push` follows the tangent (the B-derivative), and
`pull` the recorded order, one element of the B-subdifferential.
"""

from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._jax.branch import compute_if, cond_any, later_zero, where
from .._jax.pack import Packer
from .._jax.primitives import abstract_eval, is_linear, wanted_of
from .._jax.tie import tie
from .._loop.tape import Row, Tape
from .._steps.step import flow_for, pull_flow
from .._systems.flat import FlatSystem
from .corner import resolve_corner, same_outcome
from .saltation import directional, event_map, event_tangent


class Inputs(eqx.Module):
    """Tangents or cotangents of what a simulation depends on; `None` where zero."""

    system: PyTree  # like FlatSystem
    x0: Float[Array, " n"] | None
    t0: Float[Array, ""] | None
    t1: Float[Array, ""] | None


class Outputs(eqx.Module):
    """Tangents or cotangents of what a simulation returns; `None` where zero."""

    x: Float[Array, "rows n"] | None
    x_pre: Float[Array, "rows n"] | None
    x_end: Float[Array, " n"] | None
    t_event: Float[Array, " rows"] | None
    t_end: Float[Array, ""] | None


class Recording(eqx.Module):
    """All that the replay needs to know. For a second derivative, the system and the
    states on the tape carry a tangent themselves."""

    system: FlatSystem
    tape: Tape
    solver: Any

    @property
    def differentiable(self) -> Bool[Array, ""]:
        """Where it is not, derivatives are NaN."""
        return self.tape.successful & self.tape.smooth

    def row_flow(self, system: FlatSystem, row: Row, x) -> Float[Array, " n"]:
        """From `x` at the start of a row to its end, before its event."""
        projected = row.event >= 0 if self.tape.projects else None
        return flow_for(self.solver, system, row.t, row.dt, x, row.mode, projected)


class _Resolved(eqx.Module):
    """How a tangent passes several events in one instant; see `Corner`."""

    dx: Array
    dt: Array
    x: Array
    mode: PyTree
    guard_dt: Array
    guard_dx: Array
    guard_x: Array
    guard_count: Array


class _Place(NamedTuple):
    """Where a row with an event is, among others."""

    inner: Array  # does it belong to the instant of the row before
    more: Array  # does the next row belong to the same instant
    at_start: Array  # does no flow precede it

    @property
    def leads(self):
        """Is it the first of several events in one instant?"""
        return self.more & ~self.inner


class _Rows:
    """Reads the rows of a tape: each is a single operation."""

    def __init__(self, tape: Tape, twice: bool):
        rows = Row(
            tape.t, tape.dt, tape.rate, tape.x, tape.x_pre, tape.mode, tape.event
        )
        self._packer = Packer(jtu.tree_map(lambda buffer: buffer[0], rows))
        # What was written down carries no tangent.
        self._table = jax.vmap(self._packer.pack)(rows) if twice else tape.table

    def read_pair(self, i):
        """Row `i` and the one after it."""
        size = self._table[0].shape[0]
        begin = jnp.minimum(i, max(size - 2, 0))
        read = lambda table: lax.dynamic_slice_in_dim(table, begin, min(size, 2))
        return i - begin, tuple(read(table) for table in self._table)

    def unpack_pair(self, pair) -> tuple[Row, Row]:
        """If there is no row after it, the second is any other."""
        at, entries = pair
        here = self._packer.unpack(tuple(_entry(two, at) for two in entries))
        return here, self._packer.unpack(tuple(two[-1] for two in entries))


#
# Forward
#


def _push_impl(inputs: Inputs, recording: Recording, twice=False) -> Outputs:
    """With `twice`, in a form that can be differentiated with respect to what is
    recorded; events then have to be isolated."""
    system, tape, row_flow = recording.system, recording.tape, recording.row_flow
    n_guards = system.n_guards
    corners = n_guards > 1 and not twice
    dt0 = jnp.zeros_like(tape.t_end) if inputs.t0 is None else inputs.t0
    dx0 = jnp.zeros_like(tape.x_end) if inputs.x0 is None else inputs.x0
    num_rows = eqxi.unvmap_max(tape.num_rows)
    nan = jnp.full_like(dx0, jnp.nan)

    def flow(row: Row, dx):
        def moved():
            _, dx_pre = directional(
                lambda system, x: row_flow(system, row, x),
                (system, row.x),
                (inputs.system, dx),
            )
            return jnp.where(row.dt > 0, dx_pre, dx)

        return cond_any(row.dt > 0, moved, lambda: dx)

    def single(row: Row, place: _Place, dx, dt_last):
        if twice:
            event = jnp.maximum(row.event, 0)
            return directional(
                lambda system, x: event_map(system, row.t + row.dt, x, row.mode, event),
                (system, row.x_pre),
                (inputs.system, dx),
            )[1]
        return event_tangent(
            system,
            row.t + row.dt,
            row.x_pre,
            row.mode,
            row.event,
            (inputs.system, dx, dt_last),
            tape.guard_set_tol,
            place.at_start | place.inner,
        )

    def corner(row: Row, place: _Place, dx, dt_last) -> _Resolved:
        c = resolve_corner(
            system,
            row.t + row.dt,
            row.x_pre,
            row.mode,
            inputs.system,
            dx,
            tape.guard_set_tol,
            place.leads,
            jnp.where(place.at_start, dt_last, -jnp.inf),
            tape.cluster(system, row.t, row.dt, row.x, row.mode),
        )
        return _Resolved(
            c.dx, c.dt, c.x, c.mode, c.guard_dt, c.guard_dx, c.guard_x, c.guard_count
        )

    def together(row: Row, place: _Place, last, next_: Row, dx, dt_last, packed):
        """Tangents before and after an event that shares its instant with others, and
        of its time."""

        def resolve():
            new = corner(row, place, dx, dt_last)
            old = resolutions.unpack(packed)
            return resolutions.pack(where(place.leads, new, old))

        packed = cond_any(place.leads, resolve, lambda: packed)
        r: _Resolved = resolutions.unpack(packed)
        # At a corner the tangent before an event is that of the perturbed trajectory
        # when it meets this guard, brought back to fixed time by the recorded flow.
        j = jnp.maximum(row.event, 0)
        flow_here = system.flow(row.t + row.dt, row.x_pre, row.mode)
        # If the order of the tangent gets there in another state, the state before this
        # event jumps; so does its time, if this is another one of several firings.
        as_recorded = same_outcome(r.guard_x[j], (), row.x_pre, ())
        known = as_recorded | (r.guard_count[j] == 1)
        dt = jnp.where(known, r.guard_dt[j], jnp.nan)
        dx_pre = jnp.where(as_recorded, r.guard_dx[j] - dt * flow_here, jnp.nan)
        # Another order that leads elsewhere: the flow jumps, there is no derivative.
        after = where(last, (tape.x_end, tape.mode_end), (next_.x, next_.mode))
        ends = place.inner & ~same_outcome(r.x, r.mode, *after)
        dx_after = jnp.where(place.leads, r.dx, dx)
        dx_after = jnp.where(ends & ~place.more, nan, dx_after)
        return dx_pre, dx_after, jnp.where(place.leads, r.dt, dt_last), dt, packed

    def advance(i, pair, carried):
        row, next_ = rows.unpack_pair(pair)
        dx, dt_last, fired_last, packed = carries.unpack(carried)
        last, fired = i + 1 >= tape.num_rows, row.event >= 0
        # Two events in rows that follow each other, with no flow between them.
        place = _Place(
            inner=fired_last & fired & (row.dt == 0),
            more=fired & ~last & (next_.event >= 0) & (next_.dt == 0),
            at_start=(i == 0) & (row.dt == 0),
        )
        dx_start, dx_pre, dt_event = dx, flow(row, dx), jnp.zeros_like(dt_last)
        after = (dx_pre, dx_pre, dt_last, dt_event, packed)
        if n_guards > 0:
            # One guard has one order only: its events in one instant are a sequence.
            several = (place.more | place.inner) & corners
            alone = fired & ~several
            dx_one, dt_one = cond_any(
                alone,
                lambda: where(
                    alone, single(row, place, dx_pre, dt_last), (dx_pre, dt_event)
                ),
                lambda: (dx_pre, dt_event),
            )
            dt_last_one = jnp.where(alone, dt_one, dt_last)
            after = (dx_pre, dx_one, dt_last_one, dt_one, packed)
        if corners:
            after = cond_any(
                several,
                lambda: where(
                    several,
                    together(row, place, last, next_, dx_pre, dt_last, packed),
                    after,
                ),
                lambda: after,
            )
        dx_pre, dx, dt_last, dt_event, packed = after
        out = outs.pack((dx_start, dx_pre, dt_event))
        return i + 1, carries.pack((dx, dt_last, fired, packed)), out

    def body(carry):
        i, carried, tables = carry
        pair = rows.read_pair(i)
        after, carried, out = compute_if(
            i < num_rows,
            lambda: advance(i, pair, carried),
            (i, carried, outs.zeros()),
        )
        tables = tuple(
            lax.dynamic_update_index_in_dim(table, value, i, 0)
            for table, value in zip(tables, out, strict=True)
        )
        return after, carried, tables

    nothing = jnp.zeros((n_guards, *dx0.shape), dx0.dtype)
    resolved = _Resolved(
        dx0,
        dt0,
        tape.x_end,
        tape.mode_end,
        jnp.zeros((n_guards,), dx0.dtype),
        nothing,
        nothing,
        jnp.zeros((n_guards,), jnp.int32),
    )
    resolved = resolved if corners else ()
    resolutions = Packer(resolved)
    rows, outs = _Rows(tape, twice), Packer((dx0, dx0, dt0))
    fired = later_zero(tape.num_rows) < 0
    state = (dx0, dt0, fired, resolutions.pack(resolved))
    carries = Packer(state)
    tables = tuple(
        jnp.zeros((tape.t.shape[0], size), dtype) for size, dtype in outs.sizes()
    )
    init = (jnp.asarray(0, jnp.int32), carries.pack(state), tables)
    _, carried, tables = lax.while_loop(lambda c: c[0] < num_rows, body, init)
    dx, _, _, _ = carries.unpack(carried)
    out_x, out_pre, out_t = outs.unpack(tables)
    dt1 = jnp.zeros_like(tape.t_end) if inputs.t1 is None else inputs.t1
    if twice:
        _, d_flow = directional(
            lambda system, x: system.flow(tape.t_end, x, tape.mode_end),
            (system, tape.x_end),
            (inputs.system, dx),
        )
        dx = dx + (tape.t_end - lax.stop_gradient(tape.t_end)) * d_flow
    if inputs.t1 is not None:
        dx = dx + dt1 * system.flow(tape.t_end, tape.x_end, tape.mode_end)
    out = Outputs(out_x, out_pre, dx, out_t, dt1)
    return jtu.tree_map(lambda d: _poison(d, recording.differentiable), out)


def _poison(tangent, differentiable):
    """NaN where no derivative exists; but what is not perturbed stays zero, so that a
    loss that leaves this lane out does not see it."""
    bad = jnp.where(tangent == 0, tangent, jnp.nan)
    return jnp.where(differentiable, tangent, bad)


#
# Backward
#

# Cotangents of parameters up to this size are packed: to assemble large ones would take
# longer than to carry them.
_SMALL = 16


def _pull_impl(
    cts: Outputs, wanted: Inputs, recording: Recording, twice=False
) -> Inputs:
    """`wanted` has `True` where a cotangent is asked for, `None` elsewhere."""
    zero = later_zero(recording.differentiable.astype(jnp.int32))
    zeros = jtu.tree_map(
        lambda leaf: jnp.full_like(leaf, zero), _like_inputs(wanted, recording)
    )
    return compute_if(None, lambda: _pulled(cts, wanted, recording, twice), zeros)


def _pulled(cts: Outputs, wanted: Inputs, recording: Recording, twice) -> Inputs:
    system, tape, row_flow = recording.system, recording.tape, recording.row_flow
    leaves, treedef = jtu.tree_flatten(system)
    mask = [w is not None for w in treedef.flatten_up_to(wanted.system)]
    moving, fixed = eqx.partition(system, jtu.tree_unflatten(treedef, mask))
    del leaves
    num_rows = eqxi.unvmap_max(tape.num_rows)

    combined = lambda moving: eqx.combine(moving, fixed)

    def flow(row: Row, ct):
        """Back through the flow of a row."""
        if tape.projects:
            fn = lambda moving, x: row_flow(combined(moving), row, x)
            return jax.vjp(fn, moving, row.x)[1](ct)
        return pull_flow(
            recording.solver, combined, moving, row.t, row.dt, row.x, row.mode, ct
        )

    def event(row: Row, after, ct, ct_t):
        """Back through the saltation rule: its transpose, line by line. `after` is the
        recorded state and mode after the event."""
        t, x, mode = row.t + row.dt, row.x_pre, row.mode
        fired = row.event >= 0
        event = jnp.maximum(row.event, 0)
        if twice:
            _, vjp = jax.vjp(
                lambda moving, x: event_map(combined(moving), t, x, mode, event),
                moving,
                x,
            )
            return *vjp((ct, ct_t)), jnp.zeros_like(ct_t)

        def guard(moving, t, x):
            return combined(moving).guards(t, x, mode)[event]

        def jump(moving, t, x):
            return combined(moving).jump(t, x, mode, event)[0]

        flow, flow_after = system.flows(t, (x, mode), after)
        g, vjp_guard = jax.vjp(guard, moving, t, x)
        dg_system, dg_t, dg_x = vjp_guard(jnp.ones_like(g))
        rate = jnp.where(fired, dg_t + dg_x @ flow, 1)
        _, vjp_jump = jax.vjp(jump, moving, t, x)
        ct_system, ct_time, ct_x = vjp_jump(ct)
        ct_dt = ct_time + ct_x @ flow - ct @ flow_after + ct_t
        inside = g < -tape.guard_set_tol * jnp.abs(rate)
        ct_g = jnp.where(inside, 0, -ct_dt / rate)
        return (
            jtu.tree_map(lambda a, b: a + ct_g * b, ct_system, dg_system),
            ct_x + ct_g * dg_x,
            jnp.where(inside, ct_dt, 0),
        )

    def add(total, pred, more):
        """Adds in the lanes where `pred`; what the others computed may be NaN."""
        return jtu.tree_map(
            lambda a, b: a + jnp.where(pred, b, jnp.zeros_like(b)), total, more
        )

    def retreat(i, pair, given, carried, large):
        row, next_ = rows.unpack_pair(pair)
        last = i + 1 >= tape.num_rows
        after = where(last, (tape.x_end, tape.mode_end), (next_.x, next_.mode))
        ct, ct_t, small = carries.unpack(carried)
        ct_system = eqx.combine(small, large)
        zero = jnp.zeros_like(ct), jnp.zeros_like(ct), jnp.zeros_like(ct_t)
        ct_x, ct_pre, ct_event = (
            z if ct is None else ct
            for ct, z in zip(outs.unpack(given), zero, strict=True)
        )
        fired = row.event >= 0

        def back_event():
            d_system, d_x, d_t = event(row, after, ct, ct_t + ct_event)
            return (
                jnp.where(fired, d_x, ct),
                jnp.where(fired, d_t, ct_t),
                add(ct_system, fired, d_system),
            )

        if system.n_guards > 0:
            ct, ct_t, ct_system = cond_any(
                fired, back_event, lambda: (ct, ct_t, ct_system)
            )
        ct = ct + ct_pre

        def back_flow():
            d_system, d_x = flow(row, ct)
            moved = row.dt > 0
            return jnp.where(moved, d_x, ct), add(ct_system, moved, d_system)

        ct, ct_system = cond_any(row.dt > 0, back_flow, lambda: (ct, ct_system))
        small, large = split(ct_system)
        return i - 1, carries.pack((ct + ct_x, ct_t, small)), large

    def body(carry):
        i, carried, large = carry
        pair = rows.read_pair(i)
        given = tuple(_entry(table, i) for table in tables) if asked_rows else tables
        return compute_if(
            i >= 0,
            lambda: retreat(i, pair, given, carried, large),
            (i, carried, large),
        )

    ct = jnp.zeros_like(tape.x_end) if cts.x_end is None else cts.x_end
    speed = system.flow(tape.t_end, tape.x_end, tape.mode_end)
    ct_t1 = ct @ speed
    if cts.t_end is not None:
        ct_t1 = ct_t1 + cts.t_end
    ct_t = jnp.zeros_like(tape.t_end)
    ct_system = jtu.tree_map(jnp.zeros_like, moving)
    if twice:
        _, vjp = jax.vjp(
            lambda moving, x: eqx.combine(moving, fixed).flow(
                tape.t_end, x, tape.mode_end
            ),
            moving,
            tape.x_end,
        )
        later = tape.t_end - lax.stop_gradient(tape.t_end)
        ct_system, ct_x = vjp(later * ct)
        ct = ct + ct_x
    split = lambda tree: eqx.partition(tree, lambda leaf: leaf.size <= _SMALL)
    small, large = split(ct_system)
    rows = _Rows(tape, twice)
    given = (cts.x, cts.x_pre, cts.t_event)
    outs = Packer(jtu.tree_map(lambda buffer: buffer[0], given))
    asked_rows = len(jtu.tree_leaves(given)) > 0
    tables = jax.vmap(outs.pack)(given) if asked_rows else outs.pack(given)
    state = (ct, ct_t, small)
    carries = Packer(state)
    init = (num_rows - 1, carries.pack(state), large)
    _, carried, large = lax.while_loop(lambda c: c[0] >= 0, body, init)
    ct_x0, ct_t0, small = carries.unpack(carried)
    ct_system = eqx.combine(small, large)

    asked = jnp.asarray(False)
    for leaf in jtu.tree_leaves(cts):
        asked = asked | jnp.any(leaf != 0)
    dead = lambda d: jnp.where(
        recording.differentiable, d, jnp.where(asked, jnp.nan, jnp.zeros_like(d))
    )
    return Inputs(
        system=jtu.tree_map(dead, ct_system),
        x0=None if wanted.x0 is None else dead(ct_x0),
        t0=None if wanted.t0 is None else dead(ct_t0),
        t1=None if wanted.t1 is None else dead(ct_t1),
    )


def _entry(buffer, i):
    return lax.dynamic_index_in_dim(buffer, i, keepdims=False)


#
# The primitives
#

_REVERSE = (
    "Second derivatives through `hj.simulate` are taken forward over reverse: "
    "`jax.hessian`, `jax.jacfwd(jax.grad(f))`, or `jax.jvp(jax.grad(f), (x,), (v,))` "
    "for the product of the Hessian and a vector. A derivative of the simulation was "
    "itself differentiated in reverse mode: replace the outer `jax.grad` or "
    "`jax.jacrev` by `jax.jacfwd` or `jax.jvp`."
)
_THIRD = (
    "hybridjax has first and second derivatives through `hj.simulate`: a second "
    "derivative of a simulation was itself differentiated. Use finite differences of "
    "second derivatives instead."
)


def _like_outputs(recording: Recording) -> Outputs:
    tape = recording.tape
    return Outputs(tape.x, tape.x_pre, tape.x_end, tape.t_event, tape.t_end)


def _like_inputs(wanted: Inputs, recording: Recording) -> Inputs:
    """`None` where not `wanted`."""
    tape = recording.tape
    like = Inputs(recording.system, tape.x_end, tape.t_end, tape.t_end)
    return wanted_of(wanted, like)


@eqxi.filter_primitive_jvp
def _push_jvp(primals, tangents):
    inputs, recording = primals
    t_inputs, t_recording = tangents
    if jtu.tree_leaves(t_recording):
        t_out = _second(_push_twice_p, t_inputs, t_recording, inputs, recording)
    else:
        t_out = push(t_inputs, recording)
    return push(inputs, recording), t_out


@eqxi.filter_primitive_transpose
def _push_transpose(primals, cts: Outputs):
    inputs, recording = primals
    wanted = jtu.tree_map(
        lambda leaf: True if is_linear(leaf) else None, inputs, is_leaf=is_linear
    )
    ct_inputs = pull(cts, wanted, recording)
    return ct_inputs, jtu.tree_map(lambda _: None, recording)


@eqxi.filter_primitive_jvp
def _pull_jvp(primals, tangents):
    cts, wanted, recording = primals
    t_cts, _, t_recording = tangents
    if jtu.tree_leaves(t_recording):
        t_out = _second(_pull_twice_p, t_cts, t_recording, cts, wanted, recording)
    else:
        t_out = pull(t_cts, wanted, recording)
    return pull(cts, wanted, recording), t_out


@eqxi.filter_primitive_transpose
def _pull_transpose(primals, ct_inputs: Inputs):
    cts, wanted, recording = primals
    out = push(ct_inputs, recording)
    out = Outputs(
        *(
            new if is_linear(old) else None
            for old, new in zip(
                (cts.x, cts.x_pre, cts.x_end, cts.t_event, cts.t_end),
                (out.x, out.x_pre, out.x_end, out.t_event, out.t_end),
                strict=True,
            )
        )
    )
    return (
        out,
        jtu.tree_map(lambda _: None, wanted),
        jtu.tree_map(lambda _: None, recording),
    )


def _push_twice_impl(t_inputs, t_recording, inputs, recording) -> Outputs:
    """The tangent of `push`."""
    _, t_out = directional(
        lambda inputs, recording: _push_impl(inputs, recording, twice=True),
        (inputs, recording),
        (t_inputs, t_recording),
    )
    return _where_isolated(recording, t_out)


def _pull_twice_impl(t_cts, t_recording, cts, wanted, recording) -> Inputs:
    """The tangent of `pull`."""
    _, t_out = directional(
        lambda cts, recording: _pull_impl(cts, wanted, recording, twice=True),
        (cts, recording),
        (t_cts, t_recording),
    )
    return _where_isolated(recording, t_out)


def _where_isolated(recording: Recording, tangents):
    """A second derivative, where no two events share an instant, and none happens at
    the start."""
    exists = recording.differentiable & recording.tape.smooth_twice
    return jtu.tree_map(lambda d: _poison(d, exists), tangents)


@eqxi.filter_primitive_jvp
def _no_third(primals, tangents):
    raise NotImplementedError(_THIRD)


@eqxi.filter_primitive_transpose
def _no_reverse(primals, cts):
    raise NotImplementedError(_REVERSE)


_push_p = eqxi.create_vprim(
    "hybridjax_push",
    eqxi.filter_primitive_def(_push_impl),
    abstract_eval(lambda inputs, recording: _like_outputs(recording)),
    _push_jvp,
    _push_transpose,
)
_pull_p = eqxi.create_vprim(
    "hybridjax_pull",
    eqxi.filter_primitive_def(_pull_impl),
    abstract_eval(lambda cts, wanted, recording: _like_inputs(wanted, recording)),
    _pull_jvp,
    _pull_transpose,
)


_push_twice_p = eqxi.create_vprim(
    "hybridjax_push_twice",
    eqxi.filter_primitive_def(_push_twice_impl),
    abstract_eval(lambda *args: _like_outputs(args[-1])),
    _no_third,
    _no_reverse,
)
_pull_twice_p = eqxi.create_vprim(
    "hybridjax_pull_twice",
    eqxi.filter_primitive_def(_pull_twice_impl),
    abstract_eval(lambda *args: _like_inputs(*args[-2:])),
    _no_third,
    _no_reverse,
)


def _second(primitive, t_given, t_recording, *primals):
    t_given = _tie_to(primals[-1], t_given)
    return eqxi.filter_primitive_bind(primitive, t_given, t_recording, *primals)


def push(inputs: Inputs, recording: Recording) -> Outputs:
    inputs = _tie_to(recording, inputs)
    return eqxi.filter_primitive_bind(_push_p, inputs, recording)


def pull(cts: Outputs, wanted: Inputs, recording: Recording) -> Inputs:
    cts = _tie_to(recording, cts)
    return eqxi.filter_primitive_bind(_pull_p, cts, wanted, recording)


def _tie_to(recording: Recording, tree: PyTree) -> PyTree:
    # A tangent that all lanes share is made one for each outside of the primitive, so
    # that JAX sums over them when it transposes.
    return tie(tree, (recording.system, recording.tape.t_end))
