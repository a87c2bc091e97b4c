"""Lyapunov exponents, against closed forms."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.analysis import lyapunov_exponents

from .maps import MapInTime


def test_tent_map():
    # A flow whose return map is a tent map has its exponent in each return. (With slope
    # 2, it would end at 0 by rounding.) The clock's is zero.
    slope = 1.9
    tent = MapInTime(lambda y: jnp.where(y < 0.5, slope * y, slope * (1 - y)))
    run = lambda n, **at: lyapunov_exponents(tent, 2.5, n, max_steps=32, **at)
    start = dict(x0=jnp.array([0.31234, 0.0]), mode0=0)
    first = run(10, **start)
    exact = [np.log(slope), 0.0]
    # 25 returns in 25 units of time, the last one at the end.
    np.testing.assert_allclose(first.exponents, exact, atol=1e-9)
    np.testing.assert_array_equal(first.num_events, [2, 3] * 5)
    # In two parts, what it is in one.
    second, whole = run(10, state=first.state), run(20, **start)
    np.testing.assert_allclose(second.exponents, whole.exponents, rtol=1e-12)
    np.testing.assert_allclose(second.history, whole.history[10:], rtol=1e-12)
    half = run(10, state=first.state.restarted())
    later = 2 * whole.exponents - first.exponents
    np.testing.assert_allclose(half.exponents, later, atol=1e-12)


def test_sum_of_exponents():
    # Of a chaotic impact oscillator: the divergence, and ln e^2 for each impact. In one
    # batch with another one, and with one that fails and is alone in that.
    e, c, period = 0.8, 0.1, np.pi

    def run(amplitude):
        system = models.ImpactOscillator(amplitude, 2 * np.pi / period, 0.5, e)
        options: Any = dict(max_events=8, max_steps=200, throw=False)
        return lyapunov_exponents(system, period, 40, jnp.zeros(2), 0, **options)

    found = jax.jit(jax.vmap(run))(jnp.array([1.6, 1.504, jnp.nan]))
    fine = found.result == hj.analysis.RESULTS.successful
    np.testing.assert_array_equal(fine, [True, True, False])
    rate = np.sum(found.num_events, axis=1)[:2] / (40 * period)
    assert np.all(rate > 0.1)
    exact = -c + rate * np.log(e**2)
    np.testing.assert_allclose(np.sum(found.exponents, axis=1)[:2], exact, atol=1e-6)
    assert np.all(np.isnan(found.exponents[2]))


def test_errors():
    go = lambda **more: lyapunov_exponents(
        models.ImpactOscillator(),
        **{**dict(interval=1.0, num_intervals=2, x0=jnp.zeros(2), mode0=0), **more},
    )
    for more, message in (
        (dict(num_intervals=0), "`num_intervals` must be a positive integer"),
        (dict(interval=0.0), "`interval` must be positive"),
        (dict(num_exponents=3), "`num_exponents` must be an integer from 1 to 2"),
        (dict(x0=None), "`x0` or argument `state` must be given"),
    ):
        with pytest.raises(ValueError, match=message):
            go(**more)
