"""Clocks: their times, their order, and what they do."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import both_jacobians, error, value_and_jacobian


_tight = dfx.PIDController(rtol=1e-11, atol=1e-11)
_MANY = 64


def _simulate(system, t1, x0, mode0=None, args=None, t0=0.0, **kwargs):
    kwargs = {"stepsize_controller": _tight, "max_events": _MANY, **kwargs}
    return hj.simulate(system, t0, t1, x0, mode0, args, **kwargs)


def _decay(t, x, args):
    return -x


_PLAIN = hj.HybridAutomaton({"on": _decay}, [])


def _decaying(clocks):
    return hj.with_clocks(_PLAIN, clocks)


def _add(amount):
    return lambda t, x, mode, args: (x + amount, mode)


def test_ticks():
    # x' = -x, and something is added at each tick: sums. The second clock starts later
    # and is slower, the third has a table.
    table = jnp.array([-0.3, 0.5, 0.55, 1.31])

    def outcome(z):
        period, phase, amount, early = z
        preset = hj.PresetTimes(table.at[1].set(early))
        system = _decaying(
            {
                "fast": (hj.Clock(period, 0.02), _add(amount)),
                "slow": (hj.Clock(3.1 * period, phase), _add(2.0)),
                "preset": (preset, _add(0.7)),
            }
        )
        sol = _simulate(system, 2.0, jnp.array([1.0]), "on")
        return sol.x1, sol

    def exact(z):
        period, phase, amount, early = z
        x = jnp.exp(-2.0)
        fast = 0.02 + jnp.arange(_MANY) * period
        slow = phase + jnp.arange(_MANY) * 3.1 * period
        preset = jnp.stack([early, table[2], table[3]])
        for times, amount_ in ((fast, amount), (slow, 2.0), (preset, 0.7)):
            x = x + jnp.sum(jnp.where(times <= 2.0, amount_ * jnp.exp(times - 2.0), 0))
        return x[None]

    jacobians, expected = both_jacobians(outcome), value_and_jacobian(exact)
    for z in [(0.1, 0.33, 0.5, 0.5), (0.37, 0.0, -1.0, 0.1), (0.063, 1.2, 0.3, 0.4)]:
        z = jnp.array(z)
        value, forward, reverse, sol = jacobians(z)
        value_, jacobian = expected(z)
        assert error(value, value_) < 1e-9
        assert error(forward, jacobian) < 1e-8
        assert error(reverse, jacobian) < 1e-8
        # Each clock has counted, and times are exact to rounding.
        count = int(sol.events.count)
        t, event = sol.events.t[:count], sol.events.event[:count]
        for j, (period, phase) in enumerate([(z[0], 0.02), (3.1 * z[0], z[1])]):
            ticks = phase + np.arange(np.sum(event == j)) * period
            np.testing.assert_allclose(t[event == j], ticks, rtol=4e-16, atol=1e-17)
            assert ticks[-1] + period > 2.0
        np.testing.assert_array_equal(
            sol.mode1.ticks, [np.sum(event == 0), np.sum(event == 1), 4]
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_many_ticks(dtype):
    # Rounding does not accumulate; and steps end at ticks: one each, and none more.
    n = 10_000
    controller = dfx.PIDController(rtol=1e-5, atol=1e-5)

    @jax.jit
    def run(period, phase):
        decay = hj.HybridAutomaton({"on": lambda t, x, args: -0.1 / period * x}, [])
        system = hj.with_clocks(decay, {"clock": (hj.Clock(period, phase), _add(0.1))})
        x0 = jnp.ones(1, dtype)
        sol = _simulate(
            system,
            (n - 0.5) * period,
            x0,
            "on",
            stepsize_controller=controller,
            max_events=n,
            max_steps=n + 16,
            throw=False,
        )
        return sol.x1, sol.events.t, sol.events.count, sol.stats["num_steps"]

    for period, phase in [(0.1, 0.0), (1e-3, 3e-4), (7.0, 0.3)]:
        period, phase = jnp.asarray(period, dtype), jnp.asarray(phase, dtype)
        x1, t, count, num_steps = run(period, phase)
        assert count == n
        assert num_steps <= n + 12
        exact = np.float64(phase) + np.arange(n) * np.float64(period)
        assert t.dtype == dtype
        # Of the product, of the sum, and of the time within the loop.
        bound = 3 * np.finfo(dtype).eps / 2 * exact
        assert np.all(np.abs(t - exact) <= bound)
        # After so long, x is periodic.
        last = 0.1 / (1 - np.exp(-0.1)) * np.exp(-0.1 * (0.5 - phase / period))
        np.testing.assert_allclose(x1, [last], rtol=1e-3)


def test_clocks_that_coincide():
    # One doubles x, the other adds three: in the order in which they are listed,
    # although products of periods are rounded. The derivative with respect to x exists,
    # that with respect to one of the periods does not.
    double = lambda t, x, mode, args: (2 * x, mode)

    def system(periods, swapped):
        first = (hj.Clock(periods[0]), double)
        second = (hj.Clock(periods[1]), _add(3.0))
        clocks = {"first": first, "second": second}
        if swapped:
            clocks = {"second": second, "first": first}
        return _decaying(clocks)

    def final(x0, periods, swapped):
        clocked = system(periods, swapped)
        return _simulate(clocked, 2.0, x0[None], "on", throw=False).x1[0]

    def exact(x0, n, m, swapped):
        x, t = x0, 0.0
        ticks = sorted([(k * n, 0) for k in range(20 // n + 1)])
        ticks += [(k * m, 1) for k in range(20 // m + 1)]
        for k, which in sorted(ticks, key=lambda a: (a[0], a[1] ^ swapped)):
            x, t = x * np.exp(-(k / 10 - t)), k / 10
            x = x + 3 if which else 2 * x
        return x * np.exp(t - 2.0)

    listed = lambda x0, periods: final(x0, periods, False)
    push = lambda x0, periods: jax.jvp(lambda x: final(x, periods, True), (x0,), (1.0,))
    runs = [(False, jax.jit(jax.value_and_grad(listed))), (True, jax.jit(push))]
    by_periods = jax.jit(jax.grad(listed, 1))
    # Products with 0.1 and 0.3 are rounded differently.
    for n, m in [(1, 3), (3, 1), (6, 7), (2, 2)]:
        periods = jnp.array([0.1 * n, 0.1 * m])
        for swapped, run in runs:
            value, derivative = run(jnp.asarray(0.7), periods)
            expected = exact(0.7, n, m, swapped)
            slope = exact(1.0, n, m, swapped) - exact(0.0, n, m, swapped)
            np.testing.assert_allclose(value, expected, rtol=1e-9)
            np.testing.assert_allclose(derivative, slope, rtol=1e-9)
        # Of 0.6 and 0.7, only those at zero coincide, which no period moves.
        derivative = by_periods(jnp.asarray(0.7), periods)
        assert np.all(np.isnan(derivative) == ((n, m) != (6, 7)))


def test_a_hybrid_system():
    # A ball that is kicked by a clock, and bounces in between. In another ball's own
    # clock: the outer one, and the numbers of its events, come first.
    kick = lambda t, x, mode, args: (x + jnp.stack([0.0, args]), mode)
    ball = models.BouncingBall(restitution=0.8)
    inner = hj.with_clocks(ball, {"inner": (hj.Clock(0.25), kick)})
    system = hj.with_clocks(inner, {"outer": (hj.Clock(0.75, 0.75), kick)})
    cost = hj.with_cost(system, lambda t, x, dx, mode, args: x[1] ** 2)
    x0 = jnp.array([1.0, 0.0])

    def outcome(z):
        sol = _simulate(cost, 1.6, (z[:2], 0.0), 0, z[2])
        return jnp.append(*sol.x1), sol

    value, forward, reverse, sol = both_jacobians(outcome)(jnp.append(x0, 0.6))
    # The same, from kick to kick.
    plain = hj.with_cost(ball, lambda t, x, dx, mode, args: x[1] ** 2)

    def exact(z):
        def advance(x, segment):
            duration, kicks = segment
            x = (x[0] + jnp.stack([0.0, kicks * z[2]]), x[1])
            return _simulate(plain, duration, x, 0).x1, None

        kicks = jnp.array([1.0, 1, 1, 2, 1, 1, 2])
        durations = jnp.array([0.25] * 6 + [0.1])
        return jnp.append(*jax.lax.scan(advance, (z[:2], 0.0), (durations, kicks))[0])

    z = jnp.append(x0, 0.6)
    expected, jacobian = jax.jit(lambda z: (exact(z), jax.jacfwd(exact)(z)))(z)
    assert error(value, expected) < 1e-9
    assert error(forward, jacobian) < 1e-9
    assert error(reverse, jacobian) < 1e-9
    events = sol.events.event[: sol.events.count]
    ticks = events[np.asarray(events) < 2]
    np.testing.assert_array_equal(ticks, [1, 1, 1, 0, 1, 1, 1, 0, 1])
    assert np.sum(events == 2) >= 2


def test_going_on():
    # A tick at the end of one simulation does not happen again in the next.
    system = _decaying({"clock": (hj.Clock(0.3), _add(1.0))})
    run = jax.jit(lambda t0, t1, x, mode: _simulate(system, t1, x, mode, t0=t0))
    whole = run(0.0, 1.2, jnp.ones(1), system.start(jnp.asarray(0.0), 0, "on", None)[1])
    first = run(0.0, 0.6, jnp.ones(1), system.start(jnp.asarray(0.0), 0, "on", None)[1])
    again = run(0.6, 1.2, first.x1, first.mode1)
    assert first.events.count == 3 and again.events.count == 2
    np.testing.assert_allclose(again.x1, whole.x1, rtol=1e-10)
    # Begun there anew, with the mode of the system within, it does.
    anew = system.start(jnp.asarray(0.6), 0, "on", None)[1]
    assert run(0.6, 1.2, first.x1, anew).events.count == 3
    # Ticks before the start are skipped, whatever rounding says.
    for k in range(1, 60):
        t = jnp.asarray(k * 0.3)
        assert hj.Clock(0.3).first(t) == k
        assert hj.Clock(0.3).first(t + 1e-9) == k + 1


def test_transitions_by_name():
    modes = {"up": lambda t, x, args: 0 * x + 1, "down": lambda t, x, args: 0 * x - 2}
    turn = hj.Transition("down", "up", lambda t, x, args: x[0])
    system = hj.with_clocks(
        hj.HybridAutomaton(modes, [turn]),
        {"clock": (hj.Clock(1.0, 1.0), lambda t, x, mode, args: (x, "down"))},
    )
    sol = _simulate(system, 1.75, jnp.zeros(1), "up")
    np.testing.assert_allclose(sol.x1, [0.25], atol=1e-9)
    np.testing.assert_array_equal(sol.events.event[:2], [0, 1])
    with pytest.raises(hj.SimulationError, match=r"mode='down', ticks=\[1\]"):
        _simulate(system, 1.75, jnp.zeros(1), "up", max_events=1)
    with pytest.raises(hj.SimulationError, match="clock clock"):
        _simulate(system, 5.75, jnp.zeros(1), "up", max_events=2)


def test_errors():
    tick = _add(1.0)
    clock = hj.Clock(0.5)
    for make, match in [
        (lambda: hj.Clock(0.0), "`period` of `hj.Clock` must be positive and"),
        (lambda: hj.Clock(np.inf), "`period` of `hj.Clock` must be positive and"),
        (lambda: hj.Clock(1.0, [0.1, 0.2]), "`phase` of `hj.Clock` must be a number"),
        (lambda: hj.PresetTimes([2.0, 1.0]), "in ascending order.*Sort it"),
        (lambda: hj.PresetTimes([]), r"one time or more, but its shape is \(0,\)"),
        (
            lambda: hj.with_clocks(_decay, {"a": (clock, tick)}),  # pyright: ignore
            "`system` must be a hybrid system.*`hj.HybridAutomaton",
        ),
        (lambda: _decaying({}), "`clocks` must be a mapping"),
        (lambda: _decaying({"a": clock}), r"a pair `\(clock, tick\)` for 'a'"),
        (lambda: _decaying({"a": (0.5, tick)}), r"a pair `\(clock, tick\)` for 'a'"),
    ]:
        with pytest.raises(ValueError, match=match):
            make()
    x0, wrong = jnp.zeros(1), "The tick of the clock 'a' must return a pair"
    for tick, match in [
        (lambda t, x, mode, args: x, wrong),
        (lambda t, x, mode, args: (x[:0], mode), wrong),
        (lambda t, x, mode, args: (x, 0.5), wrong),
        (lambda t, x, mode, args: (x, "off"), r"one of \['on'\], but it is 'off'"),
    ]:
        with pytest.raises(ValueError, match=match):
            _simulate(_decaying({"a": (clock, tick)}), 1.0, x0, "on")
    with pytest.raises(ValueError, match="`mode0` must be given"):
        _simulate(_decaying({"a": (clock, _add(1.0))}), 1.0, x0)
