"""Controllers in discrete time, beside matrix exponentials."""

from typing import Any

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


def _simulate(system, t1, x0, mode0=None, args=None, **kwargs):
    kwargs = {"stepsize_controller": _tight, **kwargs}
    return hj.simulate(system, 0.0, t1, x0, mode0, args, **kwargs)


def _affine(A, b, x, s):
    """The solution of x' = A x + b after the time `s`, exactly."""
    n = A.shape[0]
    block = jnp.zeros((n + 1, n + 1)).at[:n, :n].set(A).at[:n, n].set(b)
    return (jax.scipy.linalg.expm(block * s) @ jnp.append(x, 1.0))[:n]


#
# Zero-order hold
#


def _oscillator(z):
    return jnp.stack([jnp.stack([0.0, 1.0]), jnp.stack([-z[0], -z[1]])])


def _sampled(z, **kwargs):
    """An oscillator, and a controller with an integral, an error that is limited on the
    way, and a count."""
    plant = lambda t, x, u, args: _oscillator(args) @ x + jnp.stack([0.0 * u, u])

    def controller(t, x, state, args):
        total, count = state["total"] + x[0], state["count"] + 1
        u = -args[2] * x[0] - args[3] * x[1] - args[4] * total
        # The count has no derivative, and the time has one.
        return {"total": total, "count": count}, u * (1 + 0.1 * t) + 0.01 * count

    z0 = {"total": z[9], "count": 3}
    return hj.SampledDataSystem(plant, controller, hj.Clock(z[5], z[6]), z0, **kwargs)


@value_and_jacobian
def _exactly_sampled(z):
    """At the time 2."""
    A = _oscillator(z)

    def tick(carry, k):
        x, total, u = carry
        t = z[6] + k * z[5]
        total_ = total + x[0]
        u_ = -z[2] * x[0] - z[3] * x[1] - z[4] * total_
        u_ = u_ * (1 + 0.1 * t) + 0.01 * (4 + k)
        total, u = (jnp.where(t <= 2.0, *v) for v in ((total_, total), (u_, u)))
        x = _affine(A, jnp.stack([0.0, u]), x, jnp.clip(2.0 - t, 0, z[5]))
        return (x, total, u), None

    x = _affine(A, jnp.zeros(2), z[7:9], z[6])
    (x, total, u), _ = jax.lax.scan(tick, (x, z[9], 0.0), jnp.arange(_MANY))
    return jnp.append(x, jnp.stack([total, u]))


_SAMPLED = [
    [2.0, 0.3, 1.0, 0.8, 0.2, 0.21, 0.05, 1.0, -0.3, 0.1],
    [0.5, 0.1, 2.0, 1.5, 0.1, 0.64, 0.3, 0.4, 1.0, 0.0],
    [9.0, 0.0, -1.0, 0.3, 0.0, 0.0731, 0.011, -1.0, 0.0, 0.5],
]


def test_zero_order_hold():
    def outcome(z):
        sol = _simulate(_sampled(z), 2.0, z[7:9], args=z)
        return jnp.append(sol.x1.x, jnp.stack([sol.x1.z["total"], sol.x1.u])), sol

    jacobians = both_jacobians(outcome)
    for z in map(jnp.array, _SAMPLED):
        value, forward, reverse, sol = jacobians(z)
        n = int(sol.events.count)
        assert n == int((2.0 - z[6]) // z[5]) + 1
        expected, jacobian = _exactly_sampled(z)
        assert error(value, expected) < 1e-9
        assert error(forward, jacobian) < 1e-8
        assert error(reverse, jacobian) < 1e-8
        assert sol.mode1.z["count"] == 3 + n and sol.mode1.tick == n
        assert sol.x1.z["count"] is None


def test_float32_and_default_tolerances():
    # A batch, one lane of which fails.
    controller = dfx.PIDController(rtol=1e-5, atol=1e-5)

    def outcome(z):
        sol = _simulate(
            _sampled(z, u0=jnp.asarray(0.0)),
            2.0,
            z[7:9],
            args=z,
            stepsize_controller=controller,
            max_events=40,
            throw=False,
        )
        return jnp.append(sol.x1.x, sol.x1.u), sol.events.count

    def both(z):
        value, pull, count = jax.vjp(outcome, z, has_aux=True)
        return value, jax.vmap(pull)(jnp.eye(3, dtype=z.dtype))[0], count

    z = np.array([*_SAMPLED, _SAMPLED[0]], np.float32)
    z[3, 5] = 1e-2
    value, jacobian, count = jax.jit(jax.vmap(both))(jnp.asarray(z))
    assert value.dtype == jacobian.dtype == jnp.float32
    for k in range(3):
        value_, jacobian_ = _exactly_sampled(jnp.asarray(z[k], jnp.float64))
        assert error(value[k], value_[jnp.array([0, 1, 3])]) < 1e-3
        assert error(jacobian[k], jacobian_[jnp.array([0, 1, 3])]) < 1e-3
    assert count[3] == 40 and np.all(np.isnan(jacobian[3]))


def _cart(t, x, u, args):
    return jnp.stack([x[1], u])


@pytest.mark.thorough
def test_cascade():
    # A fast loop for the speed, within a slow one for the position. Where both tick,
    # the slow one is the first: the fast one hears of it at once.
    def outcome(z):
        follow = lambda t, x, state, args: (None, z[1] * (args[0] - x[1]))
        inner = hj.SampledDataSystem(_cart, follow, hj.Clock(0.1))
        position = lambda t, x, state, args: (None, -z[0] * x.x[0])
        system = hj.SampledDataSystem(inner, position, hj.Clock(0.3), u0=0.0)
        sol = _simulate(system, 1.55, z[2:])
        return jnp.append(sol.x1.x.x, sol.x1.u), sol

    def exact(z):
        x, reference = z[2:], 0.0
        for k in range(16):
            reference = -z[0] * x[0] if k % 3 == 0 else reference
            u, s = z[1] * (reference - x[1]), 0.1 if k < 15 else 0.05
            x = jnp.stack([x[0] + x[1] * s + u * s**2 / 2, x[1] + u * s])
        return jnp.append(x, reference)

    z = jnp.array([0.8, 3.0, 1.0, 0.2])
    value, forward, reverse, sol = both_jacobians(outcome)(z)
    expected, jacobian = value_and_jacobian(exact)(z)
    assert error(value, expected) < 1e-9
    assert error(forward, jacobian) < 1e-8
    assert error(reverse, jacobian) < 1e-8
    events = np.asarray(sol.events.event[: sol.events.count])
    np.testing.assert_array_equal(events, ([0, 1, 1, 1] * 6)[: 16 + 6])


@pytest.mark.thorough
def test_hybrid_plant():
    # A thrust holds a ball up after its first bounce; times are of the plant's events.
    class Ball(hj.AbstractHybridSystem):
        ball: models.BouncingBall

        def flow(self, t, x, mode, args):
            thrust, scale = args
            return self.ball.flow(t, x, mode, None) + jnp.stack([0.0, scale * thrust])

        def guards(self, t, x, mode, args):
            return self.ball.guards(t, x, mode, None)

        def jump(self, t, x, mode, event, args):
            x, _ = self.ball.jump(t, x, mode, event, None)
            return x, mode + 1

    controller = lambda t, x, z, args: (z, 4.0 * z)
    system = hj.SampledDataSystem(
        Ball(models.BouncingBall(restitution=0.5)), controller, hj.Clock(0.4), z0=1.0
    )
    sol = _simulate(system, 1.0, jnp.array([1.0, 0.0]), 0, 0.5)
    fall = np.sqrt(2 / 7.81)
    assert sol.mode1.mode == 1 and sol.mode1.tick == 3
    np.testing.assert_array_equal(sol.events.event[:4], [0, 0, 1, 0])
    np.testing.assert_allclose(sol.events.t[2], fall, rtol=1e-9)
    rest = 1.0 - fall
    speed = 0.5 * 7.81 * fall
    expected = [speed * rest - 7.81 * rest**2 / 2, speed - 7.81 * rest]
    np.testing.assert_allclose(sol.x1.x, expected, rtol=1e-8)
    # Going on: neither the tick at the end nor what was sampled is lost.
    half = _simulate(system, 0.8, jnp.array([1.0, 0.0]), 0, 0.5)
    rest = hj.simulate(
        system, 0.8, 1.0, half.x1, half.mode1, 0.5, stepsize_controller=_tight
    )
    assert rest.events.count == 0
    np.testing.assert_allclose(rest.x1.x, expected, rtol=1e-8)


#
# Pulse-width modulation
#


def _converter(z, boosts):
    """Whose duty cycle follows from the voltage that was sampled."""
    controller = lambda t, x, state, args: (state, z[4] - z[5] * x[1])
    make = models.boost_converter if boosts else models.buck_converter
    return make(controller, z[3], z[0], z[1], z[2], z[6], z[7])


def _exact_converter(z, boosts):
    """At the time 3."""
    inductance, capacitance, load, voltage = z[:4]
    leak = -1 / (capacitance * load)
    closed = [[0.0, -1 / inductance], [1 / capacitance, leak]]
    open_ = [[0.0, 0.0], [0.0, leak]]
    source = jnp.stack([voltage / inductance, 0.0])
    matrix = lambda rows: jnp.stack([jnp.stack(row) for row in rows])
    # While the switch is on, and off.
    on = (matrix(open_ if boosts else closed), source)
    off = (matrix(closed), source if boosts else 0 * source)

    def tick(x, k):
        left = 3.0 - (z[7] + k * z[6])
        duty = jnp.clip(z[4] - z[5] * x[1], 0, 1)
        duration = jnp.clip(left, 0, duty * z[6])
        x = _affine(*on, x, duration)
        return _affine(*off, x, jnp.clip(left, 0, z[6]) - duration), None

    x = _affine(*off, z[8:10], z[7])
    return jax.lax.scan(tick, x, jnp.arange(_MANY))[0]


@pytest.mark.parametrize(
    "boosts", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_pulse_width(boosts):
    # In the first, there are full duty cycles, in the second empty ones.
    def outcome(z):
        sol = _simulate(_converter(z, boosts), 3.0, z[8:10], max_events=80)
        return sol.x1.x, sol

    exact = value_and_jacobian(lambda z: _exact_converter(z, boosts))
    jacobians = both_jacobians(outcome)
    counts = []
    for z in [
        [0.5, 0.4, 1.0, 2.0, 1.3, 0.7, 0.17, 0.04, 0.0, 0.0],
        [0.5, 0.4, 2.0, 2.0, 0.5, 0.3, 0.13, 0.1, 0.5, 2.8],
        [0.3, 0.2, 1.5, 3.0, 2.5, 2.2, 0.11, 0.02, 0.1, 0.2],
    ]:
        z = jnp.array(z)
        value, forward, reverse, sol = jacobians(z)
        count = int(sol.events.count)
        events = np.asarray(sol.events.event[:count])
        n = np.sum(events == 0)
        assert n == int((3.0 - z[7]) // z[6]) + 1
        expected, jacobian = exact(z)
        assert error(value, expected) < 1e-9
        assert error(forward, jacobian) < 1e-8
        assert error(reverse, jacobian) < 1e-8
        # How many pulses end, at least one, and with their beginning.
        t = np.asarray(sol.events.t[:count])
        at_once = (events[1:] == 1) & (np.diff(t) == 0)
        counts.append((n - np.sum(events == 1), np.sum(at_once)))
    assert counts[0][0] > 1 and counts[1][1] > 1


@pytest.mark.thorough
def test_no_pulse_and_no_gap():
    # Duty cycles of 0 and 1 are corners: a perturbation makes a pulse, or a gap, or
    # does nothing. Two outputs, of x' = s - x and y' = s.
    plant = lambda t, x, s, args: jnp.stack([s[0] - x[0], s[1]])
    clock = hj.Clock(0.3)

    def final(duty):
        system = hj.SampledDataSystem(
            plant, lambda t, x, z, args: (z, duty), clock, hold="pulse_width"
        )
        sol = _simulate(system, 1.5 - 1e-3, jnp.zeros(2), throw=False)
        return sol.x1.x, sol.events.count

    push = jax.jit(lambda d, v: jax.jvp(final, (d,), (v,), has_aux=True))
    pull = jax.jit(lambda d, w: jax.vjp(final, d, has_aux=True)[1](w)[0])
    begins = 0.3 * np.arange(5)

    def derivative(duty, number):
        # What pulses that end a little later add at the end.
        ends = begins + duty * 0.3
        ends = ends[ends < 1.4985]
        return 0.3 * (np.sum(np.exp(ends - 1.499)) if number == 0 else ends.size)

    for duty, count in [((0.0, 1.0), 10), ((1.0, 0.0), 10), ((0.0, 0.0), 15)]:
        for v in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)]:
            value, pushed, counted = push(jnp.array(duty), jnp.array(v))
            expected, one_sided = [], []
            for j in range(2):
                on = 1.499 if j == 1 else 1 - np.exp(-1.499)
                expected.append(duty[j] * on)
                moves = (duty[j] == 0) == (v[j] > 0)
                one_sided.append(moves * v[j] * derivative(duty[j], j))
            np.testing.assert_allclose(value, expected, atol=1e-9)
            np.testing.assert_allclose(pushed, one_sided, atol=1e-9)
            assert counted == count
        # Of the order that was recorded: there is a pulse, and there is no gap.
        for j in range(2):
            pulled = pull(jnp.array(duty), jnp.eye(2)[j])
            there = np.zeros(2)
            there[j] = derivative(duty[j], j) * (duty[j] == 0)
            np.testing.assert_allclose(pulled, there, atol=1e-9)


def test_errors():
    clock, x0 = hj.Clock(0.5), jnp.zeros(2)
    good = lambda t, x, z, args: (z, -x[0])
    make: Any = hj.SampledDataSystem
    for call, match in [
        (lambda: make(0.0, good, clock), "`plant` must be callable"),
        (lambda: make(_cart, None, clock), "`controller` must be callable"),
        (lambda: make(_cart, good, 0.5), r"make it `hj.Clock\(period\)`"),
        (lambda: make(_cart, good, clock, hold="first"), "`hold` must be one of"),
        (
            lambda: make(_cart, good, hj.PresetTimes([0.5]), hold="pulse_width"),
            "must be a `hj.Clock` for `hold=",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    integer = lambda t, x, z, args: (z, jnp.asarray(1))
    system = make(_cart, good, clock)
    nested = make(system, good, clock)
    for system_, mode0, match in [
        (make(_cart, lambda t, x, z, args: -x[0], clock), None, "must return a pair"),
        (make(_cart, lambda *_: (1, 0.0), clock, 0.0), None, "with a `z` like `z0`, f"),
        (make(_cart, good, clock, u0=x0), None, "`u0` must be like what"),
        (make(_cart, integer, clock, hold="pulse_width"), None, "duty cycles"),
        (system, 0, "`mode0` must be left out"),
        (nested, None, "`u0` must be given, where the plant is"),
    ]:
        with pytest.raises(ValueError, match=match):
            _simulate(system_, 1.0, x0, mode0)
    sol = _simulate(system, 1.0, x0)
    with pytest.raises(ValueError, match="pass both its `x1` and its `mode1`"):
        _simulate(system, 1.0, sol.x1)
    with pytest.raises(hj.SimulationError, match=r"tick=1, .*guard 0 \(clock\)"):
        _simulate(system, 1.0, x0, max_events=1)
    pulses = make(_cart, lambda *_: (None, 0.5), clock, hold="pulse_width")
    with pytest.raises(hj.SimulationError, match="at guard 1"):
        _simulate(pulses, 1.0, x0, max_events=1)
