"""Intervals as one batch: their matrices multiply to the derivative of the whole."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import control
from hybridjax.models import PushedBall

from ..helpers import ball_outcome, value_and_jacobian


_N, _T = 12, 1.8
_TS = jnp.linspace(0.0, _T, _N + 1)


def _running(t, x, u):
    return t * x[0] ** 2 + x[1] * u[0] + u[0] ** 2


def _terminal(t, x):
    return t * jnp.sum(x**2)


@pytest.fixture(scope="module")
def batch():
    """Balls from several heights, so that bounces pass knots, pushed by 0.8 N; one that
    bounces at a knot, and one that begins on the ground, and one that fails."""
    e, u = 0.7, 0.8
    at_knot = 9.0 * (3 * _T / _N) ** 2 / 2
    heights = [0.9, 0.97, 1.04, 1.1, 1.2, at_knot, 0.0, np.nan]
    speeds = [0.0] * 6 + [-6.0, 0.0]
    x0s = jnp.stack([jnp.array(heights), jnp.array(speeds)], axis=1)
    us = jnp.full((_N, 1), u)

    def run(x0):
        ball = PushedBall(mass=1.0, restitution=e)
        return control.linearize(
            ball, _TS, x0, 0, us, running=_running, terminal=_terminal
        )

    got = jax.jit(jax.vmap(run))(x0s)
    return np.asarray(x0s), jtu.tree_map(np.asarray, got)


def test_product_is_derivative_of_whole(batch):
    x0s, got = batch
    outcome = lambda n: value_and_jacobian(lambda z: ball_outcome(z, n, _T))
    exact = {n: outcome(n) for n in (2, 3)}
    for i in range(5):
        count = int(np.sum(got.event[i] >= 0))
        # A push is as less gravity.
        value, jacobian = exact[count](jnp.array([*x0s[i], 9.8 - 0.8, 0.7]))
        product, pushes = np.eye(2), np.zeros((2, 1))
        for A, B in zip(got.A[i], got.B[i], strict=True):
            product, pushes = A @ product, A @ pushes + B
        np.testing.assert_allclose(got.xs[i, -1], value[:2], atol=1e-9)
        np.testing.assert_allclose(product, jacobian[:2, :2], atol=1e-8)
        np.testing.assert_allclose(pushes[:, 0], -jacobian[:2, 2], atol=1e-8)
        assert not np.any(got.kinked[i])
    successful = got.result == control.RESULTS.successful
    assert np.array_equal(successful, [True] * 7 + [False])


def test_cost_derivatives(batch):
    _, got = batch
    for i in range(5):
        t, (q, v), u = np.asarray(_TS)[:-1], got.xs[i, :-1].T, 0.8
        expected = np.sum(t * q**2 + v * u + u**2) + _T * np.sum(got.xs[i, -1] ** 2)
        np.testing.assert_allclose(got.cost[i], expected, rtol=1e-12)
        slope = np.stack([2 * t * q, u + 0 * q, v + 2 * u], axis=1)
        np.testing.assert_allclose(got.cost_gradient[i], slope, atol=1e-12)
        hessian = np.array([[2 * t[3], 0, 0], [0, 0, 1], [0, 1, 2]])
        np.testing.assert_allclose(got.cost_hessian[i, 3], hessian, atol=1e-12)
        end = 2 * _T * got.xs[i, -1]
        np.testing.assert_allclose(got.end_gradient[i], end, rtol=1e-12)
        np.testing.assert_allclose(got.end_hessian[i], 2 * _T * np.eye(2), rtol=1e-12)


def test_event_at_knot_belongs_to_interval_that_ends_there(batch):
    _, got = batch
    (fired,) = np.nonzero(got.event[5, :, 0] >= 0)
    # Rounding decides on which side it is. On the other, it is at the start, and said.
    assert fired[0] == 2 or (fired[0] == 3 and got.kinked[5, 3])
    np.testing.assert_allclose(got.xs[5, 3], [0, 0.7 * 9.0 * 3 * _T / _N], atol=1e-6)


def test_start_on_guard_is_kinked(batch):
    _, got = batch
    assert got.kinked[6, 0] and not np.any(got.kinked[6, 1:])
    assert got.event[6, 0, 0] == 0


def test_failed_lane_stays_alone(batch):
    _, got = batch
    failed = got.result == control.RESULTS.nonfinite_state
    assert np.array_equal(failed, [False] * 7 + [True])
    assert np.all(np.isnan(got.A[7]))
    assert np.all(np.isfinite(got.A[:7]))


def test_errors():
    ball, x, us = PushedBall(), jnp.array([1.0, 0.0]), jnp.zeros((4, 1))
    ts = jnp.linspace(0.0, 1.0, 5)
    run = control.linearize
    with pytest.raises(ValueError, match="`ts` must be a vector of at least two knots"):
        run(ball, ts[:1], x, 0, us)
    with pytest.raises(ValueError, match=r"`us` must have shape.*us\[:, None\]"):
        run(ball, ts, x, 0, us[:, 0])
    with pytest.raises(ValueError, match="`us` .* N = 4 intervals"):
        run(ball, ts, x, 0, us[1:])
    with pytest.raises(ValueError, match="`ts` must be ascending"):
        run(ball, ts[::-1], x, 0, us)
    with pytest.raises(ValueError, match="`throw` is not known: .*'max_events'"):
        run(ball, ts, x, 0, us, throw=True)
    with pytest.raises(ValueError, match="`args_of` must be a function"):
        run(ball, ts, x, 0, us, args_of=3)  # pyright: ignore
    with pytest.raises(ValueError, match="`running` must return a floating"):
        run(ball, ts, x, 0, us, running=lambda t, x, u: u)
    with pytest.raises(ValueError, match="`system` must be"):
        control.with_rates(3)  # pyright: ignore
    with pytest.raises(ValueError, match="must be a pair `\\(x, v\\)`"):
        hj.simulate(control.with_rates(ball), 0.0, 1.0, x, 0, us[0])
