"""What is simulated, how, and the verdict on it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np

from .reference import march, STEP, System


class Parameter(NamedTuple):
    """In units of `length**length_power * time**time_power`."""

    name: str
    length: int = 0
    time: int = 0
    moves: bool = True  # Is it differentiated?


# All families have these first.
START = Parameter("t0", time=1)
DURATION = Parameter("duration", time=1)


class Family(NamedTuple):
    """A kind of system, in units in which everything is of order one.

    `draw(rng, n, gaps)` gives parameters of shape `(n, parameters)`. `gaps`, of shape
    `(n,)`, are differences in time by which two events are to miss each other, NaN
    where that is left to chance.
    """

    name: str
    parameters: tuple[Parameter, ...]
    draw: Callable
    # In JAX: (parameters, dtype) -> (system, x0, mode0), and the state as a vector.
    build: Callable
    reference: System
    # The state: powers of length and of time.
    state: tuple[tuple[int, int], ...]
    cells: int = 128
    max_events: int = 24
    # Of how many events times are compared (of none, where those of the library are not
    # those of the reference), and whether their guards are.
    n_times: int = 6
    guards: bool = True
    # The solver's steps have no truncation error.
    exact: bool = False
    ties: bool = True
    # Exact ties are between equal numbers, and stay exact with any solver.
    symmetric: bool = False
    # Event-selected: for `hj.Project`.
    eps: float | None = None
    # Those that end so soon before or after an event are left out.
    pause: float = 0.0


class Setting(NamedTuple):
    """How a family is simulated. Each makes a program."""

    name: str
    solver: Any = dfx.Tsit5()
    tol: float = 1e-8
    dtype: str = "float64"
    # One of "plain", "project", "checkpoints", "rollout", "saveat".
    how: str = "plain"
    # Does it make the steps of ballistic flight without an error?
    exact: bool = True
    max_steps: int = 4096


class Axis(NamedTuple):
    """How parameters vary within a program."""

    name: str
    length: tuple[float, float] = (0, 0)  # decades
    time: tuple[float, float] = (0, 0)
    offset: float = 0.0  # of t0, in units of time
    gaps: str = ""  # "near", "exact" or ""


AXES = (
    Axis("ordinary"),
    Axis("scales", length=(-6, 6), time=(-6, 6)),
    Axis("offset", offset=1e3),
    Axis("far offset", offset=1e6),
    Axis("near ties", gaps="near"),
    Axis("exact ties", gaps="exact"),
)
_SAVED = (0.37, 0.81)  # shares of the duration


class Batch(NamedTuple):
    """Systems and directions, lane by lane."""

    z: np.ndarray  # parameters, in units of order one
    v: np.ndarray  # a tangent
    w: np.ndarray  # a cotangent
    length: np.ndarray  # units
    time: np.ndarray
    saved: np.ndarray  # for `saveat`: times at which there is an event

    def take(self, index):
        return Batch(*(a[index] for a in self))


#
# The library
#


def _powers(family):
    return np.array([(p.length, p.time) for p in family.parameters], float)


def _simulate(family: Family, setting: Setting, z, length, time, saved):
    """Outputs of one lane, in units of order one, and what is not differentiated."""
    dtype = jnp.dtype(setting.dtype)
    units = [_unit(length, time, p.length, p.time) for p in family.parameters]
    p = z * jnp.stack(units).astype(dtype)
    t0, t1 = p[0], p[0] + p[1]
    system, x0, mode0 = family.build(p)
    of_state = jnp.stack([_unit(length, time, a, b) for a, b in family.state])
    of_state = of_state.astype(dtype)
    saveat = dfx.SaveAt(t1=True)
    if setting.how == "saveat":
        shares = jnp.sort(jnp.concatenate([jnp.array(_SAVED, dtype) * z[1], saved]))
        shares = jax.lax.stop_gradient(shares)
        saveat = dfx.SaveAt(ts=t0 + shares * time)
    options = {}
    if setting.how == "project":
        options["event_method"] = hj.Project(jnp.asarray(family.eps * length, dtype))
    if setting.how == "checkpoints":
        options["checkpoints"] = 3
    sol = hj.simulate(
        system,
        t0,
        t1,
        x0,
        mode0,
        solver=setting.solver,
        stepsize_controller=dfx.PIDController(
            rtol=setting.tol, atol=setting.tol * of_state
        ),
        max_steps=setting.max_steps,
        max_events=family.max_events + 8,
        saveat=saveat,
        throw=False,
        **options,
    )
    vector = lambda x: jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(x)])
    k = jnp.arange(family.n_times)
    valid = k < sol.events.count
    times = jnp.where(valid, sol.events.t[: family.n_times] - t0, 0) / time
    out = [vector(sol.x1) / of_state]
    if setting.how == "saveat":
        xs = jax.vmap(vector)(sol.xs) / of_state
        # By which of them are not at events.
        index = [jnp.searchsorted(shares, jnp.asarray(s, dtype) * z[1]) for s in _SAVED]
        out += [xs[i] for i in index]
        at_events = xs[jnp.searchsorted(shares, saved)]
    else:
        at_events = jnp.zeros((saved.shape[0], of_state.shape[0]), dtype)
    events = jnp.where(valid, sol.events.event[: family.n_times], -1)
    extra = dict(
        ok=sol.result == hj.RESULTS.successful,
        result=sol.result._value,
        count=sol.events.count,
        events=events,
        at_events=jax.lax.stop_gradient(at_events),
    )
    return jnp.concatenate([*out, times]), extra


def _unit(length, time, a, b):
    return length ** float(a) * time ** float(b)


@functools.cache
def program(family: Family, setting: Setting):
    """Value, `jvp` and `vjp` of a batch."""

    def one(lane):
        z, length, time, saved = lane
        return _simulate(family, setting, z, length, time, saved)

    moves = np.array([p.moves for p in family.parameters])

    def lane(z, v, w, length, time, saved):
        fn = lambda z: one((z, length, time, saved))
        out, pushed, extra = jax.jvp(fn, (z,), (v,), has_aux=True)
        _, pull, _ = jax.vjp(fn, z, has_aux=True)
        return out, pushed, pull(w)[0] * moves, extra

    def batch(z, v, w, length, time, saved):
        if setting.how != "rollout":
            return jax.vmap(lane)(z, v, w, length, time, saved)
        fn = lambda z: hj.rollout(
            one, (z, length, time, saved), chunk_size=max(1, z.shape[0] // 4)
        )
        out, pushed, extra = jax.jvp(fn, (z,), (v,), has_aux=True)
        _, pull, _ = jax.vjp(fn, z, has_aux=True)
        return out, pushed, pull(w)[0] * moves, extra

    return jax.jit(batch)


def run_library(family, setting, batch: Batch):
    dtype = setting.dtype
    out = program(family, setting)(*(np.asarray(a, dtype) for a in batch))
    value, pushed, pulled, extra = jax.tree.map(np.asarray, out)
    wide = lambda a: a.astype(np.float64)
    return wide(value), wide(pushed), wide(pulled), extra


#
# The reference
#


class Expected(NamedTuple):
    value: np.ndarray  # (n, outputs); of all events, last
    jacobian: np.ndarray  # (n, outputs, parameters); zero where one does not move
    events: np.ndarray  # (n, max_events)
    count: np.ndarray
    clear: np.ndarray
    gap: np.ndarray
    rest: np.ndarray
    times: np.ndarray  # (n, max_events)
    after: np.ndarray  # (n, max_events, components of the state)


def saved_times(setting: Setting, z):
    """Of states that are compared; `None` if there are none."""
    return z[:, 1:2] * np.array(_SAVED) if setting.how == "saveat" else None


def reference(family: Family, z, saved=None) -> Expected:
    """With the states at times that are `saved`, which do not move with `z`."""
    n, p = z.shape
    moves = [j for j in range(p) if family.parameters[j].moves]
    columns = np.zeros((p, 1 + len(moves), n), complex)
    columns += z.T[:, None]
    for c, j in enumerate(moves):
        columns[j, 1 + c] += 1j * STEP

    def run(z):
        return march(family.reference, z, family.cells, family.max_events)

    path = run(columns)
    out, clear = [path.x], path.clear
    if saved is not None:
        for times in saved.T:
            part = columns.copy()
            part[1] = times
            path_to = run(part)
            out.append(path_to.x)
            clear = clear & path_to.clear
    out: Any = np.concatenate([*out, path.times])  # (outputs, columns, n)
    jacobian = np.zeros((n, out.shape[0], p))
    jacobian[:, :, moves] = np.moveaxis(out[:, 1:].imag / STEP, 2, 0).reshape(
        n, out.shape[0], len(moves)
    )
    clear = clear & np.all(np.isfinite(jacobian), axis=(1, 2))
    return Expected(
        out[:, 0].real.T,
        jacobian,
        path.events.T,
        path.count,
        clear,
        path.gap,
        path.rest,
        np.real(path.times[:, 0]).T,
        np.moveaxis(path.after, 2, 0),
    )


#
# The verdict
#

# An error is one if it is larger than so many times the tolerance of the solver, times
# the condition of the problem: what changes of that size in all parameters, in the
# state and in its derivative, would do.
FACTOR = 1000.0
# Derivatives, of which the solver controls no error, may have more of it.
FACTOR_OF_DERIVATIVES = 10 * FACTOR
# Steps without truncation error are as good as so many roundings.
ROUNDINGS = 16.0
# In so many directions, forth and back, other orders of events are looked for.
_DIRECTIONS = 4
# Where that finds none that is right, in so many halves of that distance.
_HALVINGS = 36
OK, WRONG_VALUE, WRONG_DERIVATIVE, REFUSED, RIGHTLY = range(5)
VERDICTS = (
    "ok",
    "wrong value",
    "wrong derivative",
    "refused though fine",
    "rightly refused",
)


def _as_recorded(family: Family, expected: Expected, events, times, within) -> Expected:
    """With the times of the events that the library has in its log, in its order.

    An entry of the log belongs to one guard, which it keeps where another order of
    events that are `within` one instant is as good.
    """
    n, m = expected.events.shape
    rows = expected.value.shape[1] - m
    index = np.broadcast_to(np.arange(family.n_times), (n, family.n_times)).copy()
    if family.guards:
        for k in range(family.n_times):
            same = expected.events == events[:, k : k + 1]
            apart = np.abs(expected.value[:, rows:] - times[:, k : k + 1])
            same &= apart <= within[:, None]
            # The nearest in time; of those in one instant, in the log.
            distance = np.floor(100 * apart / within[:, None])
            distance = m * distance + np.abs(np.arange(m) - k)
            distance = np.where(same, distance, np.inf)
            index[:, k] = np.where(same.any(axis=1), np.argmin(distance, axis=1), k)
    index = np.concatenate(
        [np.broadcast_to(np.arange(rows), (n, rows)), rows + index], axis=1
    )
    return expected._replace(
        value=np.take_along_axis(expected.value, index, axis=1),
        jacobian=np.take_along_axis(expected.jacobian, index[:, :, None], axis=1),
    )


def _parts(here: Expected, there: Expected, within, atol) -> np.ndarray:
    """Does one leave an instant of events, in which both have the same number of them,
    in another state than the other?"""
    k = np.arange(here.times.shape[1])
    pause = np.diff(here.times, axis=1, append=np.inf) > within[:, None]
    last = k == here.count[:, None] - 1
    left = (pause | last) & (k < np.minimum(here.count, there.count)[:, None])
    apart = np.max(np.abs(here.after - there.after), axis=2)
    return np.any(left & (apart > atol[:, None]), axis=1)


def _closer(of_lane, got, v, w, tau, h, rng) -> float:
    """The least error of what the library `got`, against systems nearer and nearer.

    They have the events of its log, and are on lines through the system in question. In
    between, value and derivatives are taken to change by no more than from one to the
    next.
    """
    steps = h * 2.0 ** -np.arange(_HALVINGS)
    best = np.inf
    for u in rng.uniform(-1, 1, (_DIRECTIONS, v.size)):
        for sign in (1, -1):
            step = sign * steps[:, None] * u
            value, jac, like = of_lane(step)
            limits = value - np.einsum("nij,nj->ni", jac, step)
            push = np.einsum("nij,j->ni", jac, v)
            pull = np.einsum("nij,i->nj", jac, w)
            condition = 1 + np.sum(np.abs(jac), axis=2)
            of_value = FACTOR * tau * (condition + np.abs(value))
            of_jac = FACTOR_OF_DERIVATIVES * tau * condition
            of_pull = np.sum(np.abs(w) * of_jac, axis=1, keepdims=True)
            bounds = of_value, of_jac * np.max(np.abs(v)), of_pull
            errors = []
            for a, there, bound in zip(got, (limits, push, pull), bounds, strict=True):
                change = np.abs(np.diff(there, axis=0))
                errors.append(np.abs(a - there)[1:] / (bound[1:] + change))
            error = np.max(np.concatenate(errors, axis=1), axis=1)
            error = error[like[1:] & like[:-1] & np.isfinite(error)]
            best = np.min(error, initial=best)
    return best


class Found(NamedTuple):
    verdict: np.ndarray
    # The largest error of each lane, in units of what is still right.
    ratio: np.ndarray
    successful: np.ndarray
    expected: Expected


def axes(family: Family, setting: Setting) -> list[Axis]:
    """What this family can vary with this setting."""
    short = setting.dtype == "float32"  # such times have no digits left
    return [
        axis
        for axis in AXES
        if (family.ties or not axis.gaps) and not (short and axis.offset)
    ]


def draw(family: Family, setting: Setting, axis: Axis, rng, n: int) -> Batch:
    """Systems whose reference is clear."""
    parts, left = [], n
    for _ in range(20):
        part = _draw(family, setting, axis, rng, n)
        part = part.take(_is_clear(family, part.z))
        parts.append(part)
        left -= part.z.shape[0]
        if left <= 0:
            break
    return join(parts).take(slice(n))


def join(parts: list[Batch]) -> Batch:
    return Batch(*(np.concatenate(a) for a in zip(*parts, strict=True)))


def _is_clear(family, z):
    start = z.T[:, None] + 0j
    path = march(family.reference, start, family.cells, family.max_events)
    return path.clear & (path.rest >= family.pause)


def _draw(family, setting, axis, rng, n):
    gaps = np.full(n, np.nan)
    if axis.gaps == "near":
        gaps = 10.0 ** rng.uniform(-13, -3, n) * rng.choice([-1, 1], n)
    elif axis.gaps == "exact":
        gaps = np.zeros(n)
    z = family.draw(rng, n, gaps)
    z[:, 0] += axis.offset * rng.uniform(0.5, 1, n) * rng.choice([-1, 1], n)
    length = 10.0 ** rng.uniform(*axis.length, n)
    time = 10.0 ** rng.uniform(*axis.time, n)
    moves = np.array([p.moves for p in family.parameters])
    scale = 1 + np.abs(np.where(np.arange(z.shape[1]) == 0, 0, z))
    v = rng.uniform(-1, 1, z.shape) * scale * moves
    outputs = len(family.state) + family.n_times
    if setting.how == "saveat":
        outputs += len(_SAVED) * len(family.state)
    w = rng.uniform(-1, 1, (n, outputs))
    narrow = lambda a: a.astype(setting.dtype).astype(np.float64)
    z = narrow(z)
    saved = z[:, 1:2] / 2
    if setting.how == "saveat":
        path = reference(family, z)
        which = rng.integers(0, np.maximum(path.count, 1))
        which = np.minimum(which, path.times.shape[1] - 1)
        at = path.times[np.arange(n), which]
        saved = np.where(path.count > 0, at, saved[:, 0])[:, None]
    return Batch(*map(narrow, (z, v, w, length, time, saved)))


def judge(family: Family, setting: Setting, batch: Batch, rng) -> Found:
    saves = setting.how == "saveat"
    value, pushed, pulled, extra = run_library(family, setting, batch)
    z, v, w = batch.z, batch.v, batch.w
    n = z.shape[0]
    eps = float(np.finfo(setting.dtype).eps)
    # Nearer than this, the library takes events for simultaneous.
    corner = 4 * eps**0.625 * (1 + z[:, 1]) + 64 * eps * np.abs(z[:, 0])
    n_states = value.shape[1] - family.n_times
    times = value[:, n_states:]

    saved = saved_times(setting, z)

    def expect(lanes, z, within=10 * corner):
        expected = reference(family, z, None if saved is None else saved[lanes])
        return _as_recorded(
            family, expected, extra["events"][lanes], times[lanes], within[lanes]
        )

    everywhere = slice(None)
    here = expect(everywhere, z)
    scale = 1 + np.abs(np.where(np.arange(z.shape[1]) == 0, 0, z))
    tau = ROUNDINGS * eps * (1 + np.abs(z[:, 0]))
    if not (family.exact and setting.exact):
        tau = tau + setting.tol
    if setting.how == "project":
        tau = tau + (family.eps or 0) ** 2
    J = here.jacobian * scale[:, None]
    condition = np.sum(np.abs(J), axis=2)
    size = 1 + np.abs(here.value) + condition
    # How the derivative changes nearby: nearer, where little leads far away.
    h = 1e-6 / (1 + 1e-2 * np.max(condition, axis=1))[:, None]
    second = np.zeros_like(size)
    for sign in (1, -1):
        u = sign * rng.uniform(-1, 1, z.shape)
        there = expect(everywhere, z + h * u * scale)
        same = np.all(there.events == here.events, axis=1) & there.clear
        same &= there.count == here.count
        change = np.sum(np.abs(there.jacobian * scale[:, None] - J), axis=2) / h
        second = np.where(same[:, None], np.maximum(second, change), second)
    size_j = 1 + condition + second
    along = np.max(np.abs(v) / scale, axis=1)
    in_time = 1 + np.max(condition[:, n_states:], axis=1, initial=0)
    # Steps that land on an event may be off by the square root of rounding: until then
    # either order is as good.
    delta = corner + eps**0.5 * (1 + z[:, 1]) + 10 * tau * in_time

    tol_value = FACTOR * tau[:, None] * size
    tol_j = FACTOR_OF_DERIVATIVES * tau[:, None] * size_j
    weights = np.sum(np.abs(w) * tol_j, axis=1)
    same_events = np.ones(n, bool)
    if family.guards:
        same_events = extra["count"] == here.count
        first = here.events[:, : family.n_times]
        same_events &= np.all(extra["events"] == first, axis=1)
    errors = lambda expected, more=0.0: np.max(
        np.abs(value - expected) / (tol_value + more), axis=1
    )
    push_errors = lambda jac, more=0.0: np.max(
        np.nan_to_num(
            np.abs(pushed - np.einsum("nij,nj->ni", jac, v / scale))
            / (tol_j + more)
            / along[:, None],
            posinf=np.inf,
        ),
        axis=1,
    )
    pull_errors = lambda jac, more=0.0: np.max(
        np.abs(pulled * scale - np.einsum("nij,ni->nj", jac, w))
        / (weights[:, None] + more),
        axis=1,
    )
    ratios = [errors(here.value), push_errors(J), pull_errors(J)]
    ratios[0] = np.where(same_events, ratios[0], np.inf)
    fine = np.ones(n, bool)  # Is there a derivative?
    none = np.zeros(n, bool)  # Is there certainly none?
    # Where another order has other events, a time in the log may have no derivative.
    comes_and_goes = np.zeros(n, bool)

    # Where rounding, or the errors of the solver, may change the order of events, what
    # is right for one of the orders that are found nearby is right.
    (near,) = np.nonzero(np.minimum(here.gap, here.rest) < delta)
    if near.size > 0:
        sub = batch.take(near)
        # What the library takes for one instant, whatever the rounding: in float32 its
        # tolerance is a few times that of short simulations.
        times_of = np.abs(z[near, 0]) + z[near, 1]
        one = np.minimum(64 * (1 + np.abs(z[near, 0])), 60 * z[near, 1] + 8 * times_of)
        tied = here.gap[near] < eps * one
        # Else the errors of the solver decide what is found.
        tied &= family.symmetric or (family.exact and setting.exact)
        # How far one has to go for another order, with the same events until the end.
        hs = 1e-6 + 100 * here.gap[near]
        tied &= here.rest[near] > np.maximum(delta[near], 100 * hs * in_time[near])
        hs = np.where(tied, hs, 10 * delta[near])
        instant = 100 * hs * in_time[near]
        within = 100 * delta * in_time
        within[near] = np.maximum(within[near], instant)
        values, jacobians, clear, one_sided = [here.value[near]], [J[near]], [], None
        unmoved, parts = Expected(*(a[near] for a in here)), np.zeros(near.size, bool)
        # Further apart than by what first derivatives do.
        far = 1e-3 + 10 * hs * np.max(condition[near], axis=1)
        for k in range(_DIRECTIONS):
            u = rng.uniform(-1, 1, sub.z.shape)
            if k == 0:
                u = sub.v / scale[near] / np.maximum(along[near], 1e-300)[:, None]
            for sign in (1, -1):
                step = sign * hs[:, None] * u
                there = expect(near, sub.z + step * scale[near], within)
                beyond = expect(near, sub.z + 2 * step * scale[near], within)
                parts |= _parts(unmoved, there, instant, far)
                # Extrapolated back, where the events are the same further away.
                same = np.all(there.events == beyond.events, axis=1) & beyond.clear
                jac = there.jacobian * scale[near, None]
                more = jac - beyond.jacobian * scale[near, None]
                more = np.where(same[:, None, None], more, 0)
                back = np.einsum("nij,nj->ni", jac + more / 2, step)
                jac = jac + more
                moved = there.value - back
                # With other events in it, the log has other entries: these are not
                # compared, and nor are cotangents of them.
                m = family.n_times
                unlike = np.any(
                    np.sort(there.events[:, :m]) != np.sort(extra["events"][near]),
                    axis=1,
                )
                unlike |= there.count != extra["count"][near]
                comes_and_goes[near] |= unlike
                if family.guards:
                    moved[unlike, -m:] = value[near][unlike, -m:]
                    jac[unlike, -m:] = np.nan
                # Where the reference cannot tell, it agrees with nothing.
                moved[~there.clear], jac[~there.clear] = 1e200, 1e200
                values.append(moved)
                jacobians.append(jac)
                clear.append(there.clear)
                if one_sided is None:
                    one_sided = jac
                    # Events of times that move nearly alike are still in the order of
                    # the point itself so far away, not in that of the direction.
                    tied &= (there.gap > 3 * here.gap[near]) | np.any(
                        there.events != here.events[near], axis=1
                    )
        # In another order, or in one instant, they are off by what is between them.
        merged = np.where(here.gap < delta, here.gap, 0)[near]
        more_value = (100 * hs**2 + 10 * merged)[:, None] * size[near]
        more_j = 10 * hs[:, None] * (1 + condition[near] + second[near])
        pull_more = np.sum(np.abs(w[near]) * more_j, axis=1)[:, None]

        # Each order multiplies errors by factors of its own.
        of_orders = [
            more_value + tol_value[near] * np.nansum(np.abs(jac), axis=2) / size[near]
            for jac in jacobians
        ]

        def least(fn, options, mores):
            full = lambda a: np.zeros((n, *a.shape[1:]))
            best = np.full(near.size, np.inf)
            for option, more in zip(options, mores, strict=True):
                wide, wide_more = full(option), full(more)
                wide[near], wide_more[near] = option, more
                got = fn(wide, wide_more)[near]
                best = np.where(got < best, got, best)
            return best

        ratios[0][near] = least(errors, values, of_orders)
        any_push = least(push_errors, jacobians, [more_j] * len(jacobians))
        only_push = least(push_errors, [one_sided], [more_j])
        ratios[1][near] = np.where(tied, only_push, any_push)
        ratios[2][near] = least(pull_errors, jacobians, [pull_more] * len(jacobians))
        # A kink may be nearer than any of these steps.
        closer = extra["ok"][near] & ~same_events[near] & ~tied
        closer &= ~np.all([ratio[near] <= 1 for ratio in ratios], axis=0)
        for i, h in zip(near[closer], hs[closer], strict=True):

            def of_lane(steps, i=i):
                lanes = np.full(len(steps), i)
                there = expect(lanes, z[i] + steps * scale[i], within)
                like = there.clear & (there.count == extra["count"][i])
                first = there.events[:, : family.n_times]
                like &= np.all(extra["events"][i] == first, axis=1)
                return there.value, there.jacobian * scale[i], like

            got = value[i], pushed[i], pulled[i] * scale[i]
            best = _closer(of_lane, got, v[i] / scale[i], w[i], tau[i], h, rng)
            for ratio in ratios:
                ratio[i] = np.fmin(ratio[i], best)
        # Of the states: what is in the log may differ.
        apart = np.ptp(values, axis=0) - 2 * (tol_value[near] + more_value)
        apart = np.max(apart[:, :n_states], axis=1)
        clear = np.all(clear, axis=0)
        # A path that jumps has no derivative, also if what comes later makes up for it:
        # two neurons that are reset together by a third.
        fine[near] = clear & ~(apart > 0) & ~parts & (here.rest[near] > delta[near])
        none[near] = clear & (apart > 1e-3) & tied

    if saves:
        around = []
        for sign in (1, -1):
            part = z.copy()
            part[:, 1] = batch.saved[:, 0] + sign * (1e-7 + delta)
            end = reference(family, part)
            around.append(end.value[:, : len(family.state)])
        more = 100 * (1e-7 + delta)[:, None] * size[:, : len(family.state)]
        off = np.min([np.abs(extra["at_events"][:, 0] - a) for a in around], axis=0)
        bad = np.max(off / (tol_value[:, : len(family.state)] + more), axis=1)
        # In corners there may be other limits; they have been looked at.
        bad[near] = np.where(np.isnan(bad[near]), np.nan, 0)
        # Between two limits that differ in several entries any mixture passes.
        ratios[0] = np.fmax(ratios[0], np.where(np.isnan(bad), np.inf, bad))

    finite = np.isfinite(pushed)
    finite[comes_and_goes, n_states:] = True
    derivative = np.all(finite, axis=1)
    derivative &= np.all(np.isfinite(pulled), axis=1)
    ok = extra["ok"]
    wrong_value = ok & ~(ratios[0] <= 1)
    given = ok & derivative
    wrong_derivative = given & (none | ~(ratios[1] <= 1) | ~(ratios[2] <= 1))
    refused = ~ok | ~derivative
    verdict = np.where(refused, np.where(fine, REFUSED, RIGHTLY), OK)
    verdict = np.where(wrong_derivative, WRONG_DERIVATIVE, verdict)
    verdict = np.where(wrong_value, WRONG_VALUE, verdict)
    ratio = np.where(refused, ratios[0], np.max(ratios, axis=0))
    return Found(verdict, ratio, ok, here)
