"""iLQR on a ball that is pushed: published problems, against their research code; and
with bounds, free final time and gaps, against independent code."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import control
from hybridjax.models import PushedBall
from scipy.optimize import brentq, minimize

from ..helpers import bouncing_ball


_OPTIONS: Any = dict(max_events=4, max_steps=32)
_SUCCESS: int = control.RESULTS.successful._value  # pyright: ignore


#
# The published problems
#


_N, _DT = 251, 4e-3


def _bounce(e, goal, effort, weight, u0):
    """The force is linear from knot to knot, beginning with zero: jumps of the force
    would have the optimum at a kink. Its cost is that of its values at all knots."""
    system = control.with_rates(PushedBall(restitution=e))
    running = lambda t, x, rate: effort * jnp.sum(x[1] ** 2)

    def terminal(t, x):
        miss = x[0] - jnp.stack([goal, jnp.zeros_like(goal)])
        return weight * jnp.sum(miss**2) + effort * jnp.sum(x[1] ** 2)

    ts = jnp.arange(_N + 1) * _DT
    us = jnp.zeros((_N, 1)).at[0].set(u0 / _DT)
    x0 = jnp.array([4.0, 0.0]), jnp.zeros(1)
    return control.ilqr(
        system,
        ts,
        x0,
        0,
        us,
        running,
        terminal,
        exact_hessians=True,
        max_iterations=60,
        **_OPTIONS,
    )


@pytest.fixture(scope="module")
def bounces():
    """The first one, but in steps of 4 ms, so with an effort four times as large; and
    the second one."""
    lanes = [
        [0.75, 3.0, 1e-3, 40.0, 0.0],
        [0.7, 1.0, 1.25e-4, 100.0, -100.0],
    ]
    got = jax.jit(jax.vmap(_bounce))(*jnp.array(lanes).T)
    return jtu.tree_map(np.asarray, got)


@pytest.mark.thorough
def test_published_bounces(bounces):
    got = bounces
    # The research code ends at 55.565 and 2.2127.
    np.testing.assert_allclose(got.cost, [55.06682, 2.16543], atol=1e-4)
    assert np.all(got.result._value == _SUCCESS)
    assert np.all(got.gradient_norm < 1e-6 * got.initial_gradient_norm)
    assert np.all(got.log.count <= 25)
    # Three bounces in the first guess of the second, one in the end.
    assert np.sum(got.event[1] >= 0) == 1
    assert np.any(got.log.sequence_changed[1])
    # Newton's method: the last steps are whole.
    for i in range(2):
        assert got.log.step[i, got.log.count[i] - 1] == 1
        costs = got.log.cost[i, : got.log.count[i]]
        assert np.all(np.diff(costs) <= 1e-8 * costs[:-1])


@pytest.mark.thorough
def test_force_is_nearly_linear_between_impacts(bounces):
    # Of the optimum in continuous time, it is, and jumps at the impact.
    v = bounces.xs[1][1, :, 0]
    impact = np.nonzero(bounces.event[1, :, 0] >= 0)[0][0]
    for part in (v[3 : impact - 3], v[impact + 5 : -3]):
        k = np.arange(part.size)
        line = np.polyval(np.polyfit(k, part, 1), k)
        assert np.max(np.abs(part - line)) < 0.02 * np.max(np.abs(v))


#
# Bounds, free final time, gaps
#

_K, _T, _E, _GOAL = 12, 1.2, 0.7, 1.5
_LOOSE, _TIGHT = 1e3, 6.0


def _terminal(t, x):
    miss = x[0] - jnp.array([_GOAL, 0.0])
    return 30 * jnp.sum(miss**2) + 8 * t + 1e-2 * jnp.sum(x[1] ** 2)


@pytest.fixture(scope="module")
def small():
    """Wide and narrow bounds; a final time that is free, or not; a first guess of the
    states that fits, or does not, or is none."""
    system = control.with_rates(PushedBall(restitution=_E))
    ts = jnp.linspace(0.0, _T, _K + 1)
    x0 = jnp.array([2.0, 0.0]), jnp.zeros(1)
    us = jnp.zeros((_K, 1))
    running = lambda t, x, u: 1e-2 * jnp.sum(x[1] ** 2) + 1e-4 * jnp.sum(u**2)
    falls = [bouncing_ball(2.0, _E, t, gravity=9.8) for t in np.asarray(ts)]
    fits = jnp.array(falls), jnp.zeros((_K + 1, 1))
    other = fits[0] + 0.2 * jnp.sin(ts)[:, None], fits[1] + 0.3

    def run(bound, least, longest, xs):
        return control.ilqr(
            system,
            ts,
            x0,
            0,
            us,
            running,
            _terminal,
            lower=-bound,
            upper=bound,
            final_time=(least, longest),
            xs=xs,
            max_iterations=200,
            atol=1e-9,  # What is left of gaps, where it fits but for rounding.
            **_OPTIONS,
        )

    bounds = jnp.array([_LOOSE, _TIGHT, _LOOSE, _LOOSE, _LOOSE])
    least = jnp.array([_T, _T, 0.9, _T, _T])
    longest = jnp.array([_T, _T, 1.5, _T, _T])
    lanes = lambda a, b: jnp.stack([a, a, a, b, jnp.nan * a])
    xs = jtu.tree_map(lanes, fits, other)
    got = jax.jit(jax.vmap(run))(bounds, least, longest, xs)
    return jtu.tree_map(np.asarray, got)


def _cost(us, T):
    """Independent: cubics in NumPy."""
    h, (q, v, f), cost = T / _K, (2.0, 0.0, 0.0), 0.0
    for rate in us:
        cost += 1e-2 * f**2 + 1e-4 * rate**2
        left = h
        while True:
            a = f - 9.8
            height = np.polynomial.Polynomial([q, v, a / 2, rate / 6])
            grid = np.linspace(0, left, 33)[1:]
            below = np.nonzero(height(grid) < 0)[0]
            s: Any = left
            if below.size:
                last = grid[below[0] - 1] if below[0] else 1e-9
                s = brentq(height, last, grid[below[0]], xtol=1e-15)
            q, v, f = height(s), v + a * s + rate * s**2 / 2, f + rate * s
            left = left - s
            if not below.size:
                break
            q, v = 0.0, -_E * v
    return cost + 30 * ((q - _GOAL) ** 2 + v**2) + 8 * T + 1e-2 * f**2


@pytest.mark.parametrize(
    "lane, bound, times",
    [(0, _LOOSE, (_T, _T)), (1, _TIGHT, (_T, _T)), (2, _LOOSE, (0.9, 1.5))],
)
def test_is_optimum_of_independent_code(small, lane, bound, times):
    got = jtu.tree_map(lambda a: a[lane], small)
    assert got.result._value == _SUCCESS
    us, T = got.us[:, 0], got.ts[-1]
    assert np.all(np.abs(us) <= bound) and times[0] <= T <= times[1]
    np.testing.assert_allclose(_cost(us, T), got.cost, rtol=1e-8)
    # From there, SciPy finds nothing better.
    cost = lambda z: _cost(z[:-1], z[-1])
    best = minimize(
        cost, [*us, T], method="L-BFGS-B", bounds=[(-bound, bound)] * _K + [times]
    )
    assert best.fun > got.cost - 1e-6 * got.cost
    if bound == _TIGHT:
        assert np.any(np.abs(us) == bound)
    if times[0] < times[1]:
        assert times[0] < T < times[1] and abs(T - _T) > 0.01


def test_gaps_close(small):
    assert small.result._value[3] == _SUCCESS
    np.testing.assert_allclose(small.cost[3], small.cost[0], rtol=1e-7)
    assert small.log.gap[3, small.log.count[3] - 1] < 1e-9
    # The trajectory is one: the independent code agrees.
    np.testing.assert_allclose(_cost(small.us[3, :, 0], _T), small.cost[3], rtol=1e-6)


def test_failed_lane_stays_alone(small):
    failed = control.RESULTS.nonfinite_state._value  # pyright: ignore
    assert small.result._value[4] == failed
    assert np.isinf(small.cost[4]) and small.log.count[4] == 0


#
# Model predictive control
#


def test_mpc_follows_and_compiles_once():
    traces = 0
    ball = control.with_rates(PushedBall(restitution=_E))

    def running(t, x, u):
        nonlocal traces
        traces += 1
        return 3 * (x[0][0] - 1.0) ** 2 + 0.1 * x[0][1] ** 2 + 1e-4 * jnp.sum(u**2)

    terminal = lambda t, x: 30 * (x[0][0] - 1.0) ** 2 + 3 * x[0][1] ** 2
    ts, us = jnp.linspace(0.0, 0.6, 7), jnp.zeros((6, 1))
    x, mode = (jnp.array([1.2, 0.0]), jnp.array([9.8])), jnp.array(0, jnp.int32)
    ilqr = lambda x: control.ilqr(
        ball, ts, x, mode, us, running, terminal, max_iterations=3, **_OPTIONS
    )
    # A plan of which only times and controls are used, without computing one.
    plan = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(ilqr, x))
    plan = eqx.tree_at(lambda p: (p.ts, p.us), plan, (ts - 0.1, us))
    counts = []
    for i in range(25):
        plan = control.mpc_step(ball, plan, x, mode, running, terminal, **_OPTIONS)
        # The plant is as foreseen, but for a kick.
        kick = 1.5 if i == 4 else 0.0
        x, mode = jtu.tree_map(lambda a: a[1], (plan.xs, plan.modes))
        x = x[0] - jnp.array([0.0, kick]), x[1]
        counts.append(traces)
    assert counts[0] == counts[-1]
    np.testing.assert_allclose(plan.ts[0], 2.4, rtol=1e-12)
    np.testing.assert_allclose(plan.xs[0][0], [1.0, 0.0], atol=0.02)


#
# Errors
#


def test_errors():
    ball, x, us = PushedBall(), jnp.array([1.0, 0.0]), jnp.zeros((4, 1))
    ts = jnp.linspace(0.0, 1.0, 5)
    cost = lambda t, x, *u: jnp.sum(x**2)

    def run(us=us, ts=ts, **options):
        return control.ilqr(ball, ts, x, 0, us, cost, cost, **options)

    with pytest.raises(ValueError, match="`ts` must be a vector of at least two knots"):
        run(us[:0], ts[:1])
    with pytest.raises(ValueError, match=r"`us` must have shape \(N, m\)"):
        run(us[:, 0])
    with pytest.raises(ValueError, match="`lower` must have a shape"):
        run(lower=jnp.zeros(3))
    with pytest.raises(ValueError, match="`lower` must not be greater than `upper`"):
        run(lower=1.0, upper=-1.0)
    with pytest.raises(ValueError, match="`final_time` must be a pair"):
        run(final_time=2.0)
    with pytest.raises(ValueError, match="`final_time` must be bounds"):
        run(final_time=(2.0, 3.0))
    with pytest.raises(ValueError, match="`xs` must have the states at N"):
        run(xs=jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="`max_iterations` must be a positive integer"):
        run(max_iterations=0)
    with pytest.raises(ValueError, match="`plan` must be what"):
        control.mpc_step(ball, us, x, 0, cost, cost)  # pyright: ignore
