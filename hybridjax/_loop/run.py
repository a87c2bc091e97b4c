"""The flat event loop: each iteration makes one solver step, for every lane.

There is no loop over events around a loop over steps: under `vmap` every lane would
wait for the slowest one at each event. What an iteration does about events is the
matter of the event method: `landing.py`, `projection.py`.
"""

import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax.branch import compute_if, later_zero
from .._jax.convert import convert
from .._jax.pack import Packer
from .loop import AbstractLoop
from .results import choose, RESULTS
from .state import State
from .tape import Row, Tape


def run(loop: AbstractLoop, x0, mode0) -> Tape:
    """Simulates, and returns the tape."""
    t0, t1, settings = loop.t0, loop.t1, loop.settings
    # One trace says what states are like, and makes the first one.
    start = convert(loop.start, x0, mode0)
    states = Packer(jtu.tree_unflatten(start.structure, start.out_avals))
    no = jnp.asarray(False)
    rows = Packer(Row(t0, t0, t0, x0, x0, mode0, jnp.asarray(0, jnp.int32), no, no))
    # Of all lanes together, and so not in `packed`: how many iterations there were, how
    # many rows, whether one has an event that may be special, and whether a lane is not
    # done.
    counters = lambda i, row, special, s: jnp.stack(
        [jnp.asarray(n, jnp.int32) for n in (i, row, special, eqxi.unvmap_any(~s.done))]
    )

    def cond(carry):
        (i, *_, running), *_ = carry
        return (i < settings.max_steps) & (running > 0)

    def body(carry):
        before, packed, table, meter = carry
        _, row, *_ = before

        def iterate():
            i, row, special, _ = before
            state, entry = loop.iterate(states, rows, packed)
            new, did = states.unpack(state), rows.unpack(entry)
            # A row in which no lane did anything is written over.
            wrote = eqxi.unvmap_any((did.dt > 0) | (did.event >= 0))
            special = special | eqxi.unvmap_any(did.may_be_special)
            return counters(i + 1, row + wrote, special, new), state, entry

        # What reads and writes the tape stays outside of it.
        after, state, entry = compute_if(None, iterate, (before, packed, rows.zeros()))
        table = tuple(
            lax.dynamic_update_index_in_dim(buffer, value, row, 0)
            for buffer, value in zip(table, entry, strict=True)
        )
        span = jnp.where(t1 > t0, t1 - t0, 1)
        progress = (states.unpack(state).t - t0) / span
        meter = settings.progress_meter.step(meter, progress)
        return after, state, table, meter

    def begin():
        state = start(x0, mode0)
        return counters(0, 0, 0, state), states.pack(state)

    nothing = jnp.zeros((4,), jnp.int32), states.zeros()
    meter = settings.progress_meter.init()
    # Not the loop as well: XLA leaves out a tape that nobody reads, but not from there.
    total, packed = compute_if(None, begin, nothing)
    # Not `lax.empty`, which `jax.vmap` would batch although nothing in it is.
    zero = later_zero(total[0])
    table = tuple(
        jnp.full((settings.max_steps, size), zero, dtype)
        for size, dtype in rows.sizes()
    )
    total, packed, table, meter = lax.while_loop(
        cond, body, (total, packed, table, meter)
    )
    settings.progress_meter.close(meter)
    return _tape(loop, states.unpack(packed), rows.unpack(table), table, total)


def _tape(loop: AbstractLoop, state: State, recorded: Row, table, total) -> Tape:
    max_steps, (_, num_rows, special, _) = loop.settings.max_steps, total
    t = jnp.where(jnp.arange(max_steps) < num_rows, recorded.t, jnp.inf)
    return Tape(
        table=table,
        t=t,
        dt=recorded.dt,
        x=recorded.x,
        x_pre=recorded.x_pre,
        mode=recorded.mode,
        event=recorded.event,
        rate=recorded.rate,
        inside=recorded.inside,
        shared=recorded.shared,
        t_event=t + recorded.dt,
        num_rows=num_rows,
        ordinary=special == 0,
        t_end=state.t,
        x_end=state.x,
        mode_end=state.mode,
        guard_end=state.guard_end,
        result=choose(state.done, state.result, RESULTS.max_steps_reached),
        num_events=state.num_events,
        num_steps=state.num_steps,
        num_accepted=state.num_accepted,
        corner_tol=loop.corner_tol,
        same_time=loop.same_time,
        smooth=jnp.asarray(True),
        projects=loop.projects,
    )
