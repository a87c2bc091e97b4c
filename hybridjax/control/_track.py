from collections.abc import Callable
from typing import Any, Literal

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._simulate import simulate
from .._steps.method import default_controller
from .._systems.system import AbstractHybridSystem
from ._linearize import Linearization, linearize
from ._results import RESULTS, SUCCESS
from ._riccati import check_definite, riccati
from ._stages import check_grid, first_failure, head, make_stages, rollout, Stages


class TrackingLQR(eqx.Module):
    """What `hj.control.tracking_lqr` returns.

    **Attributes:**

    - `reference`: the trajectory, a `hj.control.Linearization`.
    - `P`, `K`: as in `hj.control.Riccati`.
    - `result`: a `hj.control.RESULTS`, of the trajectory and of the equation.
    """

    reference: Linearization
    P: Float[Array, "N+1 n n"]
    K: Float[Array, "N m n"]
    result: RESULTS  # pyright: ignore


def tracking_lqr(
    system: AbstractHybridSystem,
    ts: Real[Array, " N+1"],
    x0: PyTree,
    mode0: PyTree,
    us: Float[Array, "N m"],
    Q: Float[Array, "*N n n"],
    R: Float[Array, "*N m m"],
    terminal: Float[Array, "n n"],
    *,
    args_of: Callable | None = None,
    **options: Any,
) -> TrackingLQR:
    """The regulator that tracks a trajectory across its events:
    `hj.control.linearize`, and `hj.control.riccati` of what that returns.

    **Arguments:**

    - `system`, `ts`, `x0`, `mode0`, `us`, `args_of`, `options`: as in
        `hj.control.linearize`, the trajectory.
    - `Q`, `R`, `terminal`: as in `hj.control.riccati`: costs of deviations, of each
        interval.

    **Returns:**

    A `hj.control.TrackingLQR`.

    **Raises:**

    - `ValueError` as these.
    """
    check_definite(R)
    path = linearize(system, ts, x0, mode0, us, args_of=args_of, **options)
    regulator = riccati(path.A, path.B, Q, R, terminal)
    result = RESULTS.where(path.result == SUCCESS, regulator.result, path.result)
    return TrackingLQR(path, regulator.P, regulator.K, result)


class ExtendedReference(eqx.Module):
    """What `hj.control.extend_reference` returns: a reference in pieces, one more than
    it has events, each of which goes on beyond the events at its ends.

    **Attributes:**

    - `ts`: knots, of shape `(N + 1,)`.
    - `xs`: raveled states, of shape `(pieces, N + 1, n)`: in piece `i`, if as many
        events have happened.
    - `us`: controls, of shape `(pieces, N, m)`.
    - `K`: gains, of shape `(pieces, N, m, n)`.
    - `modes`: of each piece.
    - `counts`: how many events of the reference are before each knot, or at it, of
        shape `(N + 1,)`.
    """

    ts: Float[Array, " N+1"]
    xs: Float[Array, "pieces N+1 n"]
    us: Float[Array, "pieces N m"]
    K: Float[Array, "pieces N m n"]
    modes: PyTree
    counts: Int[Array, " N+1"]


def extend_reference(
    system: AbstractHybridSystem,
    lqr: TrackingLQR,
    reach: Any,
    *,
    args_of: Callable | None = None,
    total_events: int | None = None,
    **options: Any,
) -> ExtendedReference:
    """Extends a reference beyond its events, in both directions.

    A trajectory that tracks it meets its events earlier or later. In between the two
    are as far apart as events jump, however well it tracks. So there must be something
    else to compare with: what comes before an event goes on beyond it, and what comes
    after it begins before it, by the vector field of their modes, as if there was no
    guard. Controls and gains beyond an event are the last before it, or the first
    after.

    **Arguments:**

    - `system`, `args_of`: as in `hj.control.tracking_lqr`.
    - `lqr`: what that returned.
    - `reach`: how far beyond events, a time. States stay as they are beyond that.
    - `total_events`: bound on the number of events of the whole reference. May be left
        out where values are known, outside of `jax.jit`.
    - `options`: as in `hj.control.linearize`.

    **Returns:**

    An `hj.control.ExtendedReference`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.

    ??? cite "Reference"

        Rijnen, Saccon, Nijmeijer, *On optimal trajectory tracking for mechanical
        systems with unilateral constraints* (2015); "reference extension" in Kong,
        Payne, Zhu, Johnson, Section II.
    """
    _check_lqr(lqr)
    if not is_traced(reach) and not reach > 0:
        raise ValueError(
            f"Argument `reach` must be a positive time, but it is {reach}."
        )
    if total_events is None:
        events = lqr.reference.event
        if is_traced(events):
            raise ValueError(
                "Argument `total_events` must be given within `jax.jit`, where it is "
                "not known how many events there are."
            )
        total_events = max(int(np.sum(np.asarray(events) >= 0)), 1)
    return in_one_program(_extend, system, lqr, reach, args_of, total_events, options)


def _extend(system, lqr, reach, args_of, total_events, options):
    path = lqr.reference
    N = path.us.shape[0]
    x0 = jtu.tree_map(lambda a: a[0], path.xs)
    mode0 = jtu.tree_map(lambda a: a[0], path.modes)
    stages, _, mode0, us = make_stages(
        system, path.ts, x0, mode0, path.us, args_of, options
    )
    log = _events_of(stages, path, total_events)
    flat = jax.vmap(lambda x: ravel_pytree(x)[0])
    knots = flat(path.xs)

    def piece(i):
        """The states of a piece at all knots."""
        first, last = _intervals(log, i, N)
        before, after = jnp.maximum(i - 1, 0), jnp.minimum(i, total_events - 1)
        row = lambda tree, j: jtu.tree_map(lambda a: a[j], tree)
        mode = jtu.tree_map(
            lambda a, b: jnp.where(i > 0, a, b), row(log.mode_after, before), mode0
        )

        def go(j, x, k, sign):
            return _frozen_flow(stages, log.t[j], x, mode, us[k], sign, reach)

        at = lambda tree, j: ravel_pytree(row(tree, j))[0]
        later, sooner = jax.vmap(go)(
            jnp.stack([after, before]),
            jnp.stack([at(log.x_before, after), at(log.x_after, before)]),
            jnp.stack([jnp.minimum(last, N - 1), jnp.maximum(first, 0)]),
            jnp.array([1, -1]),
        )
        k = jnp.arange(N + 1)[:, None]
        xs = jnp.where(k > last, later, jnp.where(k <= first, sooner, knots))
        k = jnp.arange(N)
        held = jnp.minimum(last, N - 1)
        controls = us[jnp.clip(k, jnp.maximum(first, 0), held)]
        # The gain of an interval is one for states before the events in it.
        gains = lqr.K[jnp.clip(k, jnp.minimum(first + 1, held), held)]
        return xs, controls, gains, mode

    xs, controls, gains, modes = jax.vmap(piece)(jnp.arange(total_events + 1))
    fired = jnp.cumsum(jnp.sum(path.event >= 0, axis=1))
    counts = jnp.append(jnp.zeros_like(fired[:1]), fired)
    return ExtendedReference(stages.ts, xs, controls, gains, modes, counts)


def _intervals(log: "_Events", i, N):
    """The intervals in which piece `i` begins and ends: its knots are those after the
    first, up to the last."""
    slots = log.interval.size
    first = jnp.where(i > 0, log.interval[jnp.maximum(i - 1, 0)], -1)
    last = jnp.where(i < log.count, log.interval[jnp.minimum(i, slots - 1)], N)
    return first, last


class _Events(eqx.Module):
    """Of the whole reference, in order, and the intervals that they happened in."""

    t: Float[Array, " total_events"]
    x_before: PyTree
    x_after: PyTree
    mode_after: PyTree
    interval: Int[Array, " total_events"]
    count: Int[Array, ""]


def _events_of(stages: Stages, path: Linearization, total_events: int) -> _Events:
    def one(k, x, mode, u):
        args = stages.args_of(u)
        t0, t1 = stages.ts[k], stages.ts[k + 1]
        run = simulate(
            stages.system, t0, t1, x, mode, args, throw=False, **stages.options
        )
        return run.events

    ks = jnp.arange(stages.number)
    log = jax.vmap(one)(ks, head(path.xs), head(path.modes), path.us)
    valid = (log.event >= 0).ravel()
    slots = jnp.argsort(~valid, stable=True)[:total_events]

    def pick(a):
        a = a.reshape(-1, *a.shape[2:])[slots]
        # What fills unused slots is not finite, and not used.
        return jnp.where(jnp.isfinite(a), a, 0) if eqx.is_inexact_array(a) else a

    return _Events(
        t=pick(log.t),
        x_before=jtu.tree_map(pick, log.x_before),
        x_after=jtu.tree_map(pick, log.x_after),
        mode_after=jtu.tree_map(pick, log.mode_after),
        interval=slots // log.event.shape[1],
        count=jnp.minimum(jnp.sum(valid), total_events),
    )


def _frozen_flow(stages: Stages, t, x, mode, u, sign, reach):
    """The flow in one mode from an event, later or earlier (`sign`), at all knots: that
    at the event for those on its other side, and where it got to for those beyond
    reach."""

    def field(s, x, args):
        dx = stages.system.flow(t + sign * s, stages.unravel(x), mode, args)
        return (sign * ravel_pytree(dx)[0]).astype(x.dtype)

    turned = lambda a: jnp.where(sign > 0, a, a[::-1])
    away = jnp.clip(sign * (stages.ts - t), 0, reach)
    run = dfx.diffeqsolve(
        dfx.ODETerm(field),
        dfx.Tsit5(),
        jnp.zeros_like(t),
        jnp.asarray(reach, t.dtype),
        None,
        x,
        stages.args_of(u),
        saveat=dfx.SaveAt(ts=turned(away)),
        stepsize_controller=default_controller(x.dtype),
        throw=False,
    )
    assert run.ys is not None
    return turned(run.ys)


class Tracking(eqx.Module):
    """What `hj.control.track` returns.

    **Attributes:**

    - `ts`, `xs`, `modes`: times, states and modes at the knots, `N + 1` in front.
    - `us`: the controls that were applied, of shape `(N, m)`.
    - `counts`: how many events had happened at each knot, of shape `(N + 1,)`.
    - `error`: how far the raveled state was off the piece of the reference that belongs
        to that number, of shape `(N + 1, n)`.
    - `result`: a `hj.control.RESULTS`.
    """

    ts: Float[Array, " N+1"]
    xs: PyTree
    modes: PyTree
    us: Float[Array, "N m"]
    counts: Int[Array, " N+1"]
    error: Float[Array, "N+1 n"]
    result: RESULTS  # pyright: ignore


def track(
    system: AbstractHybridSystem,
    reference: ExtendedReference,
    x0: PyTree,
    mode0: PyTree,
    *,
    by: Literal["events", "clock"] = "events",
    args_of: Callable | None = None,
    lower: Any = None,
    upper: Any = None,
    **options: Any,
) -> Tracking:
    r"""Simulates the closed loop that tracks a reference, $u_k = \bar u_k - K_k (x_k -
    \bar x_k)$, where the reference is chosen by how many events have happened.

    By the clock, the error would be as large as an event jumps, until the other
    trajectory has its event too: a spike of the control, at every event.

    **Arguments:**

    - `system`, `args_of`: as in `hj.control.tracking_lqr`.
    - `reference`: what `hj.control.extend_reference` returned.
    - `x0`, `mode0`: state and mode at the first knot. No event has happened yet.
    - `by`: `"events"`; or `"clock"`, to compare with.
    - `lower`, `upper`: bounds of the controls, scalars or of shape `(m,)`.
    - `options`: as in `hj.control.linearize`.

    **Returns:**

    A `hj.control.Tracking`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.
    """
    if not isinstance(reference, ExtendedReference):
        raise ValueError(
            "Argument `reference` must be what `hj.control.extend_reference` returned, "
            f"but it is a {type(reference).__name__}."
        )
    if by not in ("events", "clock"):
        raise ValueError(
            f'Argument `by` must be "events" or "clock", but it is {by!r}.'
        )
    check_grid(reference.ts, reference.us[0])
    bounds = (lower, upper)
    return in_one_program(
        _track, system, reference, x0, mode0, by, args_of, bounds, options
    )


def _track(system, reference, x0, mode0, by, args_of, bounds, options):
    stages, x, mode0, _ = make_stages(
        system, reference.ts, x0, mode0, reference.us[0], args_of, options
    )
    if x.shape != reference.xs.shape[2:]:
        raise ValueError(
            f"Argument `x0` must have the {reference.xs.shape[2]} numbers that states "
            f"of the reference have, but it has {x.size}."
        )
    last = reference.xs.shape[0] - 1

    def piece(k, count):
        count = reference.counts[k] if by == "clock" else count
        # Beyond the last event of the reference, there is no other piece.
        return jnp.minimum(count, jnp.minimum(last, reference.counts[-1]))

    def control(k, x, count):
        i = piece(k, count)
        u = reference.us[i, k] - reference.K[i, k] @ (x - reference.xs[i, k])
        return u if bounds == (None, None) else jnp.clip(u, *bounds)

    ks = jnp.arange(stages.number)
    path = rollout(stages, x, mode0, ks, control)
    fired = jnp.sum(path.ends.event[-1] >= 0)
    counts = jnp.append(path.counts, path.counts[-1] + fired)
    near = jnp.minimum(counts, jnp.minimum(last, reference.counts[-1]))
    return Tracking(
        ts=stages.ts,
        xs=jax.vmap(stages.unravel)(path.xs),
        modes=path.modes,
        us=path.us,
        counts=counts,
        error=path.xs - reference.xs[near, jnp.arange(stages.number + 1)],
        result=first_failure(path.ends.result),
    )


def _check_lqr(lqr):
    if not isinstance(lqr, TrackingLQR):
        raise ValueError(
            "Argument `lqr` must be what `hj.control.tracking_lqr` returned, but it "
            f"is a {type(lqr).__name__}."
        )
