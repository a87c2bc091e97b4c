"""Long simulations in pieces, of which reverse mode keeps only the starts."""

from collections.abc import Callable

import diffrax as dfx
import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax.errors import Verdict
from .._loop.results import choose, RESULTS
from .event_log import EventLog
from .path import nan_unless
from .solution import Solution


def in_pieces(simulate_piece: Callable, t0, t1, x0, mode0, pieces, max_events):
    """Simulates one piece after the other.

    **Arguments:**

    - `simulate_piece(t0, t1, x0, mode0)`: returns a `Solution` and a `Verdict`.
    - `pieces`: how many, of equal length in time.

    **Returns:**

    A `Solution` without a path, and a `Verdict`.
    """
    # Inner limits are fixed: at one of them, the flow before and the flow after are the
    # same, and its derivative is zero.
    share = jnp.arange(1, pieces, dtype=t0.dtype) / pieces
    inner = lax.stop_gradient(t0 + share * (t1 - t0))
    limits = jnp.concatenate([t0[None], inner, t1[None]])

    def piece(carry, limits):
        x, mode, failed, count = carry
        sol, verdict = simulate_piece(*limits, x, mode)
        events = sol.events
        # After a failure, nothing changes any more.
        keep = lambda old, new: jtu.tree_map(
            lambda a, b: jnp.where(failed, a, b), old, new
        )
        logged = jnp.where(failed, 0, events.count)
        full = count + logged > max_events
        result = choose(
            full & (sol.result == RESULTS.successful),
            RESULTS.max_events_reached,
            sol.result,
        )
        ended = failed | (result != RESULTS.successful)
        out = (events, logged, sol.stats, result, verdict, failed, sol.xs)
        carry = (keep(x, sol.x1), keep(mode, sol.mode1), ended, count + logged)
        return carry, out

    body = eqx.filter_checkpoint(piece)
    zero = jnp.asarray(0, jnp.int32)
    mode0 = jtu.tree_map(jnp.asarray, mode0)
    init = (x0, mode0, jnp.asarray(False), zero)
    (x1, mode1, _, count), out = lax.scan(body, init, (limits[:-1], limits[1:]))
    events, logged, stats, result, verdict, failed, xs = out
    # The last piece that was simulated says how it ended.
    last = jnp.sum(~failed) - 1
    at_last = lambda leaf: leaf[last]
    result = jtu.tree_map(at_last, result)
    arrived = result == RESULTS.successful
    ran = lambda number: jnp.sum(jnp.where(failed, 0, number), dtype=number.dtype)
    _, *where = jtu.tree_map(at_last, verdict.values)
    verdict = Verdict(
        failed=~arrived,
        values=(result._value, *where),
        smooth=verdict.smooth.all(),
        twice=verdict.twice.all(),
    )
    sol = Solution(
        t0=t0,
        t1=t1,
        x0=x0,
        mode0=mode0,
        ts=t1[None],
        xs=nan_unless(arrived, jtu.tree_map(lambda leaf: leaf[-1], xs)),
        modes=jtu.tree_map(lambda leaf: leaf[None], mode1),
        x1=x1,
        mode1=mode1,
        events=_merge(events, logged, jnp.minimum(count, max_events), max_events),
        stats=dict(
            jtu.tree_map(at_last, stats),
            num_steps=ran(stats["num_steps"]),
            num_accepted_steps=ran(stats["num_accepted_steps"]),
        ),
        result=result,
        _path=None,
        _names=events._names,
    )
    return sol, verdict


def _merge(events: EventLog, logged, count, max_events) -> EventLog:
    """The events of all pieces, one after the other."""
    slot = jnp.arange(max_events)
    before = jnp.cumsum(logged) - logged
    piece = jnp.searchsorted(before, slot, side="right") - 1
    entry = jnp.clip(slot - before[piece], 0, max_events - 1)

    def pick(leaf):
        if not leaf.ndim > 1:
            return leaf
        picked = leaf[piece, entry]
        pad = jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else -1
        valid = (slot < count).reshape((-1,) + (1,) * (picked.ndim - 1))
        return jnp.where(valid, picked, jnp.asarray(pad).astype(leaf.dtype))

    log = jtu.tree_map(pick, events)
    t = jnp.where(slot < count, log.t, jnp.inf)
    return eqx.tree_at(lambda log: (log.t, log.count), log, (t, count))


def check_only_end(saveat: dfx.SaveAt, progress_meter, terminal_event):
    if terminal_event is not None:
        raise ValueError(
            "Argument `terminal_event` must be left out with `checkpoints`: the pieces "
            "end at times that are known."
        )
    subs = saveat.subs
    only_end = isinstance(subs, dfx.SubSaveAt) and subs.t1
    if not only_end or subs.t0 or subs.ts is not None or subs.steps:
        raise ValueError(
            "Argument `saveat` must be `diffrax.SaveAt(t1=True)` with `checkpoints`. "
            "To have states in between, call `hj.simulate` once for each part of the "
            "interval, or leave `checkpoints` out."
        )
    if not isinstance(progress_meter, dfx.NoProgressMeter):
        raise ValueError(
            "Argument `progress_meter` must be left out with `checkpoints`, as each "
            "piece would begin it anew."
        )
