"""What losses need: solutions by segments, and means over lanes of which some fail."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import BouncingBall

from ..helpers import ball_outcome, batch_jacobians, value_and_jacobian


_SHARES = np.array([0.0, 0.3, 1.0])
_T1 = 1.0


def _ball(z):
    ball = BouncingBall(gravity=z[2], restitution=z[3])
    return hj.simulate(
        ball, 0.0, _T1, z[:2], 0, max_steps=64, max_events=6, throw=False
    )


def _compared(z):
    sol = _ball(z)
    index = jnp.arange(8)
    x = sol.evaluate_segment(index[:, None], jnp.asarray(_SHARES, z.dtype))
    return jnp.concatenate([sol.segment_times(), x.ravel()]), sol.events.count


def _expected(z, bounces):
    """By parabolas."""
    times = ball_outcome(z, bounces, _T1)[2:]
    end = jnp.full(7 - bounces, _T1)
    times = jnp.concatenate([jnp.zeros(1), times, end])
    q, v, g, e = z
    xs = []
    for k in range(8):
        duration = times[k + 1] - times[k] if k <= bounces else 0.0
        if k > bounces:  # the state of the end
            xs += [xs[-1]] * len(_SHARES)
            continue
        s = _SHARES * duration
        xs += list(jnp.stack([q + v * s - g * s**2 / 2, v - g * s], axis=1))
        q, v = 0.0, -e * xs[-1][1]
    return jnp.concatenate([times, jnp.ravel(jnp.stack(xs))])


@functools.cache
def _expected_after(bounces):
    return value_and_jacobian(functools.partial(_expected, bounces=bounces))


# From no bounce to four of them.
_balls = np.array([[h, v, 9.81, 0.7] for h in (0.3, 0.6, 9.0) for v in (0.5, -0.4)])


@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.thorough)]
)
def test_segments(dtype):
    values, *jacobians, counts = batch_jacobians(_compared)(jnp.asarray(_balls, dtype))
    assert values.dtype == dtype
    tol = 1e-7 if dtype == np.float64 else 3e-3
    for k, count in enumerate(counts.tolist()):
        value, jacobian = _expected_after(count)(jnp.asarray(_balls[k]))
        np.testing.assert_allclose(values[k], value, rtol=tol, atol=tol)
        for got in jacobians:
            np.testing.assert_allclose(got[k], jacobian, rtol=tol, atol=10 * tol)
    assert set(counts.tolist()) == {0, 2, 3, 4}


def test_limits():
    # Outside of `jax.jit`: those of the log, exactly.
    sol = _ball(jnp.array([1.0, 0.0, 9.81, 0.8]))
    at = lambda index, share: np.asarray(sol.evaluate_segment(index, share))
    np.testing.assert_array_equal(at(0, 0), sol.x0)
    np.testing.assert_array_equal(at(0, 1), sol.events.x_before[0])
    np.testing.assert_array_equal(at(1, 0.0), sol.events.x_after[0])
    np.testing.assert_array_equal(at(jnp.array([1, 2, 40]), 1), [sol.x1] * 3)
    assert at(np.zeros((2, 1), int), np.zeros(3)).shape == (2, 3, 2)


def test_continuous_as_an_event_leaves():
    # The bounce is at `t1` for a fall from here; higher balls do not bounce.
    h = 9.81 * _T1**2 / 2 + np.linspace(-1e-3, 1e-3, 21)

    def one(h):
        sol = _ball(jnp.stack([h, 0.0, 9.81, 0.8]))
        return sol.segment_times()[1], sol.events.count

    times, count = jax.jit(jax.vmap(one))(h)
    assert set(count.tolist()) == {0, 1}
    np.testing.assert_allclose(times, np.minimum(np.sqrt(2 * h / 9.81), _T1), rtol=1e-9)


def _error(sol, target):
    """Not finite, or without a derivative, at NaN, infinity and zero."""
    path = sol.evaluate(jnp.linspace(0.1, 1, 4))
    arc = sol.evaluate_segment(1, 0.5)
    logs = jnp.log(sol.events.t[0]) + jnp.log(arc[0]) + jnp.sqrt(sol.x1[0])
    return logs + jnp.sum((path - target) ** 2)


def _lanes(z, x0s):
    run = lambda x0: _ball(jnp.concatenate([x0, z]))
    return jax.vmap(run)(x0s)


def test_mean_over_successful():
    z = jnp.array([9.81, 0.8])
    heights = np.array([1.0, 1e-3, 2.0, np.nan, 1.5])
    x0s = jnp.asarray(np.stack([heights, 0 * heights], axis=1))
    targets = jnp.arange(5.0)
    good = np.array([0, 2, 4])

    def mean(z, x0s, least_share=0.6):
        return hj.mean_over_successful(
            _error, _lanes(z, x0s), targets, least_share=least_share
        )

    def of_good(z, x0s):
        # None of them fails.
        return jnp.mean(jax.vmap(_error)(_lanes(z, x0s[good]), targets[good]))

    def both(fn, z, x0s, *args):
        value, push = jax.linearize(lambda *a: fn(*a, *args), z, x0s)
        move = (jnp.array([0.3, -0.1]), jnp.nan_to_num(x0s) + 0.1)
        return value, push(*move), *jax.linear_transpose(push, z, x0s)(jnp.ones(()))

    check = jax.jit(functools.partial(both, mean))
    expected = jax.jit(functools.partial(both, of_good))(z, x0s)
    got = check(z, x0s, 0.6)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(got[3][np.array([1, 3])], 0)
    assert np.abs(got[2]).min() > 0.1
    # Too few, and none at all.
    for starts, share in ((x0s, 0.61), (jnp.nan * x0s, 0.0)):
        value, push, of_z, _ = check(z, starts, share)
        assert np.isnan([value, push, *of_z]).all()


def test_wrong_arguments():
    sol = _ball(jnp.array([1.0, 0.0, 9.81, 0.8]))
    for args, match in (
        ((0.5, 0.5), "`index` must be integers"),
        ((-1, 0.5), "`index` must be at least 0, but it has -1"),
        ((0, 1.1), "`share` must be from 0 to 1, but it has 1.1"),
    ):
        with pytest.raises(ValueError, match=match):
            sol.evaluate_segment(*args)  # pyright: ignore
    with pytest.raises(ValueError, match="`sols` must be a batch .* shape is ()"):
        hj.mean_over_successful(lambda sol: sol.t1, sol)
    sols = jax.tree.map(lambda a: np.asarray(a)[None], sol)
    with pytest.raises(ValueError, match="`loss` must return a scalar"):
        hj.mean_over_successful(lambda sol: sol.x1, sols)
