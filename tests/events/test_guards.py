"""Which guards fire, when, and in which order."""

import functools
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import WalledBall
from scipy.optimize import brentq


class _Alternating(hj.AbstractHybridSystem):
    """Guards that are given functions of time and change their sign when they fire, so
    that every change of sign is an event; those of mode 2 fire only once. The state is
    a clock, and counts events."""

    functions: Callable = eqx.field(static=True)

    def flow(self, t, x, mode, args):
        return jnp.zeros_like(x).at[0].set(1.0)

    def guards(self, t, x, mode, args):
        g = jnp.where(mode > 0, 1.0, -1.0) * self.functions(x[0], args)
        return jnp.where(mode == 0, hj.UNWATCHED, g)

    def jump(self, t, x, mode, event, args):
        fired = jnp.arange(mode.shape[0]) == event
        after = jnp.where(mode == 2, 0, -mode)
        return x.at[1:].add(fired.astype(x.dtype)), jnp.where(fired, after, mode)


def _solve(functions, signs, args, **options):
    x0 = jnp.zeros(1 + len(signs))
    options = dict[str, Any](max_steps=192, max_events=64, throw=False) | options
    return hj.simulate(_Alternating(functions), 0.0, 1.0, x0, signs, args, **options)


def _log(sol, lane=None):
    """The events as a list of (time, guard)."""
    t, event, count = sol.events.t, sol.events.event, sol.events.count
    # In NumPy: each length would be a program.
    t, event, count = (np.asarray(a) for a in (t, event, count))
    if lane is not None:
        t, event, count = t[lane], event[lane], count[lane]
    n = int(count)
    return list(zip(t[:n].tolist(), event[:n].tolist(), strict=True))


#
# Guards that vary at all speeds
#


def _sums_of_sines(t, args):
    amplitude, frequency, phase, offset = args
    return jnp.sum(amplitude * jnp.sin(frequency * t + phase), axis=1) + offset


@jax.jit
@jax.vmap
def _sines(args):
    signs = jnp.where(_sums_of_sines(0.0, args) > 0, 1, -1)
    return _solve(_sums_of_sines, signs, args)


def _random_sines(n):
    rng = np.random.default_rng(0)
    frequency = 10 ** rng.uniform(0, 2, (n, 3, 3))
    amplitude = rng.normal(size=(n, 3, 3)) / np.sqrt(frequency)
    phase = rng.uniform(0, 2 * np.pi, (n, 3, 3))
    offset = rng.normal(size=(n, 3)) / 6
    return amplitude, frequency, phase, offset


def _dense_events(args):
    grid = np.linspace(0, 1, 20001)
    events = []
    for guard, (a, w, p, c) in enumerate(zip(*args, strict=True)):
        fn = lambda t, a=a, w=w, p=p, c=c: (
            np.sum(a * np.sin(w * np.asarray(t)[..., None] + p), axis=-1) + c
        )
        values = fn(grid)
        for k in np.nonzero(values[:-1] * values[1:] < 0)[0]:
            events.append((brentq(fn, grid[k], grid[k + 1], xtol=1e-15), guard))
    return sorted(events)


def test_any_guards():
    n = 200
    args = _random_sines(n)
    sol = _sines(args)
    assert (sol.result == hj.RESULTS.successful).all()
    total = 0
    for i in range(n):
        truth = _dense_events(jax.tree.map(lambda a, i=i: a[i], args))
        log = _log(sol, i)
        assert [guard for _, guard in log] == [guard for _, guard in truth]
        times = [t for t, _ in log]
        np.testing.assert_allclose(times, [t for t, _ in truth], rtol=0, atol=1e-11)
        total += len(truth)
    assert total > 2000


def test_order_of_guards():
    args = _random_sines(200)
    one = _sines(args)
    order = np.array([2, 0, 1])  # guard k of the other run is guard order[k] of this
    other = _sines(jax.tree.map(lambda a: a[:, order], args))
    for i in range(200):
        log = [(t, int(order[guard])) for t, guard in _log(other, i)]
        assert [guard for _, guard in log] == [guard for _, guard in _log(one, i)]
        times = [t for t, _ in log]
        np.testing.assert_allclose(
            times, [t for t, _ in _log(one, i)], rtol=0, atol=1e-13
        )


#
# Guards with given roots
#

_NONE = 7.0  # A root that is beyond the end.


def _with_roots(t, roots):
    return -jnp.prod((t - roots) / (1 + jnp.abs(roots)), axis=1)


_TS = np.arange(0, 9) / 8


@jax.jit
def _roots_adaptive(roots, signs):
    return _solve(
        _with_roots, signs, roots, saveat=dfx.SaveAt(ts=jnp.asarray(_TS), t1=True)
    )


@jax.jit
def _roots_constant(roots, signs):
    return _solve(
        _with_roots,
        signs,
        roots,
        saveat=dfx.SaveAt(ts=jnp.asarray(_TS), t1=True),
        solver=dfx.Heun(),
        stepsize_controller=dfx.ConstantStepSize(),
        dt0=0.125,
    )


_solvers = pytest.mark.parametrize(
    "solve", (_roots_adaptive, _roots_constant), ids=("adaptive", "constant")
)


def _run(solve, *roots):
    """Solves with guards that have the given roots, positive before the first one."""
    roots = [list(r) + [_NONE] * (3 - len(r)) for r in roots]
    roots = np.array(roots + [[_NONE] * 3] * (2 - len(roots)), float)
    before = -np.prod(np.sign(-1e-9 - roots), axis=1)
    return solve(jnp.asarray(roots), jnp.asarray(before, jnp.int32))


def _check_log(sol, truth, atol=1e-12):
    assert sol.result == hj.RESULTS.successful
    log = _log(sol)
    assert [guard for _, guard in log] == [guard for _, guard in truth]
    times = [t for t, _ in log]
    np.testing.assert_allclose(times, [t for t, _ in truth], rtol=0, atol=atol)


@_solvers
@pytest.mark.parametrize("first, gap", ((0.43, 1e-2), (0.43, 1e-5), (0.85, 1e-3)))
def test_earlier_one_fires(solve, first, gap):
    # Within one step, and the one that is listed second may be the earlier one.
    second = first + gap
    _check_log(_run(solve, [first], [second]), [(first, 0), (second, 1)])
    _check_log(_run(solve, [second], [first]), [(first, 1), (second, 0)])


@_solvers
@pytest.mark.parametrize("width", (0.05, 1e-3, 1e-5))
@pytest.mark.parametrize("at", (0.03, 0.3, 0.62, 0.9))
def test_fast_dip(solve, at, width):
    # Zero twice within one step: the guard has the same sign at both of its ends.
    sol = _run(solve, [at, at + width])
    _check_log(sol, [(at, 0), (at + width, 0)])


@_solvers
def test_three_times_in_one_step(solve):
    sol = _run(solve, [0.51, 0.53, 0.58], [0.52, 0.54])
    truth = [(0.51, 0), (0.52, 1), (0.53, 0), (0.54, 1), (0.58, 0)]
    _check_log(sol, truth)


@_solvers
def test_start_on_guard(solve):
    # Moving in, it fires at `t0`; moving out, it does not.
    inward, outward = jnp.asarray([[1, 1], [-1, 1]], jnp.int32)
    roots = jnp.asarray([[0.0, 0.3, _NONE], [_NONE] * 3])
    sol = solve(roots, inward)
    _check_log(sol, [(0.0, 0), (0.3, 0)])
    assert sol.events.t[0] == 0
    np.testing.assert_array_equal(sol.xs[0], [0.0, 1.0, 0.0])  # after the event
    sol = solve(roots, outward)
    _check_log(sol, [(0.3, 0)])
    np.testing.assert_array_equal(sol.xs[0], [0.0, 0.0, 0.0])


@_solvers
@pytest.mark.parametrize("at", (0.125, 0.5, 0.875))
def test_at_step_end_and_save_time(solve, at):
    # The constant steps end where the guard is zero, and states are saved there.
    sol = _run(solve, [at])
    _check_log(sol, [(at, 0)])
    # Right-continuous: what is saved at the event is after it.
    np.testing.assert_array_equal(sol.xs[:-1, 1], _TS >= at)
    np.testing.assert_allclose(sol.xs[:-1, 0], _TS, rtol=0, atol=1e-12)


@_solvers
def test_at_end(solve):
    sol = _run(solve, [1.0])
    _check_log(sol, [(1.0, 0)])
    for x in (sol.x1, sol.xs[-1]):
        np.testing.assert_allclose(x, [1.0, 1.0, 0.0], rtol=0, atol=1e-12)
    # A little later is not before the end.
    sol = _run(solve, [1.0 + 1e-9])
    _check_log(sol, [])
    np.testing.assert_allclose(sol.x1, [1.0, 0.0, 0.0], rtol=0, atol=1e-12)


@_solvers
@pytest.mark.parametrize("at", np.linspace(0.21, 0.93, 13))
def test_cubed_guard(solve, at):
    # The guard is u³: its value and its rate both vanish at the root.
    roots = jnp.asarray([[at, at, at], [_NONE] * 3])
    _check_log(solve(roots, jnp.asarray([2, 1], jnp.int32)), [(at, 0)], atol=1e-6)


@_solvers
def test_guard_listed_twice(solve):
    sol = _run(solve, [0.4, 0.6], [0.4, 0.6])
    assert sol.result == hj.RESULTS.successful
    log = _log(sol)
    assert sorted(guard for _, guard in log[:2]) == [0, 1]
    assert sorted(guard for _, guard in log[2:]) == [0, 1]
    times = [t for t, _ in log]
    np.testing.assert_allclose(times, [0.4, 0.4, 0.6, 0.6], rtol=0, atol=1e-12)


#
# Guards that are not watched
#


def _valve():
    """Falls at speed `args[0]` to the height 1.91, where a valve opens, then at speed
    `args[1]` to 1.75, where it closes for good. Each guard is NaN in another mode, and
    so are its derivatives."""
    open_at = lambda t, x, args: jnp.sqrt(x[0] - 1.9) - 0.1
    close_at = lambda t, x, args: -jnp.log(2 * (1.91 - x[0]) + 0.68)
    modes = {
        "closed": lambda t, x, args: -args[:1],
        "open": lambda t, x, args: -args[1:],
        "done": lambda t, x, args: -args[:1],
    }
    transitions = (
        hj.Transition("closed", "open", open_at),
        hj.Transition("open", "done", close_at),
        # Never the first to fire.
        hj.Transition("open", "done", lambda t, x, args: jnp.sqrt(x[0] - 1.7) - 0.2),
    )
    return hj.HybridAutomaton(modes, transitions)


def test_nan_away_from_its_mode():
    system = _valve()

    def final(x0, args):
        sol = hj.simulate(
            system, 0.0, 1.0, x0, "closed", args, max_steps=64, max_events=4
        )
        return sol.x1[0], sol.events.count

    value_and_grad = jax.value_and_grad(final, argnums=(0, 1), has_aux=True)

    def truth(x0, args):
        a, b = args
        second = (x0[0] - 1.91) / a + (1.91 - 1.75) / b
        return 1.75 - a * (1.0 - second)

    x0, args = jnp.array([2.5]), jnp.array([2.0, 0.5])
    (value, count), grads = jax.jit(value_and_grad)(x0, args)
    assert count == 2
    np.testing.assert_allclose(value, truth(x0, args), rtol=0, atol=1e-9)
    for got, want in zip(grads, jax.grad(truth, (0, 1))(x0, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)

    # In a batch, all guards of all lanes are evaluated. The last lane has no event.
    x0s = jnp.array([[2.5], [2.3], [2.05], [9.0]])
    argss = jnp.array([[2.0, 0.5], [1.5, 0.4], [2.0, 0.3], [2.0, 0.5]])
    (value, count), grads = jax.jit(jax.vmap(value_and_grad))(x0s, argss)
    np.testing.assert_array_equal(count, [2, 2, 2, 0])
    value_truth = jax.vmap(truth)(x0s, argss).at[-1].set(7.0)
    np.testing.assert_allclose(value, value_truth, rtol=0, atol=1e-9)
    want = jax.vmap(jax.grad(truth, (0, 1)))(x0s, argss)
    want = (want[0].at[-1].set(1.0), want[1].at[-1].set(jnp.array([-1.0, 0.0])))
    for g, w in zip(grads, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-8)


@pytest.mark.thorough
def test_many_walls():
    # A square table, and 60 walls just out of reach. Along each axis the ball
    # goes to and fro: its position is a triangle wave.
    angles = jnp.linspace(0, 2 * jnp.pi, 60, endpoint=False)
    round_ = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    square = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    table = functools.partial(WalledBall, gravity=0.0, restitution=1.0)
    alone = table(square, -jnp.ones(4))
    offsets = -jnp.concatenate([1.001 * jnp.sqrt(2) * jnp.ones(60), jnp.ones(4)])
    within = table(jnp.concatenate([round_, square]), offsets)

    def play(heading, system=within):
        x0 = jnp.stack([0.1, -0.2, jnp.cos(heading), jnp.sin(heading)])
        sol = hj.simulate(system, 0.0, 9.3, x0, 0, max_steps=64, max_events=16)
        return sol.x1[:2], (sol.stats["num_steps"], sol.events.count)

    def unfolded(heading):
        p = jnp.array([0.1, -0.2]) + 9.3 * jnp.stack(
            [jnp.cos(heading), jnp.sin(heading)]
        )
        return jnp.abs((p - 1) % 4 - 2) - 1

    @jax.jit
    @jax.vmap
    def both(heading):
        one = jnp.ones_like(heading)
        p, dp, (steps, events) = jax.jvp(play, (heading,), (one,), has_aux=True)
        return p, dp, *jax.jvp(unfolded, (heading,), (one,)), steps, events

    headings = jnp.linspace(0.05, 3.0, 50)
    p, dp, exact, slope, steps, events = both(headings)
    np.testing.assert_allclose(p, exact, atol=1e-10)
    np.testing.assert_allclose(dp, slope, atol=1e-10)
    assert np.ptp(events) >= 2
    # The walls behind change nothing of how the others are found.
    _, (steps_alone, _) = jax.jit(jax.vmap(lambda h: play(h, alone)))(headings)
    np.testing.assert_array_equal(steps, steps_alone)
    with pytest.raises(ValueError, match="normals"):
        WalledBall(normals=square, offsets=jnp.ones(3))


def test_no_guards():
    # A mode without guards, which is the end of an automaton, and a system without any.
    decay = lambda t, x, args: -x
    stop = lambda t, x, args: jnp.zeros_like(x)
    leave = hj.Transition("moving", "done", lambda t, x, args: x[0] - 0.5)
    system = hj.HybridAutomaton({"moving": decay, "done": stop}, [leave])
    x0 = jnp.array([1.0])
    sol = hj.simulate(system, 0.0, 2.0, x0, "moving", max_steps=64, max_events=4)
    np.testing.assert_allclose(sol.x1, [0.5], rtol=0, atol=1e-9)
    assert (sol.mode1, sol.events.count) == (1, 1)
    np.testing.assert_allclose(sol.events.t[0], np.log(2), rtol=0, atol=1e-8)
    sol = hj.simulate(system, 0.0, 2.0, x0, "done", max_steps=64, max_events=4)
    assert (sol.x1[0], sol.mode1, sol.events.count) == (1.0, 1, 0)

    system = hj.HybridAutomaton({"moving": decay}, [])

    def final(x0):
        saveat = dfx.SaveAt(ts=[1.0, 2.0])
        sol = hj.simulate(
            system, 0.0, 2.0, x0, "moving", saveat=saveat, max_steps=64, max_events=4
        )
        return sol.xs[:, 0], sol.events.count

    jacobian, count = jax.jit(jax.jacrev(final, has_aux=True))(x0)
    assert count == 0
    np.testing.assert_allclose(jacobian[:, 0], np.exp([-1.0, -2.0]), atol=1e-7)


def test_backward_time():
    def final(t1):
        system = hj.HybridAutomaton({"moving": lambda t, x, args: -x}, [])
        x0 = jnp.array([1.0])
        sol = hj.simulate(system, 0.0, t1, x0, "moving", max_steps=64, max_events=4)
        return sol.x1

    with pytest.raises(ValueError, match="Argument `t1` must not be less than `t0`"):
        final(-1.0)
    # Where the times are traced, the compiled program raises.
    with pytest.raises(Exception, match="Argument `t1` must not be less than `t0`"):
        jax.block_until_ready(jax.jit(final)(-1.0))
    # An empty interval is not backward.
    np.testing.assert_array_equal(jax.jit(final)(0.0), [1.0])


#
# Turns
#


class _Rising(hj.AbstractHybridSystem):
    """Thrown up from below the guard; where it fires, it goes on at speed 3."""

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -jnp.ones_like(x[0])])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return x.at[1].set(3.0), mode


def test_no_derivative_at_a_turn():
    # It starts in the guard set, leaves, and turns before it is out at t = v0: the time
    # of the event depends on the peak, and the rule for crossings does not apply.
    def outcome(v0, throw=False):
        sol = hj.simulate(_Rising(), 0.0, 2.0, jnp.stack([-1.0, v0]), 0, throw=throw)
        return jnp.append(sol.x1, sol.events.t[0])

    for v0 in (0.5, 0.7, 0.9):
        x1, speed, t = outcome(v0)
        np.testing.assert_allclose(t, v0, atol=1e-4)
        peak = -1 + v0**2 / 2
        rest = 2 - v0
        np.testing.assert_allclose(speed, 3 - rest, atol=1e-3)
        np.testing.assert_allclose(x1, peak + 3 * rest - rest**2 / 2, atol=1e-3)
        assert np.isnan(jax.jvp(outcome, (v0,), (1.0,))[1]).all()
        assert np.isnan(jax.grad(lambda v0: outcome(v0)[0])(v0))
        with pytest.raises(hj.SimulationError, match="at rest|comes to rest"):
            jax.grad(lambda v0: outcome(v0, throw=True)[0])(v0)
    # Beyond the guard, it leaves, and falls through it on the way down.
    slope = jax.grad(lambda v0: outcome(v0)[2])(1.45)
    root = lambda v: v + np.sqrt(v**2 - 2)
    expected = (root(1.45 + 1e-6) - root(1.45 - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


#
# Periods
#


class _Wave(hj.AbstractHybridSystem):
    """A guard that swings around `args[0]` with the frequency `args[1]`, from the phase
    `args[2]` on, and is watched until it fires."""

    def flow(self, t, x, mode, args):
        return jnp.ones_like(x)

    def guards(self, t, x, mode, args):
        middle, frequency, phase = args
        wave = middle + jnp.cos(2 * jnp.pi * (frequency * x + phase))
        return jnp.where(mode > 0, 1.0, wave)

    def jump(self, t, x, mode, event, args):
        return x, mode + 1


@jax.jit
@jax.vmap
def _first_below_zero(middle, frequency, phase):
    sol = hj.simulate(
        _Wave(),
        0.0,
        0.75,
        jnp.zeros(1),
        0,
        (middle, frequency, phase),
        stepsize_controller=dfx.ConstantStepSize(),
        dt0=0.25,
        max_steps=256,
        max_events=2,
    )
    return sol.events.t[0]


@pytest.mark.parametrize("phase", [0.0, 0.1, -0.1])
def test_periods_that_divide_the_step(phase):
    # At both ends of the step it has one value and one rate; with a phase of zero, as
    # if it stood still.
    periods = np.concatenate([np.arange(1, 151), np.arange(200, 850, 25)])
    for middle in (0.0, 0.5):
        n = periods.size
        frequency = periods / 0.25
        t = _first_below_zero(np.full(n, middle), frequency, np.full(n, phase))
        exact = (np.arccos(-middle) / (2 * np.pi) - phase) / frequency
        np.testing.assert_allclose(t, exact, rtol=1e-9)
