"""The transformations of JAX, on one and the same call: all give the same derivative.

What is closed over is differentiated too; what has no derivative says so.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax._systems.flat import flatten_system

from ..helpers import (
    ball_outcome,
    batch_jacobians,
    both_jacobians,
    error,
    value_and_jacobian,
)


_CONTROLLER = dfx.PIDController(rtol=1e-10, atol=1e-10)


_BALL = jnp.asarray([1.0, 0.3, 9.81, 0.8])
_BOUNCES = 3


def _ball(z, **kwargs):
    system = models.BouncingBall(gravity=z[2], restitution=z[3])
    options = dict(stepsize_controller=_CONTROLLER, max_steps=64, max_events=4)
    return hj.simulate(system, 0.0, 2.0, z[:2], 0, **{**options, **kwargs})


def _outcome(z):
    sol = _ball(z)
    return jnp.concatenate([sol.x1, sol.events.t[:_BOUNCES]])


def _exactly(z):
    return ball_outcome(z, _BOUNCES)


def _balls(n):
    """Balls that bounce as often as the first, but earlier or later."""
    s = jnp.linspace(-1, 1, n)[:, None]
    return _BALL[None] + s * jnp.asarray([[0.02, -0.1, 0.2, 0.01]])


def test_all_transformations_of_one_call():
    z = _BALL
    value, expected = value_and_jacobian(_exactly)(z)
    assert error(_outcome(z), value) < 1e-12
    forward = jax.jit(jax.jacfwd(_outcome))(z)
    reverse = jax.jit(jax.jacrev(_outcome))(z)
    assert error(forward, expected) < 1e-10
    assert error(reverse, expected) < 1e-10
    assert error(forward, reverse) < 1e-10

    direction = jnp.asarray([0.3, -1.0, 0.2, 0.5])
    weights = jnp.asarray([1.0, -0.4, 0.7, -2.0, 0.3])
    # Outside of any `jax.jit` of the user's own.
    _, push = jax.jvp(_outcome, (z,), (direction,))
    assert error(push, expected @ direction) < 1e-10
    gradient = jax.grad(lambda z: weights @ _outcome(z))
    assert error(gradient(z), weights @ expected) < 1e-10

    # With respect to the system itself.
    def loss(system, factor):
        sol = hj.simulate(
            system,
            0.0,
            2.0,
            factor * z[:2],
            0,
            stepsize_controller=_CONTROLLER,
            max_steps=64,
            max_events=4,
        )
        return weights[:2] @ sol.x1 + weights[2:] @ sol.events.t[:_BOUNCES]

    got = eqx.filter_jit(eqx.filter_grad(loss))(models.BouncingBall(z[2], z[3]), 1.0)
    assert isinstance(got, models.BouncingBall)
    by_system = jnp.stack([got.gravity, got.restitution])
    assert error(by_system, (weights @ expected)[2:]) < 1e-10


@pytest.mark.thorough
def test_batches_of_every_transformation():
    zs = _balls(6)
    expected = jax.jit(jax.vmap(jax.jacfwd(_exactly)))(zs)
    weights = jnp.asarray([1.0, -0.4, 0.7, -2.0, 0.3])

    forward = jax.jit(jax.vmap(jax.jacfwd(_outcome)))(zs)
    reverse = jax.jit(jax.vmap(jax.jacrev(_outcome)))(zs)
    assert error(forward, expected) < 1e-10
    assert error(reverse, expected) < 1e-10
    assert error(forward, reverse) < 1e-10
    # The gradient of a mean.
    by_lane = jnp.einsum("o,nod->nd", weights, expected)
    mean = lambda zs: jnp.mean(jax.vmap(_outcome)(zs) @ weights)
    assert error(jax.jit(jax.grad(mean))(zs), by_lane / 6) < 1e-10


@pytest.mark.thorough
def test_what_a_batch_shares():
    # Parameters, starts and times that all lanes share, or only some of them.
    weights = jnp.asarray([1.0, -0.4])

    def outcome(restitution, x0, t0):
        return (
            weights
            @ hj.simulate(
                models.BouncingBall(9.81, restitution),
                t0,
                2.0,
                x0,
                0,
                stepsize_controller=_CONTROLLER,
                max_steps=64,
                max_events=8,
            ).x1
        )

    point = (jnp.asarray(0.8), jnp.asarray([1.0, 0.3]), jnp.asarray(0.0))
    steps = (
        jnp.asarray([0.0, 0.01, -0.02]),
        jnp.asarray([[0.0, 0.1], [0.02, 0.0], [0.03, 0.01]]),
        jnp.asarray([0.0, 0.03, -0.05]),
    )
    everything = jax.jit(jax.vmap(jax.grad(outcome, (0, 1, 2))))
    for batched in ((1,), (2,), (0, 2)):
        axes = tuple(0 if k in batched else None for k in range(3))
        pairs = list(zip(point, steps, strict=True))
        full = tuple(
            jnp.broadcast_to(p, d.shape) + (d if k in batched else 0 * d)
            for k, (p, d) in enumerate(pairs)
        )
        at = tuple(full[k] if k in batched else point[k] for k in range(3))
        mean = lambda *at, axes=axes: jnp.mean(jax.vmap(outcome, axes)(*at))
        lanes = everything(*full)
        got = jax.jit(jax.grad(mean, (0, 1, 2)))(*at)
        for k in range(3):
            each = lanes[k] / 3
            expected = each if k in batched else jnp.sum(each, axis=0)
            assert error(got[k], expected) < 1e-10


#
# Closures
#


def _closure_outcome(z, floor):
    """The same ball, as lambdas that close over the numbers."""
    gravity, restitution = z[2], z[3]
    system = hj.HybridAutomaton(
        {"air": lambda t, x, args: dict(q=x["v"], v=-gravity)},
        [
            hj.Transition(
                "air",
                "air",
                lambda t, x, args: x["q"] - floor,
                lambda t, x, args: dict(q=x["q"], v=-restitution * x["v"]),
            )
        ],
    )
    sol = hj.simulate(
        system,
        0.0,
        2.0,
        dict(q=z[0], v=z[1]),
        "air",
        stepsize_controller=_CONTROLLER,
        max_steps=64,
        max_events=4,
    )
    return jnp.stack([sol.x1["q"], sol.x1["v"], *sol.events.t[:_BOUNCES]])


@pytest.mark.thorough
def test_closures_of_an_automaton():
    floor = jnp.asarray(0.1)
    weights = jnp.asarray([1.0, -0.4, 0.7, -2.0, 0.3])
    loss = lambda z, floor: weights @ _closure_outcome(z, floor)
    exact = jax.jit(lambda z, floor: weights @ ball_outcome(z, _BOUNCES, floor=floor))
    expected = jax.jit(jax.grad(exact, (0, 1)))(_BALL, floor)
    gradient = jax.grad(loss, (0, 1))
    for got, e in zip(gradient(_BALL, floor), expected, strict=True):
        assert error(got, e) < 1e-10
    # Another value, in a new closure: nothing of the first call is left.
    assert error(loss(_BALL, floor / 2), exact(_BALL, floor / 2)) < 1e-10
    # A batch, forward and in reverse.
    zs = _balls(3)
    floors = jnp.linspace(0.0, 0.2, 3)
    expected = jax.jit(jax.vmap(jax.grad(exact, (0, 1))))(zs, floors)
    batch = jax.jit(jax.vmap(gradient))(zs, floors)
    for got, e in zip(batch, expected, strict=True):
        assert error(got, e) < 1e-10
    push = jax.vmap(lambda z, f: jax.jvp(lambda f: loss(z, f), (f,), (1.0,))[1])
    assert error(jax.jit(push)(zs, floors), expected[1]) < 1e-10


def test_closures_of_an_event_selected_system():
    # x' is `slow` before `place` and `fast` beyond it.
    def end(z):
        slow, fast, place, x0 = z
        system = hj.EventSelectedSystem(
            lambda t, x, b, args: jnp.where(b > 0, fast, slow),
            lambda t, x, args: x - place,
        )
        sol = hj.simulate(system, 0.0, 1.0, x0[None], max_steps=32, max_events=2)
        return sol.x1[0]

    def exact(z):
        slow, fast, place, x0 = z
        return place + fast * (1 - (place - x0) / slow)

    z = jnp.asarray([1.3, 2.9, 0.4, -0.2])
    expected = jax.grad(exact)(z)
    assert error(jax.jit(jax.jacfwd(end))(z), expected) < 1e-10
    zs = z[None] + jnp.linspace(0, 0.1, 3)[:, None]
    got = jax.jit(jax.vmap(jax.grad(end)))(zs)
    assert error(got, jax.vmap(jax.grad(exact))(zs)) < 1e-10


#
# Parameters and states of other kinds
#


@pytest.mark.parametrize(
    "dtype",
    [
        jnp.bfloat16,
        pytest.param(jnp.float16, marks=pytest.mark.thorough),
        jnp.complex128,
    ],
)
def test_parameters_of_another_dtype(dtype):
    # The system, and `args`, which all lanes share. Numbers that all dtypes have.
    def height(gravity, restitution):
        class Ball(hj.AbstractHybridSystem):
            gravity: jax.Array

            def flow(self, t, x, mode, args):
                return jnp.stack([x[1], -jnp.real(self.gravity).astype(x.dtype)])

            def guards(self, t, x, mode, args):
                return x[:1] - 0.0 * jnp.real(self.gravity).astype(x.dtype)

            def jump(self, t, x, mode, event, args):
                return jnp.stack([x[0], -jnp.real(args) * x[1]]), mode

        x0, options = jnp.array([1.0, 0.5]), dict[str, Any](max_steps=64, max_events=4)
        return hj.simulate(Ball(gravity), 0.0, 1.0, x0, 0, restitution, **options).x1[0]

    gravity, restitution = jnp.array([9.0, 10.0], dtype), jnp.array(0.75, dtype)
    total = lambda g, e: jnp.sum(jax.vmap(height, (0, None))(g, e))
    got = jax.jit(jax.grad(total, (0, 1)))(gravity, restitution)
    exact = lambda g, e: ball_outcome(jnp.stack([1.0, 0.5, g, e]), 1, 1.0)[0]
    slopes = jax.jit(jax.vmap(jax.grad(exact, (0, 1)), (0, None)))
    by_g, by_e = slopes(jnp.array([9.0, 10.0]), 0.75)
    assert [g.dtype for g in got] == [dtype, dtype]
    rounding = 16 * jnp.finfo(dtype).eps + 1e-7
    assert error(got[0].astype(complex).real, by_g) < rounding
    assert error(got[1].astype(complex).real, by_e.sum()) < rounding


def test_state_of_size_zero():
    # Clocks only, of which two coincide: where w is 2.
    class Clocks(hj.AbstractHybridSystem):
        def flow(self, t, x, mode, args):
            return x

        def guards(self, t, x, mode, args):
            left = jnp.stack([1.0 - args * t, 0.5 - t])
            return jnp.where(mode == 0, left, jnp.full(2, hj.UNWATCHED))

        def jump(self, t, x, mode, event, args):
            return x, mode + 1

    def time(w):
        options = dict[str, Any](max_steps=16, max_events=3)
        sol = hj.simulate(Clocks(), 0.0, 3.0, jnp.zeros(0), 0, w[0], **options)
        return sol.events.t[:1], None

    ws = jnp.array([2.0, 2.5])
    _, forward, reverse, _ = batch_jacobians(time)(ws[:, None])
    assert error(reverse[:, 0, 0], -1 / ws**2) < 1e-12
    assert error(forward, reverse) < 1e-12


@jax.custom_vjp
def _square(x):
    return x**2


_square.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * x * ct,))


@pytest.mark.thorough
def test_functions_with_a_derivative_in_reverse_mode_only():
    # A flow and a reset; of all that can be asked for.
    class Ball(hj.AbstractHybridSystem):
        square: Callable = eqx.field(static=True)

        def flow(self, t, x, mode, args):
            drag, _ = args
            return jnp.stack([x[1], -9.81 - drag * self.square(x[1])])

        def guards(self, t, x, mode, args):
            return x[:1]

        def jump(self, t, x, mode, event, args):
            return jnp.stack([x[0], self.square(args[1] * x[1])]), mode

    def outcome(z, square):
        sol = hj.simulate(
            Ball(square),
            0.0,
            1.0,
            z[:2],
            0,
            (z[2], z[3]),
            saveat=dfx.SaveAt(ts=[0.3, 0.8], t1=True),
            max_steps=64,
            max_events=4,
        )
        log = sol.events
        first = [log.t[0], *log.x_before[0], *log.x_after[0], log.normal_speed[0]]
        return jnp.stack([*sol.xs.ravel(), *sol.evaluate(0.9), *first])

    z = jnp.array([1.0, 0.3, 0.1, 0.5])
    jacobian = lambda square: jax.jit(jax.jacrev(lambda z: outcome(z, square)))(z)
    assert error(jacobian(_square), jacobian(jnp.square)) < 1e-12


@pytest.mark.parametrize("flag", ["jax_debug_nans", "jax_debug_infs"])
def test_debugging_of_nans(flag):
    # What is NaN or infinite by intent, as in unused slots, is no error.
    height = lambda z: _ball(z).x1[0]
    expected = height(_BALL), jax.grad(height)(_BALL)
    with jax.debug_nans(True) if "nans" in flag else jax.debug_infs(True):
        assert height(_BALL) == expected[0]
        assert error(jax.grad(height)(_BALL), expected[1]) < 1e-12
        assert error(jax.jit(jax.grad(height))(_BALL), expected[1]) < 1e-12
        # And what is none stays one.
        with pytest.raises(hj.SimulationError, match="`max_events`, which is 2"):
            _ball(_BALL, max_events=2)


#
# Where there is no derivative
#


def test_failed_lanes_do_not_disturb_the_others():
    # Half of the balls bounce more often than there is room for.
    zs = jnp.stack([_BALL.at[0].set(q) for q in (1.0, 0.05, 0.9, 0.02)])
    fine = np.array([True, False, True, False])

    def end(z):
        sol = _ball(z, max_events=3, throw=False)
        return sol.x1, sol.result == hj.RESULTS.successful

    weights = jnp.asarray([1.0, -0.3])

    def each(zs):
        x1, okay = jax.vmap(end)(zs)
        return x1 @ weights, okay

    exact = lambda z: weights @ _exactly(z)[:2]
    expected = np.asarray(jax.jit(jax.vmap(jax.grad(exact)))(zs[fine]))

    def total(zs, masked):
        value, okay = each(zs)
        return jnp.sum(jnp.where(okay | ~masked, value, 0.0)), okay

    gradient = jax.jit(jax.grad(total, has_aux=True))
    got, okay = gradient(zs, True)
    assert np.all(np.asarray(okay) == fine)
    assert error(got[fine], expected) < 1e-10
    assert np.all(got[~fine] == 0)
    got, _ = gradient(zs, False)
    assert error(got[fine], expected) < 1e-10
    assert np.all(np.isnan(got[~fine]))
    # What all lanes share: NaN, unless the failed ones are left out.
    shared = jax.jit(jax.grad(lambda s, m: total(zs + s[None], m)[0]))
    assert error(shared(jnp.zeros(4), True), expected.sum(0)) < 1e-10
    assert np.all(np.isnan(shared(jnp.zeros(4), False)))
    # Forward.
    forward = jax.jit(lambda zs, v: jax.jvp(each, (zs,), (v,), has_aux=True)[1])
    push = forward(zs, jnp.ones_like(zs))
    assert error(push[fine], expected.sum(1)) < 1e-10
    assert np.all(np.isnan(push[~fine]))


def test_failed_lanes_of_an_implicit_solver():
    # Its linear solver ends the whole program where it is given a NaN: it is not, in
    # lanes that begin with one, or whose field is one from some time on, or has a
    # derivative of NaN from some state on (where it would return something wrong), or
    # for some time only: then steps may begin before it, and end after it.
    class Decay(hj.AbstractHybridSystem):
        def flow(self, t, x, mode, args):
            until, edge, hole = args
            nothing = 0 * jnp.sqrt(jnp.maximum(x - edge, 0))
            away = (t - hole) ** 2 - 0.01**2 + 0 * x
            nothing = nothing + 0 * jnp.sqrt(jnp.maximum(away, 0))
            return jnp.where(t >= until, jnp.nan, nothing - x)

        def guards(self, t, x, mode, args):
            return x - 0.5

        def jump(self, t, x, mode, event, args):
            return x + 1, mode

    def kinked(x, where):
        return x + 0 * jnp.sqrt(jnp.where(where, 0 * x, 1))

    def outcome(x0, before, after, *args):
        options = dict[str, Any](max_steps=64, max_events=4, throw=False)
        solver, x0 = dfx.Kvaerno5(), kinked(x0, before)
        sol = hj.simulate(Decay(), 0.0, 1.0, x0, 0, args, solver=solver, **options)
        value = jnp.stack([sol.x1[0], sol.evaluate(0.9)[0], sol.events.t[0]])
        return kinked(value, after), sol.result == hj.RESULTS.successful

    x0 = jnp.array([1.0, 1.0, 1.0, jnp.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
    until = jnp.array([2.0, 0.0, 0.3, 2.0, 0.8, 2.0, 2.0, 2.0, 2.0])
    edge = jnp.array([-1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 0.7, -1.0, -1.0])
    # Lanes that simulate well, but to or from what has no derivative.
    before, after = np.arange(9) == 7, np.arange(9) == 8
    # From 1 to 0.5, up by 1, and on.
    end = lambda x0, t: (1 + 0.5) * jnp.exp(-t) / (0.5 / x0)
    exact = lambda x0: jnp.stack([end(x0, 1.0), end(x0, 0.9), jnp.log(2 * x0)])
    holes = np.linspace(0.1, 0.9, 17)
    n, one = holes.size, np.ones(holes.size)
    far = jnp.full_like(x0, 9)
    more = [(before, 0 * one > 0), (after, 0 * one > 0), (until, 2 * one), (edge, -one)]
    more = [np.append(a, b) for a, b in (*more, (far, holes))]
    x0 = np.append(x0, one)
    value, *slopes, okay = batch_jacobians(outcome)(x0[:, None], *more)
    assert okay[:9].tolist() == [True] + 6 * [False] + 2 * [True]
    # A hole that no stage falls into is not seen.
    assert 0 < okay[9:].sum() < n
    # What is saved between may be reached by another step, which falls into it.
    off = np.abs(np.asarray(value)[okay] - np.asarray(exact(1.0)))
    assert (off[:, ::2] < 1e-7).all() and ((off < 1e-7) | np.isnan(off)).all()
    assert 0 < np.isnan(off).sum() < n
    whole = np.isfinite(off[3:]).all(axis=1)
    there = 9 + np.flatnonzero(okay[9:])
    for slope in slopes:
        assert error(slope[0, :, 0], jax.jacfwd(exact)(1.0)) < 1e-6
        off = np.asarray(slope)[there, :, 0] - np.asarray(jax.jacfwd(exact)(1.0))
        assert (np.abs(off[whole]) < 1e-6).all()
        assert ((np.abs(off) < 1e-6) | np.isnan(off)).all()
        assert np.isnan(slope[1:9, :2]).all()
        assert np.isnan(slope[9:][~okay[9:], :2]).all()


def test_all_of_a_failed_lane():
    # A ball in the air: its speed does not depend on the initial height, and the time
    # at which the failure ends it on nothing. Both modes give NaN all the same.
    def outcome(z):
        sol = _ball(z[:4], saveat=dfx.SaveAt(ts=[0.1]), max_steps=2, throw=False)
        log = sol.events
        known = [*sol.xs[0], *sol.x1, sol.evaluate(0.1)[1], sol.stats["t_end"]]
        return jnp.stack([*known, log.t[0], *log.x_after[0]]), None

    z = jnp.append(_BALL, 0.0)
    _, *jacobians, _ = both_jacobians(outcome)(z)
    for jacobian in jacobians:
        ended, none = jacobian[:6], jacobian[6:]
        assert np.isnan(ended[:, :4]).all()
        # What the simulation is not given, and slots for events that there were not.
        assert np.all(ended[:, 4] == 0)
        assert np.all(none == 0)


def _touch(z, throw):
    """A parabola that touches the guard where z is zero."""
    system = hj.HybridAutomaton(
        {"a": lambda t, x, args: jnp.stack([x[1], jnp.asarray(2.0)])},
        [hj.Transition("a", "a", lambda t, x, args: x[0], lambda t, x, args: -x)],
    )
    x0 = jnp.stack([1 + z, -2 + 0 * z])
    sol = hj.simulate(system, 0.0, 2.0, x0, "a", throw=throw, max_steps=64)
    return sol.x1[0]


def test_grazing_has_no_derivative():
    zs = jnp.asarray([0.0, 0.5])
    got = jax.jit(jax.vmap(jax.grad(lambda z: _touch(z, False))))(zs)
    assert np.isnan(got[0])
    assert error(got[1], 1.0) < 1e-12
    with pytest.raises(Exception, match="tangentially"):
        jax.block_until_ready(jax.grad(lambda z: _touch(z, True))(0.0))


class _Room(hj.AbstractHybridSystem):
    """A ball between two walls, slowed down. What it keeps of its speed is summed up,
    so that the jump has as many operations as there are terms."""

    keeps: jax.Array
    terms: int = eqx.field(static=True)

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -1.0 - 0.1 * x[1]])

    def guards(self, t, x, mode, args):
        return jnp.stack([x[0], 2 + 0.1 * t - x[0]])

    def jump(self, t, x, mode, event, args):
        v = sum(self.keeps / self.terms * x[1] for _ in range(self.terms))
        return jnp.stack([x[0], 0.1 * jnp.where(event == 1, 1, 0) - v]), mode


def test_large_jumps_have_the_derivatives_of_small_ones():
    def outcome(terms, z):
        system = _Room(z[2], terms)
        sol = hj.simulate(system, 0.0, 2.0, z[:2], 0, max_events=8, throw=False)
        times = jnp.where(jnp.isfinite(sol.events.t), sol.events.t, 0)
        return jnp.concatenate([sol.x1, times, sol.events.x_before[:2].ravel()])

    def tangents(terms):
        push = lambda z, dz: jax.jvp(lambda z: outcome(terms, z), (z,), (dz,))
        return jax.jit(jax.vmap(push))(zs, dzs)

    # Bounces at both walls; from one of them, and from beyond it; at rest on it.
    zs = jnp.array(
        [[1.0, 3.0, 0.8], [0.0, -1.0, 0.8], [-0.1, -1.0, 0.8], [0.0, 0.0, 0.8]]
    )
    dzs = jnp.array(
        [[1.0, 0.3, 0.2], [0.5, 0.3, 0.2], [-0.5, 0.1, 0.2], [1.0, 0.0, 0.0]]
    )
    large, *_ = flatten_system(_Room(zs[0, 2], 400), jnp.zeros(()), zs[0, :2], 0, None)
    assert large.has_large_jumps
    small, many = tangents(1), tangents(400)
    assert error(many[0], small[0]) < 1e-12
    assert np.isfinite(small[1][:3]).all()
    np.testing.assert_allclose(many[1], small[1], rtol=1e-9, atol=1e-9)


def test_reset_that_is_undefined_away_from_its_guard():
    # The square root is NaN while the ball rises, as it does at the start, and in the
    # lane that never falls on the ground.
    class Ball(hj.AbstractHybridSystem):
        gravity: jax.Array

        def flow(self, t, x, mode, args):
            return jnp.stack([x[1], -self.gravity])

        def guards(self, t, x, mode, args):
            return x[:1]

        def jump(self, t, x, mode, event, args):
            return jnp.stack([x[0], jnp.sqrt(-x[1])]), mode

    def simulate(z):
        sol = hj.simulate(
            Ball(z[1]),
            0.0,
            0.5,
            jnp.stack([0.1, z[0]]),
            0,
            stepsize_controller=_CONTROLLER,
            max_steps=32,
            max_events=3,
        )
        return jnp.stack([*sol.x1, sol.events.x_after[0, 1]]), None

    def exact(z):
        v, g = z
        down = jnp.sqrt(v**2 + 0.2 * g)
        t = (v + down) / g
        up, rest = jnp.sqrt(down), 0.5 - t
        return jnp.stack([up * rest - g * rest**2 / 2, up - g * rest, up])

    zs = jnp.asarray([[1.0, 9.81], [1.2, 10.0], [9.0, 9.81]])
    expected = jax.jit(jax.vmap(jax.jacfwd(exact)))(zs)
    _, *jacobians, _ = batch_jacobians(simulate)(zs)
    for got in jacobians:
        assert error(got[:2], expected[:2]) < 1e-10
        # No event: the state at the end of a flight; and nothing after an event.
        assert error(got[2, 0], jnp.asarray([0.5, -0.125])) < 1e-10
        assert np.all(got[2, 2] == 0)


#
# Derivatives of derivatives that are none of the simulation
#


@pytest.mark.thorough
def test_of_a_factor():
    # d²(a² x1) is fine in a, and so is its mixed derivative.
    fn = lambda a, z: a**2 * _outcome(z)[0]
    value, slope = jax.jit(jax.value_and_grad(lambda z: _exactly(z)[0]))(_BALL)
    assert error(jax.grad(jax.grad(fn))(1.5, _BALL), 2 * value) < 1e-10
    mixed = jax.jacfwd(jax.grad(fn), 1)(1.5, _BALL)
    assert error(mixed, 3 * slope) < 1e-10
    mixed = jax.jacfwd(jax.grad(fn, 1), 0)(1.5, _BALL)
    assert error(mixed, 3 * slope) < 1e-10


def test_evaluate_twice_with_respect_to_time():
    # Between events a solution is a smooth function of time: speed and acceleration.
    sol = _ball(_BALL)
    height = lambda t: sol.evaluate(t)[0]
    rates = jax.jit(lambda t: (jax.grad(height)(t), jax.grad(jax.grad(height))(t)))(1.5)
    assert error(rates[0], sol.evaluate(1.5)[1]) < 1e-10
    assert error(rates[1], -9.81) < 1e-8
    # And how its speed depends on the inputs.
    speed = lambda z: jax.grad(lambda t: _ball(z).evaluate(t)[0])(1.9)
    expected = jax.jit(jax.grad(lambda z: ball_outcome(z, _BOUNCES, 1.9)[1]))(_BALL)
    assert error(jax.jit(jax.grad(speed))(_BALL), expected) < 1e-8
