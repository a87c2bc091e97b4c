"""Bouncing balls, against closed forms and an independent reference."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import BallOnPaddle, BouncingBall

from .helpers import bounce_times, bouncing_ball, first_root


_controller = dfx.PIDController(rtol=1e-10, atol=1e-10)


@jax.jit
@jax.vmap
def _bounce(height, restitution, t1):
    sol = hj.simulate(
        BouncingBall(restitution=restitution),
        0.0,
        t1,
        jnp.stack([height, jnp.zeros_like(height)]),
        0,
        stepsize_controller=_controller,
        max_steps=96,
        max_events=8,
    )
    ts = jnp.linspace(0, 1, 64) * t1
    return sol, ts, sol.evaluate(ts)


def _check(height, restitution, t1, num_bounces):
    """Compares states at the end and on a grid, and event times."""
    sol, ts, xs = jax.tree.map(np.asarray, _bounce(height, restitution, t1))
    np.testing.assert_array_equal(sol.events.count, num_bounces)
    truth = [bouncing_ball(*p) for p in zip(height, restitution, t1, strict=True)]
    np.testing.assert_allclose(sol.x1, truth, rtol=0, atol=1e-8)
    for i in range(len(height)):
        truth = [bouncing_ball(height[i], restitution[i], t) for t in ts[i]]
        np.testing.assert_allclose(xs[i], truth, rtol=0, atol=1e-8)
        times = bounce_times(height[i], restitution[i], 8)
        times[num_bounces[i] :] = np.inf
        np.testing.assert_allclose(sol.events.t[i], times, rtol=0, atol=1e-9)


def _time_after(height, restitution, num_bounces, fraction):
    """A time between bounce number `num_bounces` and the next."""
    times = np.append(0, bounce_times(height, restitution, num_bounces + 1))
    return (1 - fraction) * times[-2] + fraction * times[-1]


def test_closed_form():
    n = 210
    rng = np.random.default_rng(0)
    height = np.linspace(0.5, 1.5, n)
    restitution = rng.uniform(0.5, 1.0, n)
    num_bounces = np.arange(n) % 7
    fraction = rng.uniform(0.03, 0.97, n)
    given = zip(height, restitution, num_bounces, fraction, strict=True)
    t1 = np.array([_time_after(*p) for p in given])
    _check(height, restitution, t1, num_bounces)


def test_low_bounce():
    # Bounces as low as 1 mm, which begin and end within what the controller would take
    # as one step: it starts each flight with steps of a few tenths of a second.
    n = 210
    rng = np.random.default_rng(1)
    height = rng.uniform(0.5, 1.5, n)
    low = np.geomspace(1e-3, 1e-1, n)
    restitution = np.sqrt(low / height)
    num_bounces = 1 + np.arange(n) % 2
    fraction = rng.uniform(0.03, 0.97, n)
    given = zip(height, restitution, num_bounces, fraction, strict=True)
    t1 = np.array([_time_after(*p) for p in given])
    _check(height, restitution, t1, num_bounces)


def test_speed_at_events():
    n = 210  # As in the other tests: one compilation serves all three.
    sol, _, _ = _bounce(np.ones(n), np.full(n, 0.5), np.full(n, 1.1))
    before = -np.sqrt(2 * 9.81) * 0.5 ** np.arange(3)
    events = jax.tree.map(lambda a: a[0], sol.events)
    count = int(events.count)
    assert count == 2
    before = before[:count]
    np.testing.assert_allclose(events.x_before[:count, 1], before, rtol=1e-9)
    np.testing.assert_allclose(events.x_after[:count, 1], -0.5 * before, rtol=1e-9)
    np.testing.assert_allclose(events.x_before[:count, 0], 0, atol=1e-9)
    np.testing.assert_allclose(events.x_after[:count, 0], 0, atol=1e-9)
    np.testing.assert_allclose(events.normal_speed[:count], before, rtol=1e-9)
    np.testing.assert_array_equal(events.event, [0, 0] + 6 * [-1])
    np.testing.assert_array_equal(events.mode_before, [0, 0] + 6 * [-1])
    np.testing.assert_array_equal(events.mode_after, [0, 0] + 6 * [-1])
    for padding in (events.x_before, events.x_after, events.normal_speed):
        assert np.isnan(padding[count:]).all()
    assert np.isposinf(events.t[count:]).all()


@jax.jit
@jax.vmap
def _juggle(system, height, speed):
    return hj.simulate(
        system,
        0.0,
        1.0,
        jnp.stack([height, speed]),
        0,
        stepsize_controller=_controller,
        max_steps=512,
        max_events=12,
        throw=False,
    )


def _paddle_events(height, speed, frequency, amplitude, restitution, gravity=9.81):
    """Times of impact, and the speeds after, on the exact parabolas of the flights."""
    times, speeds = [], []
    t, q, v = 0.0, height, speed
    rate = 2 * np.pi * frequency
    while True:
        gap = lambda s, t=t, q=q, v=v: (
            q + v * (s - t) - gravity * (s - t) ** 2 / 2 - amplitude * np.sin(rate * s)
        )
        # Right after an impact the gap is zero up to rounding.
        hit = first_root(gap, t + 1e-9, 1.0, resolution=5e-6)
        if hit is None:
            return np.array(times), np.array(speeds)
        w = amplitude * rate * np.cos(rate * hit)
        q, v = q + v * (hit - t) - gravity * (hit - t) ** 2 / 2, v - gravity * (hit - t)
        v = w - restitution * (v - w)
        t = hit
        times.append(t)
        speeds.append(v)


@pytest.mark.parametrize("frequency, amplitude", ((2.0, 0.1), (20.0, 0.01)))
def test_paddle(frequency, amplitude):
    # At 20 Hz the guard has many periods within what would be one step of the ball.
    n = 32
    rng = np.random.default_rng(2)
    height = rng.uniform(0.02, 0.3, n) + amplitude
    speed = rng.uniform(-1, 1, n)
    restitution = rng.uniform(0.6, 0.9, n)
    system = jax.vmap(
        lambda e: BallOnPaddle(restitution=e, frequency=frequency, amplitude=amplitude)
    )(jnp.asarray(restitution))
    sol = jax.tree.map(np.asarray, _juggle(system, height, speed))
    assert sol.events.count.max() >= 6
    for i in range(n):
        times, speeds = _paddle_events(
            height[i], speed[i], frequency, amplitude, restitution[i]
        )
        count = min(len(times), 12)
        assert sol.events.count[i] == count
        # An error grows from impact to impact; up to the sixth by less than 1e3.
        few = slice(0, min(count, 6))
        np.testing.assert_allclose(sol.events.t[i, few], times[few], rtol=0, atol=1e-9)
        np.testing.assert_allclose(
            sol.events.x_after[i, few, 1], speeds[few], rtol=0, atol=1e-7
        )
        result = jax.tree.map(lambda a, i=i: a[i], sol.result)
        assert result == hj.RESULTS.successful or len(times) > 12
