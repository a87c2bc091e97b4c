"""Bouncing balls, against closed forms and an independent reference."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import BallOnPaddle, BouncingBall

from ..helpers import bounce_times, bouncing_ball, first_root


_controller = dfx.PIDController(rtol=1e-10, atol=1e-10)


# With `jax.jit` and `jax.vmap`, not their filtered forms.
@jax.jit
@jax.vmap
def _bounce(height, restitution, t1, t0, speed, gravity):
    sol = hj.simulate(
        BouncingBall(gravity, restitution),
        t0,
        t1,
        jnp.stack([height, speed]),
        0,
        stepsize_controller=_controller,
        max_steps=96,
        max_events=8,
    )
    ts = t0 + jnp.linspace(0, 1, 64) * (t1 - t0)
    return sol, ts, sol.evaluate(ts)


def _solve(
    height, restitution, duration, t0: Any = 0.0, speed: Any = 0.0, gravity: Any = 9.81
):
    more = (np.broadcast_to(a, height.shape) for a in (t0, speed, gravity))
    return _bounce(height, restitution, t0 + duration, *more)


def _check(
    height,
    restitution,
    duration,
    num_bounces,
    t0: Any = 0.0,
    speed: Any = 0.0,
    gravity: Any = 9.81,
):
    """Compares states at the end and on a grid, and event times."""
    out = _solve(height, restitution, duration, t0, speed, gravity)
    sol, ts, xs = jax.tree.map(np.asarray, out)
    np.testing.assert_array_equal(sol.events.count, num_bounces)
    # What is saved if nothing else is asked for.
    assert sol.modes.shape == (height.size, 1)
    np.testing.assert_array_equal(sol.xs[:, 0], sol.x1)
    balls = np.broadcast_arrays(height, restitution, duration, t0, speed, gravity)
    for i, (q, e, length, start, v, g) in enumerate(zip(*balls, strict=True)):
        truth = bouncing_ball(q, e, length, v, g)
        np.testing.assert_allclose(sol.x1[i], truth, rtol=0, atol=1e-8)
        truth = [bouncing_ball(q, e, t - start, v, g) for t in ts[i]]
        np.testing.assert_allclose(xs[i], truth, rtol=0, atol=1e-8)
        times = start + bounce_times(q, e, 8, v, g)
        times[num_bounces[i] :] = np.inf
        np.testing.assert_allclose(sol.events.t[i], times, rtol=0, atol=1e-9)


def _time_after(
    height, restitution, num_bounces, fraction, speed: Any = 0.0, gravity: Any = 9.81
):
    """A time between bounce number `num_bounces` and the next."""
    times = bounce_times(height, restitution, num_bounces + 1, speed, gravity)
    times = np.append(0, times)
    return (1 - fraction) * times[-2] + fraction * times[-1]


def test_closed_form():
    # All that there is varies from lane to lane.
    n = 210
    rng = np.random.default_rng(0)
    height = np.linspace(0.5, 1.5, n)
    restitution = rng.uniform(0.5, 1.0, n)
    num_bounces = np.arange(n) % 7
    fraction = rng.uniform(0.03, 0.97, n)
    t0, speed = rng.uniform(-1, 1, (2, n))
    gravity = rng.uniform(5, 12, n)
    given = zip(height, restitution, num_bounces, fraction, speed, gravity, strict=True)
    duration = np.array([_time_after(*p) for p in given])
    _check(height, restitution, duration, num_bounces, t0, speed, gravity)


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
    duration = np.array([_time_after(*p) for p in given])
    _check(height, restitution, duration, num_bounces)


@jax.jit
def _evaluate(sol, t):
    rates = jax.vmap(jax.vmap(jax.jacfwd(sol.evaluate)))(t)
    return sol, sol.evaluate(t), rates


def test_evaluate():
    # A lane of the solutions that came out of one compiled function, in another one.
    n = 210
    height, restitution = np.linspace(0.9, 1.1, n), np.full(n, 0.7)
    balls = _solve(height, restitution, np.full(n, 2.0), 0.3, 0.5, 8.0)[0]
    sol = jax.tree.map(lambda a: a[7], balls)
    truth = lambda t: bouncing_ball(height[7], 0.7, t - 0.3, 0.5, 8.0)
    count = int(sol.events.count)
    assert count >= 2
    grid, t = np.linspace(0.3, 2.3, 201), np.asarray(sol.events.t[:count])
    outside = [0.29, 2.31, np.nan]
    ts = np.concatenate([grid, t, t - 1e-9, t + 1e-9, outside]).reshape(-1, 3)
    sol, xs, rates = jax.tree.map(np.asarray, _evaluate(sol, ts))
    assert xs.shape == rates.shape == (*ts.shape, 2)
    sizes = np.cumsum([201, count, count, count])
    inside, at, before, after, nowhere = np.split(xs.reshape(-1, 2), sizes)
    np.testing.assert_allclose(inside, [truth(t) for t in grid], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(inside[-1], sol.x1)
    # Right-continuous at events, whose left limit is in the log.
    log = sol.events
    np.testing.assert_allclose(at, log.x_after[:count], rtol=0, atol=1e-12)
    np.testing.assert_allclose(before, log.x_before[:count], rtol=0, atol=1e-7)
    np.testing.assert_allclose(after, log.x_after[:count], rtol=0, atol=1e-7)
    # Nothing is known outside.
    assert np.isnan(nowhere).all()
    # The derivative with respect to time is the vector field.
    field = np.stack([inside[:, 1], np.full(201, -8.0)], axis=1)
    rates = rates.reshape(-1, 2)[:201]
    np.testing.assert_allclose(rates, field, rtol=0, atol=1e-10)


def test_speed_at_events():
    n = 210  # As in the other tests: one compilation serves all of them.
    sol, _, _ = _solve(np.ones(n), np.full(n, 0.5), np.full(n, 1.1))
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
