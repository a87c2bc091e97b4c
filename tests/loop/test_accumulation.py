"""Many events in little time: which of them accumulate, and which do not."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _simulate(system, t1, x0, mode0=0, args=None, **options):
    options = dict[str, Any](max_steps=1024, max_events=256, throw=False) | options
    return hj.simulate(system, 0.0, t1, x0, mode0, args, **options)


def _jit(f):
    return jax.jit(jax.vmap(f))


class _Paddle(hj.AbstractHybridSystem):
    """A ball that bounces on a paddle that swings, at a phase and a height `args`."""

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -9.81 * jnp.ones_like(x[1])])

    def guards(self, t, x, mode, args):
        return x[:1] - (0.1 * jnp.sin(5 * t + args[0]) + args[1])

    def jump(self, t, x, mode, event, args):
        v = 0.5 * jnp.cos(5 * t + args[0])
        return jnp.stack([x[0], v - 0.5 * (x[1] - v)]), mode


@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.thorough)]
)
def test_at_rest_on_a_paddle(dtype):
    # The height is rounded where the paddle is, so that the last flights are not
    # resolved; and still it is at rest. High up they are rounded long before their gaps
    # come near the rounding of time.
    phase = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    height, phase = (a.ravel() for a in np.meshgrid([0.0, 30.0, 1000.0], phase))

    def solve(args):
        x0 = jnp.stack([1 + args[1], 0 * args[1]])
        return _simulate(_Paddle(), 3.0, x0, 0, args)

    sol = _jit(solve)(jnp.asarray(np.stack([phase, height], axis=1), dtype))
    t = np.asarray(sol.stats["t_end"], float)
    # A ball that falls faster than the paddle does not come to rest before the end.
    rests = np.asarray(sol.result == hj.RESULTS.zeno)
    assert (np.asarray(sol.result == hj.RESULTS.successful) == ~rests).all()
    assert rests.sum() > 150 and (rests.all() or dtype == np.float32)
    off = np.asarray(sol.x1[:, 0], float) - height - 0.1 * np.sin(5 * t + phase)
    rounding = 4 * np.finfo(dtype).eps * height
    assert (np.abs(off) <= 1e-6 + rounding)[rests].all()
    assert (sol.events.count < 64).all()


class _Dropped(hj.AbstractHybridSystem):
    """A guard that drops by `drop` at a time, while it goes on at `rate`; where it
    fires, the state rises."""

    def flow(self, t, x, mode, args):
        return args[2] * jnp.ones_like(x)

    def guards(self, t, x, mode, args):
        return x - jnp.where(t >= args[0], args[1], 0.0)

    def jump(self, t, x, mode, event, args):
        return x + args[3], mode


def test_guard_that_drops():
    rng = np.random.default_rng(0)
    n = 128
    time, drop = rng.uniform(0.1, 1.9, n), rng.uniform(7, 30, n)
    rate = rng.choice([-1.0, 0.0, 1.0], n) * rng.uniform(0.2, 1, n)
    rise = rng.choice([0.5, 2.0, 20.0, 40.0], n)

    @_jit
    def solve(args):
        x0 = jnp.array([9.0])
        sol = _simulate(_Dropped(), 2.0, x0, 0, args)
        return sol.result, sol.events.t, sol.events.count, sol.x1[0]

    result, t, count, x1 = solve((time, drop, rate, rise))
    # So often it has to rise to be out of the guard set, if it does not rise by itself:
    # then once is enough.
    there = 9 + rate * time - drop
    times = np.where(rate > 0, 1, np.floor(-there / rise) + 1)
    times = np.where(there > 0, 0, times)
    endless = times > 9
    assert endless.any() and (times == 1).any() and (times == 2).any()
    assert (result == hj.RESULTS.zeno)[endless].all()
    good = ~endless & (rate >= 0)
    assert (result == hj.RESULTS.successful)[good].all()
    np.testing.assert_array_equal(count[good], times[good])
    np.testing.assert_allclose(x1[good], (9 + 2 * rate + times * rise)[good], rtol=1e-9)
    fired = good & (times > 0)
    np.testing.assert_allclose(t[fired, 0], time[fired], rtol=0, atol=1e-12)
    # It falls on, and fires at the drop as well.
    falls = ~endless & (times > 0) & (rate < 0)
    assert falls.any() and (result == hj.RESULTS.successful)[falls].all()
    np.testing.assert_allclose(t[falls, 0], time[falls], rtol=0, atol=1e-12)


class _Clock(hj.AbstractHybridSystem):
    """A clock of a period `args`, which counts."""

    def flow(self, t, x, mode, args):
        return jnp.stack([-jnp.ones_like(x[0]), jnp.zeros_like(x[0])])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0] + args, x[1] + 1]), mode


def test_clock_in_float32():
    # The shortest period is 3000 times what the time resolves at the end. One that is a
    # tenth of that, faster than 330 Hz, would drift by its rounding: it is refused.
    def solve(period):
        x0 = jnp.stack([period, 0 * period])
        return _simulate(
            _Clock(), 100.0, x0, 0, period, max_steps=16384, max_events=4096
        )

    periods = jnp.asarray([0.04, 0.0511, 0.1, 0.37, 0.0029], jnp.float32)
    sol = _jit(solve)(periods)
    assert (sol.result == hj.RESULTS.successful)[:-1].all()
    assert (sol.result == hj.RESULTS.zeno)[-1]
    expected = np.floor(100.0 / np.asarray(periods[:-1], float))
    np.testing.assert_allclose(sol.events.count[:-1], expected, atol=1)
    np.testing.assert_array_equal(sol.events.count, sol.x1[:, 1])


class _Row(hj.AbstractHybridSystem):
    """Points of one mass in a row, which exchange their speeds."""

    def flow(self, t, x, mode, args):
        q, v = x
        return v, jnp.zeros_like(v)

    def guards(self, t, x, mode, args):
        return x[0][1:] - x[0][:-1]

    def jump(self, t, x, mode, event, args):
        q, v = x
        i = jnp.arange(v.size)
        swapped = jnp.where(i == event, jnp.roll(v, -1), v)
        return (q, jnp.where(i == event + 1, jnp.roll(v, 1), swapped)), mode


@pytest.mark.parametrize("gaps", ["equal", "random"])
def test_balls_that_hit_balls(gaps):
    # Six hit six: each of them passes its speed on, through 36 collisions.
    n, rng = 6, np.random.default_rng(0)

    def solve(gap):
        fly = jnp.cumsum(jnp.concatenate([jnp.zeros(1), gap]))
        q = fly - fly[n - 1] + jnp.where(jnp.arange(2 * n) < n, -0.5, 0)
        v = jnp.where(jnp.arange(2 * n) < n, 1.0, 0.0)
        sol = _simulate(_Row(), 1.0, (q, v))
        return sol.result, sol.events.count, sol.x1, q

    # Not at zero: what touches and does not move apart fires, again and again.
    sizes = np.array([1e-13, 3e-13, 1e-12, 1e-11, 1e-9, 1e-6, 1e-4, 1e-3])
    shape = (sizes.size, 2 * n - 1)
    share = np.ones(shape) if gaps == "equal" else rng.uniform(0.2, 1, shape)
    result, count, (q, v), start = _jit(solve)(share * sizes[:, None])
    # Who is first stays first: they exchange places instead.
    v0 = np.where(np.arange(2 * n) < n, 1.0, 0.0)
    expected = np.sort(np.asarray(start) + v0, axis=1)
    assert (result == hj.RESULTS.successful).all()
    np.testing.assert_array_equal(count, n * n)
    np.testing.assert_allclose(q, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(v, np.broadcast_to(v0[::-1], v.shape), atol=1e-12)


class _Threshold(hj.AbstractHybridSystem):
    """Fires above one, by one at a time; gets `args` at 0.5."""

    def flow(self, t, x, mode, args):
        return 0.3 * jnp.ones_like(x)

    def guards(self, t, x, mode, args):
        given = jnp.where(mode > 0, 1.0, 0.5 - t)
        return jnp.stack([1 - x[0], given])

    def jump(self, t, x, mode, event, args):
        return jnp.where(event == 0, x - 1, x + args), mode + (event == 1)


def test_several_times_in_an_instant():
    given = jnp.array([0.0, 1.5, 3.5, 5.6, 6.5, 1e3])
    sol = _jit(lambda given: _simulate(_Threshold(), 1.0, jnp.zeros(1), 0, given))(
        given
    )
    assert (sol.result == hj.RESULTS.successful)[:-1].all()
    assert (sol.result == hj.RESULTS.zeno)[-1]
    # It is at 0.15 before, and at 0.3 in the end if nothing happens.
    times = np.floor(given + 0.3)[:-1]
    np.testing.assert_array_equal(sol.events.count[:-1], 1 + times)
    np.testing.assert_allclose(
        sol.x1[:-1, 0], given[:-1] + 0.3 - times, rtol=0, atol=1e-12
    )


class _Touch(hj.AbstractHybridSystem):
    """One guard that is crossed at `args`, and one that would touch zero at 0.5."""

    def flow(self, t, x, mode, args):
        return jnp.ones_like(x)

    def guards(self, t, x, mode, args):
        return jnp.stack([args - x[0], jnp.where(mode > 0, 1.0, (x[0] - 0.5) ** 2)])

    def jump(self, t, x, mode, event, args):
        return x - 2, mode + 1


def test_what_an_event_prevents_is_not_touched():
    at = jnp.array([0.1, 0.3, 0.49, 0.51, 0.8])
    sol = _jit(lambda at: _simulate(_Touch(), 1.0, jnp.zeros(1), 0, at))(at)
    assert (sol.result == hj.RESULTS.successful)[:3].all()
    np.testing.assert_allclose(sol.events.t[:3, 0], at[:3], rtol=0, atol=1e-9)
    assert (sol.result == hj.RESULTS.grazing)[3:].all()
