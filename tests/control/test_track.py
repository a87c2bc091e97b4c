"""Tracking across events: a ball whose reference bounces at other times."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import control
from hybridjax.models import PushedBall


_E, _N, _T, _PUSH = 0.8, 60, 2.4, 1.0
_TS = jnp.linspace(0.0, _T, _N + 1)
_BALL = PushedBall(restitution=_E)
_US = jnp.full((_N, 1), _PUSH)
_X0 = jnp.array([1.0, 0.0])
_OPTIONS: Any = dict(max_events=2, max_steps=32)
_REACH = 0.15


@pytest.fixture(scope="module")
def closed():
    """Begun off the reference, in both directions, by little and by more; and NaN."""
    offs = np.array(
        [[1e-4, 1e-4], [-1e-4, 2e-4], [0.1, 0.1], [-0.2, -0.2], [np.nan, 0]]
    )

    @jax.jit
    def run(offs):
        dt = _T / _N
        Q, R = dt * jnp.eye(2), 0.05 * dt * jnp.eye(1)
        lqr = control.tracking_lqr(
            _BALL, _TS, _X0, 0, _US, Q, R, jnp.eye(2), **_OPTIONS
        )
        reference = control.extend_reference(
            _BALL, lqr, _REACH, total_events=6, **_OPTIONS
        )
        track = lambda by: jax.vmap(
            lambda off: control.track(_BALL, reference, _X0 + off, 0, by=by, **_OPTIONS)
        )(offs)
        return lqr, reference, track("events"), track("clock")

    return offs, *jtu.tree_map(np.asarray, run(offs))


def test_reference_goes_on_beyond_events(closed):
    _, lqr, reference, _, _ = closed
    count = reference.counts[-1]
    assert count == np.sum(lqr.reference.event >= 0) == 4
    a, ts = _PUSH - 9.8, np.asarray(_TS)
    fall = np.sqrt(-2 * a)
    t, begins, speeds = 0.0, [], []
    for k in range(count + 1):
        t += (1 if k == 0 else 2) * fall * _E**k / -a
        begins.append(t)
        speeds.append(fall * _E ** (k + 1))
    for k in range(count):
        # The parabola that begins at the bounce, from there back and on to the next.
        s = ts - begins[k]
        near = (s > -_REACH) & (ts < begins[k + 1] + _REACH)
        parabola = np.stack([speeds[k] * s + a * s**2 / 2, speeds[k] + a * s], axis=1)
        np.testing.assert_allclose(reference.xs[k + 1][near], parabola[near], atol=1e-7)
        # Both sides of the event exist at some knots.
        assert np.sum(near & (s < 0)) >= 3
    assert np.array_equal(reference.counts[1:-1], np.searchsorted(begins, ts[1:-1]))


def test_converges_as_regulator_says_without_a_spike(closed):
    offs, lqr, _, tracked, _ = closed
    for i in range(2):
        dx, expected = offs[i], [offs[i]]
        for A, B, K in zip(lqr.reference.A, lqr.reference.B, lqr.K, strict=True):
            dx = (A - B @ K) @ dx
            expected.append(dx)
        # At every knot, those between the two bounces included.
        off = float(np.linalg.norm(offs[i]))
        np.testing.assert_allclose(tracked.error[i], expected, atol=0.02 * off)
        assert np.linalg.norm(expected[-1]) < 0.02 * off
    assert np.all(tracked.counts[:2, -1] == 4)


def test_clock_has_spikes_and_events_have_none(closed):
    offs, _, reference, by_events, by_clock = closed
    for i in (2, 3):
        # The large deviation is 1000 times the small one, and so is its control.
        push = np.max(np.abs(by_events.us[i] - _PUSH))
        gain = np.max(np.abs(reference.K))
        assert push < 3 * gain * np.linalg.norm(offs[i])
        assert np.max(np.abs(by_clock.us[i] - _PUSH)) > 5 * push
        error = np.linalg.norm(by_events.error[i], axis=1)
        assert error[-1] < 0.02 * error[0]


def test_failed_lane_stays_alone(closed):
    tracked = closed[3]
    successful = tracked.result == control.RESULTS.successful
    assert np.array_equal(successful, [True] * 4 + [False])
    assert np.all(np.isfinite(tracked.error[:4]))


def test_errors(closed):
    _, lqr, reference, _, _ = closed
    with pytest.raises(ValueError, match="`reach` must be a positive time"):
        control.extend_reference(_BALL, lqr, 0.0)
    with pytest.raises(ValueError, match="`lqr` must be what"):
        control.extend_reference(_BALL, reference, 0.1)
    with pytest.raises(ValueError, match="`total_events` must be given"):
        jax.eval_shape(lambda lqr: control.extend_reference(_BALL, lqr, 0.1), lqr)
    with pytest.raises(ValueError, match="`reference` must be what"):
        control.track(_BALL, lqr, _X0, 0)
    with pytest.raises(ValueError, match='`by` must be "events" or "clock"'):
        control.track(_BALL, reference, _X0, 0, by="time")  # pyright: ignore
    with pytest.raises(ValueError, match="`x0` must have the 2 numbers"):
        control.track(_BALL, reference, jnp.zeros(3), 0)
    with pytest.raises(ValueError, match="`R` must be positive definite"):
        control.tracking_lqr(
            _BALL, _TS, _X0, 0, _US, jnp.eye(2), jnp.zeros((1, 1)), jnp.eye(2)
        )
