"""Events on their guard, inside of the guard set, and together in one instant."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import batch_jacobians


class _Neurons(hj.AbstractHybridSystem):
    """Leaky neurons, x' = i - x, which fire at one, go back by one, and push others."""

    current: Any
    weights: Any  # shape (n, n): from the second to the first

    def flow(self, t, x, mode, args):
        return self.current - x

    def guards(self, t, x, mode, args):
        return 1 - x

    def jump(self, t, x, mode, event, args):
        own = jnp.arange(x.shape[0]) == event
        return x - own + self.weights @ own.astype(x.dtype), mode


def test_cascades():
    # One spike pushes others over the threshold, by different amounts: those fire in
    # the order of their lateness, whatever a perturbation does.
    rng = np.random.default_rng(0)
    lanes, n, h = 200, 4, 1e-6
    current = rng.uniform(1.1, 2, (lanes, n))
    weights = rng.uniform(0.02, 0.3, (lanes, n, n))
    x0, dx = rng.uniform(0, 0.95, (lanes, n)), rng.normal(size=(lanes, n))

    def run(x0, current, weights):
        sol = hj.simulate(
            _Neurons(current, weights),
            0.0,
            1.0,
            x0,
            0,
            stepsize_controller=dfx.PIDController(rtol=1e-10, atol=1e-10),
            max_steps=512,
            throw=False,
        )
        t = jnp.diff(jnp.where(jnp.isfinite(sol.events.t), sol.events.t, 0))
        return sol.x1, (sol.events.event, jnp.sum(t == 0), sol.result)

    @jax.jit
    @jax.vmap
    def derivative(x0, dx, current, weights):
        return jax.jvp(lambda x0: run(x0, current, weights), (x0,), (dx,), has_aux=True)

    @jax.jit
    @jax.vmap
    def gradient(x0, current, weights):
        return jax.grad(lambda x0: jnp.sum(run(x0, current, weights)[0]))(x0)

    system = current, weights
    value, tangent, (events, inner, result) = derivative(x0, dx, *system)
    above, _, (events_above, *_) = derivative(x0 + h * dx, dx, *system)
    below, _, (events_below, *_) = derivative(x0 - h * dx, dx, *system)
    same = np.all((events_above == events) & (events_below == events), axis=1)
    fine = same & np.asarray(result == hj.RESULTS.successful)
    assert np.sum(fine) > 150 and np.sum(fine & (inner > 60)) > 20
    difference = (above - below) / (2 * h)
    np.testing.assert_allclose(tangent[fine], difference[fine], rtol=1e-4, atol=1e-4)
    rows = gradient(x0, *system)
    np.testing.assert_allclose(
        np.sum(rows * dx, axis=1)[fine], np.sum(tangent, axis=1)[fine], rtol=1e-6
    )


# What is known of an instant with 48 guards is not packed.
@pytest.mark.parametrize("n", [3, 48])
def test_a_neuron_that_fires_twice_in_one_instant(n):
    # 0 pushes 1, which pushes 0 again, and 2 by less: all of their times move alike.
    weights = np.zeros((n, n))
    weights[1, 0], weights[0, 1], weights[2, 1] = 0.97, 1.5, 0.2
    current = np.where(np.arange(n) < 3, 2.0, -1.0)
    x0 = np.where(np.arange(n) < 3, 0.9, -1.0)
    x0[:2] = 0.97, -0.0136

    def run(x0):
        sol = hj.simulate(
            _Neurons(current, jnp.asarray(weights)), 0.0, 0.04, x0, 0, max_events=4
        )
        return (sol.events.t, sol.x1), sol.events.event

    @jax.jit
    def derivatives(x0, dx, ct):
        (t, _), push, event = jax.linearize(run, x0, has_aux=True)
        return t, event, push(dx), jax.linear_transpose(push, x0)(ct)[0]

    rng = np.random.default_rng(0)
    dx, ct = rng.normal(size=n), (rng.normal(size=4), rng.normal(size=n))
    t, event, (dt, dx1), pulled = derivatives(x0, dx, ct)
    assert event.tolist() == [0, 1, 0, 2]
    np.testing.assert_allclose(t, np.log(1.03), rtol=1e-8)
    # The first neuron reaches one: x' = 2 - x = 1 there.
    np.testing.assert_allclose(dt, -dx[0] / 1.03, rtol=1e-8)
    np.testing.assert_allclose(pulled @ dx, ct[0] @ dt + ct[1] @ dx1, rtol=1e-8)


class _Wedge(hj.AbstractHybridSystem):
    """A point that moves straight, and is reflected by two walls through the origin."""

    angle: Any  # between the walls

    def normals(self):
        zero = jnp.zeros_like(self.angle)
        low = jnp.stack([zero, zero + 1])
        return jnp.stack([low, jnp.stack([jnp.sin(self.angle), -jnp.cos(self.angle)])])

    def flow(self, t, x, mode, args):
        return jnp.concatenate([x[2:], jnp.zeros_like(x[2:])])

    def guards(self, t, x, mode, args):
        # Only where it approaches the wall.
        normals = self.normals().astype(x.dtype)
        return jnp.where(normals @ x[2:] < 0, normals @ x[:2], hj.UNWATCHED)

    def jump(self, t, x, mode, event, args):
        normal = self.normals().astype(x.dtype)[event]
        return x.at[2:].add(-2 * (normal @ x[2:]) * normal), mode


@pytest.mark.parametrize(
    "dtype", [pytest.param(jnp.float32, marks=pytest.mark.thorough), jnp.float64]
)
def test_wedges(dtype):
    # Into the corner of two walls, from angles at which the first reflection turns the
    # point away from the other wall as well as from those at which it does not. The
    # outcome depends on the order unless the angle is a part of pi.
    @jax.jit
    @jax.vmap
    def run(angle, direction, size):
        towards = -size * jnp.stack([jnp.cos(direction), jnp.sin(direction)])
        x0 = jnp.concatenate([-towards, towards]).astype(dtype)

        def final(x0):
            return hj.simulate(_Wedge(angle), 0.0, 2.0, x0, 0, throw=False).x1

        x1, push = jax.linearize(final, x0)
        return x1, push(jnp.ones_like(x0)), jax.linear_transpose(push, x0)(x0)[0]

    parts = np.linspace(0.1, 0.9, 9)
    for size in (1.0, 1e-7, 1e7):
        for angle, exists in ((1.0, False), (1.2, False), (np.pi / 2, True)):
            lanes = [np.full(9, angle), angle * parts, np.full(9, size)]
            x1, forward, reverse = run(*(np.asarray(a, dtype) for a in lanes))
            assert np.all(np.isfinite(x1))
            for derivative in (forward, reverse):
                assert np.all(np.isfinite(derivative).all(axis=1) == exists)


class _Row(hj.AbstractHybridSystem):
    """Balls of unit mass in a row, the guards between neighbours; the last is heavy."""

    mass: Any

    def flow(self, t, x, mode, args):
        n = x.shape[0] // 2
        return jnp.concatenate([x[n:], jnp.zeros((n,))])

    def guards(self, t, x, mode, args):
        n = x.shape[0] // 2
        approach = x[n + 1 :] < x[n:-1]
        return jnp.where(approach, x[1:n] - x[: n - 1], hj.UNWATCHED)

    def jump(self, t, x, mode, event, args):
        n = x.shape[0] // 2
        i, masses = jnp.arange(n), jnp.ones(n).at[-1].set(self.mass)
        v = x[n:]
        a, b = v[event], v[event + 1]
        m_a, m_b = masses[event], masses[event + 1]
        impulse = 2 * m_a * m_b / (m_a + m_b) * (b - a)
        dv = jnp.where(i == event, impulse / m_a, 0)
        dv = dv - jnp.where(i == event + 1, impulse / m_b, 0)
        return jnp.concatenate([x[:n], v + dv]), mode


def test_a_guard_that_fires_twice_in_one_instant():
    # The first of three balls in contact hits the others, and the heavy one at the end
    # throws the second one back against it: the guards fire in the order 0, 1, 0. Moved
    # so that gaps open, each has a time of its own.
    def run(x0):
        sol = hj.simulate(_Row(jnp.asarray(3.0)), 0.0, 2.0, x0, 0)
        return sol.events.t[:3], sol.events.event[:3]

    x0 = jnp.array([-1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    direction, h = jnp.array([0.0, 0.1, 0.3, 0.2, 0.0, 0.0]), 1e-4
    times, tangent, events = jax.jit(
        lambda x, dx: jax.jvp(run, (x,), (dx,), has_aux=True)
    )(x0, direction)
    np.testing.assert_array_equal(events, [0, 1, 0])
    assert np.ptp(times) < 1e-12
    ahead = [run(x0 + k * h * direction)[0] for k in (1, 2)]
    difference = (4 * ahead[0] - ahead[1] - 3 * times) / (2 * h)
    np.testing.assert_allclose(tangent, difference, rtol=1e-6)


@pytest.mark.thorough
def test_near_ties():
    # A dumbbell, whose ends do not feel each other, lands so nearly flat that the step
    # which ends on one impact has passed the other.
    bar = models.RigidBar(1.03, 0.634, 1.03 * 0.634**2, 11.77, 0.933)
    offsets = np.linspace(-1e-8, 1e-8, 41)
    rates = np.array([2.451332547218578, 1.3])

    def final(z, offset, rate):
        # Flat at the impact, but for the offset.
        height, speed = 1.5711451272080594, -1.2291611743983748
        fall = (speed + np.sqrt(speed**2 + 2 * 11.77 * height)) / 11.77
        q = jnp.stack([height + z[0], offset - rate * fall + z[1]])
        x0 = jnp.concatenate([q, jnp.stack([speed + z[2], rate + z[3]])])
        return hj.simulate(bar, 0.0, 0.582, x0, jnp.zeros(2, jnp.int32)).x1

    direction, h = jnp.array([0.86, -1.04, -0.12, 2.04]), 1e-5

    def derivative(offset, rate):
        fn = lambda z: final(z, offset, rate)
        return jax.jvp(fn, (0 * direction,), (direction,))

    @jax.jit
    def run(offsets, rates):
        over = lambda fn: jax.vmap(jax.vmap(fn, (0, None)), (None, 0))(offsets, rates)
        moved = lambda k: lambda o, r: final(k * h * direction, o, r)
        return *over(derivative), *(over(moved(k)) for k in (1, -1))

    x, tangent, above, below = run(offsets, rates)
    np.testing.assert_allclose(above + below, 2 * x, atol=1e-7)  # no kink
    np.testing.assert_allclose(tangent, (above - below) / (2 * h), atol=1e-5)


class _Clocks(hj.AbstractHybridSystem):
    """x' = -x / 2, and two clocks: one doubles x, the other adds three. Their order
    matters."""

    def flow(self, t, x, mode, args):
        return -x / 2

    def guards(self, t, x, mode, periods):
        # The third is never met, and moves with the state.
        return jnp.stack([*((mode + 1) * periods - t), x[0] + 1e3])

    def jump(self, t, x, mode, event, args):
        return jnp.where(event == 0, 2 * x, x + 3), mode.at[event].add(1)


def test_brought_nearer_by_an_event():
    # What comes up to an instant within the corner tolerance belongs to it; what an
    # event brings that near, by the faster flow after it, is an event of its own.
    end, tol = 1.0, 1.6e-10
    fields = jnp.array([[[1.0, 1.0], [0.5, 0.4]], [[2.0, 3.0], [0.7, 1.1]]])

    def ours(x0, late):
        system = hj.EventSelectedSystem(
            lambda t, x, b, args: fields[(b[0] + 1) // 2, (b[1] + 1) // 2],
            lambda t, x, args: x - jnp.array([0.5, 0.5 + late]),
            np.zeros((2, 2), bool),
        )
        return hj.simulate(system, 0.0, end, x0).x1

    def exact(x0, late, first):
        """With the surfaces in the order in which they are crossed."""
        at, order = jnp.array([0.5, 0.5 + late]), (first, 1 - first)
        t, x, b = 0.0, x0, [0, 0]
        for j in order:
            flow = fields[b[0], b[1]]
            dt = (at[j] - x[j]) / flow[j]
            t, x, b = (
                t + dt,
                x + dt * flow,
                [1 if k == j else c for k, c in enumerate(b)],
            )
        return x + (end - t) * fields[1, 1]

    late = tol * jnp.concatenate([jnp.linspace(0, 0.95, 16), jnp.linspace(1.05, 4, 32)])

    def push(fn, dx, late, *order):
        return jax.jvp(lambda x0: fn(x0, late, *order), (jnp.zeros(2),), (dx,))[1]

    run = jax.jit(jax.vmap(lambda dx, late: push(ours, dx, late), (None, 0)))
    for dx in ([0.3, 1.0], [1.0, 0.3]):
        dx = jnp.array(dx)
        # In one instant the tangent chooses which is the first.
        at_once, apart = (push(exact, dx, 0.0, j) for j in (int(dx[1] > dx[0]), 0))
        want = jnp.where((late <= tol)[:, None], at_once, apart)
        np.testing.assert_allclose(run(dx, late), want, atol=1e-7)


@pytest.mark.thorough
def test_clocks_that_coincide():
    # Up to rounding, which then decides. Their order is the one in which they were
    # simulated; no state changes it, and so there is a derivative. A period does: there
    # is none with respect to that.
    t1, x0 = 0.95, jnp.array([0.7, -0.4])

    def run(x0, periods):
        mode0 = jnp.zeros(2, jnp.int32)
        sol = hj.simulate(
            _Clocks(), 0.0, t1, x0, mode0, periods, max_events=16, throw=False
        )
        return sol.x1, (sol.x1, sol.events)

    @jax.jit
    def jacobians(periods):
        forward, reverse = jax.jacfwd(run, 0, True), jax.jacrev(run, 0, True)
        by_period = jax.jacfwd(run, 1, True)(x0, periods)[0]
        return forward(x0, periods), reverse(x0, periods)[0], by_period

    for periods in [(0.5, 0.5), (0.3, 0.1), (0.1, 0.2)]:
        (forward, (x1, events)), reverse, by_period = jacobians(jnp.array(periods))
        count = int(jnp.sum(events.event >= 0))
        slope, value, last = 1.0, np.asarray(x0), 0.0
        for t, event in zip(events.t[:count], events.event[:count], strict=True):
            decay = np.exp(-(t - last) / 2)
            slope, value, last = slope * decay, value * decay, t
            slope, value = (2 * slope, 2 * value) if event == 0 else (slope, value + 3)
        decay = np.exp(-(t1 - last) / 2)
        assert count == sum(int(t1 / period + 1e-9) for period in periods)
        np.testing.assert_allclose(x1, value * decay, rtol=1e-6)
        np.testing.assert_allclose(forward, slope * decay * np.eye(2), atol=1e-6)
        np.testing.assert_allclose(reverse, slope * decay * np.eye(2), atol=1e-6)
        assert np.isnan(by_period).all()
    clocks = jnp.array([0.5, 0.5])
    corner = hj.b_derivative(_Clocks(), 0.5, x0, jnp.zeros(2, jnp.int32), clocks)
    np.testing.assert_allclose(corner(x0), 2 * x0)
    np.testing.assert_allclose(corner.x_after, 2 * x0 + 3)
    assert corner.is_linear() and corner.order(x0).tolist() == [0, 1]


class _Urgent(hj.AbstractHybridSystem):
    """x' = 1 up to one; then at once from mode 1 to mode 2, x tripled on the way."""

    def flow(self, t, x, mode, args):
        return jnp.where(mode == 2, -args * x, jnp.ones_like(x))

    def guards(self, t, x, mode, args):
        watched = jnp.stack([1 - x[0], -jnp.ones_like(x[0])])
        return jnp.where(jnp.arange(2) == mode, watched, hj.UNWATCHED)

    def jump(self, t, x, mode, event, args):
        return jnp.where(event == 1, 3 * x, x / 2), mode + 1


def test_urgent_transitions():
    # A guard that is constant and negative fires at the very instant in which its mode
    # is entered.
    def run(x0, rate):
        sol = hj.simulate(_Urgent(), 0.0, 2.0, x0[None], 0, rate, max_events=4)
        return jnp.append(sol.x1, sol.events.t[:2]), None

    def exact(z):
        x0, rate = z
        return jnp.stack([1.5 * jnp.exp(-rate * (1 + x0)), 1 - x0, 1 - x0])

    zs = jnp.array([[x0, 0.7] for x0 in (0.1, 0.35, 0.8)])
    value, forward, reverse, _ = batch_jacobians(lambda z: run(*z))(zs)
    each = jax.vmap(lambda z: (exact(z), jax.jacfwd(exact)(z)))
    expected, jacobian = jax.jit(each)(zs)
    np.testing.assert_allclose(value, expected, atol=1e-6)
    np.testing.assert_allclose(forward, jacobian, atol=1e-6)
    np.testing.assert_allclose(reverse, jacobian, atol=1e-6)
