"""Periodic orbits: published ones, closed forms, and their derivatives."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from hybridjax import models
from hybridjax.analysis import Period, periodic_orbit, RESULTS, return_map, Section
from scipy.integrate import quad, solve_ivp

from ..helpers import error


_FEW: Any = dict(max_events=4, max_steps=128)


#
# The simplest walker
#


def _after_landing(angle, rate):
    cos = np.cos(2 * angle)
    return jnp.array([angle, 2 * angle, rate, rate * (1 - cos)])


# Garcia et al. (1998), at a slope of 0.009: the long-period gait, and multipliers.
_LONG = _after_landing(0.200310900544287, -0.199832473004977)
_STEP = Section(1, max_time=6.0)


def _walk(slope, x0):
    system = models.SimplestWalker(slope)
    return periodic_orbit(system, _STEP, x0, 0, throw=False, **_FEW)


def _next_step(y, slope):
    """By SciPy: angle and rate after the next landing."""

    def flow(t, x):
        acc = np.sin(x[0] - slope)
        pull = x[2] ** 2 - np.cos(x[0] - slope)
        return [x[2], x[3], acc, acc + pull * np.sin(x[1])]

    landing = lambda t, x: x[1] - 2 * x[0] if t > 2.5 else -1.0
    landing.terminal, landing.direction = True, 1  # pyright: ignore
    x0 = np.asarray(_after_landing(*y))
    path = solve_ivp(flow, (0, 6), x0, events=landing, rtol=1e-11, atol=1e-12)
    angle, _, rate, _ = path.y[:, -1]
    return np.array([-angle, np.cos(2 * angle) * rate])


@pytest.mark.thorough
def test_simplest_walker():
    # In one batch: the published orbit, from guesses nearby; and a guess that falls
    # over, which harms no other.
    near = _LONG * jnp.array([1.02, 1.02, 0.99, 0.9])
    falls = jnp.array([0.2, 0.4, 0.3, 0.0])
    guesses = jnp.stack([_LONG, near, falls])
    orbits = jax.jit(jax.vmap(_walk))(jnp.full(3, 0.009), guesses)
    fine = np.array([True, True, False])
    np.testing.assert_array_equal(orbits.result == RESULTS.successful, fine)
    assert jax.tree.map(lambda a: a[2], orbits.result) == RESULTS.section_not_crossed
    np.testing.assert_allclose(orbits.x[:2], np.stack([_LONG] * 2), atol=1e-7)
    assert np.all(orbits.residual[fine] < 1e-7)
    assert np.all(orbits.num_iterations[:2] <= np.array([3, 6]))
    # Theirs, to three digits; the trivial one; and one that each landing takes away.
    got = orbits.multipliers[0]
    assert np.sum(orbits.trivial[0]) == 1
    np.testing.assert_allclose(got[orbits.trivial[0]], 1, atol=1e-6)
    pair = got[1:3][np.argsort(got[1:3].imag)]
    np.testing.assert_allclose(pair, [-0.190 - 0.558j, -0.190 + 0.558j], atol=1e-3)
    assert np.abs(got[3]) < 1e-9
    # Against an independent simulation.
    y, d = np.array([_LONG[0], _LONG[2]]), 1e-5
    columns = [
        (_next_step(y + d * e, 0.009) - _next_step(y - d * e, 0.009)) / (2 * d)
        for e in np.eye(2)
    ]
    exact = np.linalg.eigvals(np.transpose(columns))
    np.testing.assert_allclose(pair, exact[np.argsort(exact.imag)], atol=1e-5)
    assert orbits.is_stable[0] and orbits.signature.count[0] == 2


@pytest.mark.thorough
def test_simplest_walker_limps():
    # At a slope of 0.0172 two steps make a period. SciPy walks until it repeats.
    slope, y = 0.0172, np.array([0.24, -0.235])
    for _ in range(120):
        y = _next_step(y, slope)
    system, two = models.SimplestWalker(slope), Section(1, 2, max_time=12.0)
    near = _after_landing(*(y * np.array([1.003, 0.998])))
    orbit = periodic_orbit(system, two, near, 0, **_FEW)
    other = _next_step(y, slope)
    assert np.abs(other - y).max() > 0.01
    found = np.array([orbit.x[0], orbit.x[2]])
    np.testing.assert_allclose(found, y, atol=1e-6)
    d = 1e-5
    twice = lambda y: _next_step(_next_step(y, slope), slope)
    columns = [(twice(y + d * e) - twice(y - d * e)) / (2 * d) for e in np.eye(2)]
    exact = np.linalg.eigvals(np.transpose(columns))
    got = orbit.multipliers[~orbit.trivial]
    got = got[np.argsort(-np.abs(got))][:2]
    order = lambda a: a[np.argsort(a.imag + a.real)]
    np.testing.assert_allclose(order(got), order(exact), atol=1e-4)
    assert orbit.is_stable and orbit.signature.count == 4


#
# Driven systems
#


@pytest.mark.thorough
def test_impact_oscillator():
    # One impact in each period: the product of the multipliers, over amplitudes.
    w, e, c = 2.0, 0.8, 0.1
    period = 2 * np.pi / w

    near = jnp.array([-2.29, 0.51])

    def orbit(amplitude, x0):
        system = models.ImpactOscillator(amplitude, w, 0.5, e, damping=c)
        until = Period(period)
        return periodic_orbit(system, until, x0, 0, throw=False, **_FEW)

    h = 1e-5
    amplitudes = jnp.array([1.55, 1.6, 2.2, 1.6 - h, 1.6 + h])
    # The last one is led there from another sequence of events, and says so.
    other = jnp.array([-0.410, -2.984])
    guesses = jnp.stack([near] * 5 + [other])
    orbits = jax.jit(jax.vmap(orbit))(jnp.append(amplitudes, 1.6), guesses)
    assert np.all((orbits.result == RESULTS.successful)[:5])
    assert (orbits.result == RESULTS.signature_changed)[5]
    np.testing.assert_allclose(orbits.x[5], orbits.x[1], atol=1e-7)
    assert np.all(orbits.signature.count == 1)
    assert not np.any(orbits.trivial)
    product = np.prod(orbits.multipliers, axis=1)
    np.testing.assert_allclose(product, e**2 * np.exp(-c * period), rtol=1e-7)

    # With respect to the amplitude, by the implicit function theorem.
    outcome = lambda found: (found.x, found.multipliers)
    slopes = jax.jit(jax.jacfwd(lambda a: outcome(orbit(a, near))))(1.6)
    for slope, values in zip(slopes, outcome(orbits), strict=True):
        difference = (values[4] - values[3]) / (2 * h)
        np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-5)


def test_paddle_juggler():
    # l^2 - (1 + e^2 + (1 + e)^2 a / g) l + e^2 = 0, with the paddle's acceleration a.
    frequency, g = 2.0, 9.81

    def orbit(e, amplitude):
        # At impact its speed is g T (1 - e) / (1 + e) / 2; the stable phase is the one
        # in which it goes up and slows down.
        period, w = 1 / frequency, 2 * jnp.pi * frequency
        speed = g * period / 2 * (1 - e) / (1 + e)
        phase = jnp.arccos(speed / (amplitude * w))
        t = phase / w
        # A little after the impact.
        later = 0.01
        v = g * period / 2
        x0 = jnp.stack(
            [amplitude * jnp.sin(phase) + v * later - g * later**2 / 2, v - g * later]
        )
        paddle = models.BallOnPaddle(g, e, amplitude, frequency)
        found = periodic_orbit(
            paddle, Period(period), x0 + 0.001, 0, t0=t + later, throw=False, **_FEW
        )
        a = -amplitude * w**2 * jnp.sin(phase)
        middle = 1 + e**2 + (1 + e) ** 2 * a / g
        return found, jnp.stack([-middle, e**2])

    orbits, coefficients = jax.jit(jax.vmap(orbit))(
        jnp.array([0.55, 0.6, 0.7, 0.8]), jnp.array([0.06, 0.06, 0.08, 0.1])
    )
    assert np.all(orbits.result == RESULTS.successful)
    sums = -np.sum(orbits.multipliers, axis=1)
    products = np.prod(orbits.multipliers, axis=1)
    assert error(np.real(np.stack([sums, products], axis=1)), coefficients) < 1e-6
    # Stable for -2 g (1 + e^2) / (1 + e)^2 < a < 0, here for some of them.
    stable = np.abs(coefficients[:, 0]) < 1 + coefficients[:, 1]
    np.testing.assert_array_equal(orbits.is_stable, stable)
    assert 0 < np.sum(stable) < 4


#
# Symmetry
#


class _Wheel(hj.AbstractHybridSystem):
    """A wheel without a rim, with its mass in the middle, that goes down a slope on
    spokes of length 1: angle, rate, and the place of the foot."""

    slope: jax.Array
    half: jax.Array  # of the angle between spokes

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], 9.81 * jnp.sin(x[0]), 0 * x[2]])

    def guards(self, t, x, mode, args):
        return jnp.stack([self.slope + self.half - x[0]])

    def jump(self, t, x, mode, event, args):
        rate = jnp.cos(2 * self.half) * x[1]
        step = 2 * jnp.sin(self.half)
        return jnp.stack([x[0] - 2 * self.half, rate, x[2] + step]), mode


def _step_time(slope, half):
    """Of the periodic gait, by quadrature."""
    loss = np.cos(2 * half)
    gain = 4 * 9.81 * np.sin(slope) * np.sin(half)
    start = loss**2 * gain / (1 - loss**2)
    begin = slope - half
    rate = lambda a: np.sqrt(start + 2 * 9.81 * (np.cos(begin) - np.cos(a)))
    return quad(lambda a: 1 / rate(a), begin, slope + half, epsabs=1e-13)[0]


@pytest.mark.thorough
def test_rimless_wheel():
    # It walks: the way is taken away. The multiplier of the speed is cos^2(2 alpha), of
    # the place zero. By a section, from another place in parts, and by the period.
    half, slope = np.pi / 8, 0.1
    loss = np.cos(2 * half)
    gain = 4 * 9.81 * np.sin(slope) * np.sin(half)
    rate = loss * np.sqrt(gain / (1 - loss**2))
    wheel = _Wheel(jnp.asarray(slope), jnp.asarray(half))
    home = lambda x: x.at[2].set(0.0)
    x0 = jnp.array([slope - half, 1.05 * rate, 0.0])
    options: Any = dict(mode0=0, wrap=home, **_FEW)

    def step_on(slope):
        wheel = _Wheel(slope, jnp.asarray(half))
        return periodic_orbit(wheel, Section(0, max_time=3.0), x0, **options)

    def period_on(slope):
        orbit = step_on(slope)
        return orbit.period, orbit

    # The derivative of the period in reverse mode: as the step's energy is conserved,
    # that of an integral over the angle.
    (_, step), by_slope = jax.jit(jax.value_and_grad(period_on, has_aux=True))(slope)
    exact = (_step_time(slope + 1e-5, half) - _step_time(slope - 1e-5, half)) / 2e-5
    np.testing.assert_allclose(by_slope, exact, rtol=1e-6)
    np.testing.assert_allclose(step.x[1], rate, rtol=1e-7)
    parts = periodic_orbit(
        wheel, Section(0, 2, max_time=6.0), x0, num_segments=3, **options
    )
    np.testing.assert_allclose(parts.x, step.x, atol=1e-7)
    np.testing.assert_allclose(parts.period, 2 * step.period, rtol=1e-7)
    middle = hj.simulate(wheel, 0.0, step.period / 2, step.x, 0, **_FEW).x1
    free = periodic_orbit(
        wheel,
        Period(0.95 * step.period, autonomous=True),
        middle + jnp.array([0.0, 0.01, 0.0]),
        solver=optx.LevenbergMarquardt(rtol=1e-9, atol=1e-9),
        **options,
    )
    np.testing.assert_allclose(free.period, step.period, rtol=1e-7)
    for orbit, power in ((step, 2), (parts, 4), (free, 2)):
        exact = [1, loss**power, 0]
        np.testing.assert_allclose(orbit.multipliers, exact, atol=1e-6)
        np.testing.assert_array_equal(orbit.trivial, [True, False, False])


#
# What goes wrong
#


def test_errors():
    ball = models.BouncingBall()
    x0 = jnp.array([0.0, 1.0])
    for until, message in (
        (1.0, "`until` must be a `hj.analysis.Section` or a `hj.analysis.Period`"),
        (Section(3, max_time=1.0), "names guard 3"),
    ):
        with pytest.raises(ValueError, match=message):
            periodic_orbit(ball, until, x0, 0)  # pyright: ignore
    with pytest.raises(ValueError, match="`max_time` must be positive"):
        Section(0, max_time=0.0)
    with pytest.raises(ValueError, match="`value` must be positive"):
        Period(-1.0)
    with pytest.raises(ValueError, match="`num_segments` must be a positive integer"):
        periodic_orbit(ball, Period(1.0), x0, 0, num_segments=0)
    with pytest.raises(hj.SimulationError, match="section was not crossed.*max_time"):
        return_map(ball, Section(0, max_time=0.1), x0, 0, **_FEW)
