"""Simulations that end at an event."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import (
    ball_outcome,
    batch_jacobians,
    both_jacobians,
    error,
    value_and_jacobian,
)


_T1 = 2.5


def _bounce(z, count, dtype=jnp.float64, **options):
    """Time and state at a bounce: `z` is height, speed, gravity and restitution."""
    q, v, g, e = z.astype(dtype)
    return hj.simulate(
        models.BouncingBall(g, e),
        0.0,
        _T1,
        jnp.stack([q, v]),
        0,
        terminal_event=hj.TerminalEvent(0, count),
        max_events=16,
        max_steps=512,
        **options,
    )


def _exact(z, count):
    """Where it does not get so far, that is after the fourth bounce."""
    _, v, g, e = z
    height, speed, *times = ball_outcome(z, 4, _T1)
    impact = jnp.sqrt(v**2 + 2 * g * z[0])
    at = jnp.stack(times)[jnp.minimum(count, 4) - 1]
    stopped = jnp.stack([at, 0 * at, e**count * impact])
    late = jnp.stack([0 * height + _T1, height, speed])
    return jnp.where(count <= 4, stopped, late)


def test_bounces():
    # Lane by lane: the first bounces, and one that does not happen before `t1`.
    counts = jnp.array([1, 2, 3, 4, 5])
    rng = np.random.default_rng(0)
    z = jnp.asarray([1.0, 0.3, 9.81, 0.8] + rng.uniform(0, 0.05, (5, 4)))

    def end(z, count, dtype):
        sol = _bounce(z, count, dtype, throw=False)
        return jnp.stack([sol.t1, *sol.x1]), (sol.result, sol.events.count)

    each = jax.vmap(lambda *a: (_exact(*a), jax.jacfwd(_exact)(*a)))
    exact, right = jax.jit(each)(z, counts)
    for dtype in (jnp.float64, jnp.float32):
        tol = 1e-6 if dtype == jnp.float64 else 2e-3
        run = batch_jacobians(lambda z, n, dtype=dtype: end(z, n, dtype))
        value, forward, reverse, (result, happened) = run(z, counts)
        assert list(happened) == [1, 2, 3, 4, 4]
        assert list(result == hj.RESULTS.event_occurred) == [True] * 4 + [False]
        assert list(result == hj.RESULTS.successful) == [False] * 4 + [True]
        assert error(value, exact) < tol
        assert error(forward, right) < tol and error(reverse, right) < tol


def test_what_is_saved():
    z = jnp.array([1.0, 0.3, 9.81, 0.8])
    ts = jnp.array([0.1, 0.9, 2.0])
    saveat = dfx.SaveAt(ts=ts, t1=True, steps=True)

    @jax.jit
    def run(z):
        sol = _bounce(z, 2, saveat=dfx.SaveAt(subs=[saveat.subs]))
        (ts,), (xs,) = sol.ts, sol.xs
        final = jax.jacfwd(lambda t: sol.evaluate(t))(sol.t1)
        return sol, ts, xs, sol.evaluate(jnp.stack([sol.t1, 1.1 * sol.t1])), final

    sol, ts, xs, (at_end, beyond), slope = run(z)
    t1, *x1 = _exact(z, 2)
    assert error(sol.t1, t1) < 1e-8 and error(sol.stats["t_end"], t1) < 1e-8
    assert error(at_end, jnp.stack(x1)) < 1e-7 and np.isnan(beyond).all()
    assert error(slope, jnp.stack([x1[1], -z[2]])) < 1e-7
    finite = np.isfinite(np.asarray(xs)).all(axis=1)
    np.testing.assert_allclose(np.max(np.asarray(ts)[finite]), t1)
    assert np.isnan(np.asarray(xs)[np.asarray(ts) == 2.0]).all()


def test_of_several_that_land_together():
    # The simulation ends when all that happens in the instant has happened; its time is
    # that of the one that was asked for.
    def end(x0):
        terminal = hj.TerminalEvent(1)
        sol = hj.simulate(models.Balls(), 0.0, 2.0, x0, 0, terminal_event=terminal)
        return jnp.stack([sol.t1, *sol.x1]), sol.events.count

    def exact(x0):
        q, v = x0[:2], x0[2:]
        impact = jnp.sqrt(v**2 + 2 * 9.81 * q)
        t = (v + impact) / 9.81
        s = t[1] - t
        up = 0.8 * impact
        return jnp.stack([t[1], *(up * s - 9.81 * s**2 / 2), *(up - 9.81 * s)])

    x0 = jnp.array([1.0, 1.0, 0.4, 0.4])
    value, forward, reverse, count = both_jacobians(end)(x0)
    expected, jacobian = value_and_jacobian(exact)(x0)
    assert count == 2
    assert error(value, expected) < 1e-6
    assert error(forward, jacobian) < 1e-6
    assert error(reverse, jacobian) < 1e-6


@value_and_jacobian
def _second_crossing(x0):
    t = models.affine_octants_flow(jnp.asarray(0.5), x0)[1][1]
    return jnp.stack([t, *models.affine_octants_flow(t, x0)[0]])


@pytest.mark.thorough
@pytest.mark.parametrize("event_method", [hj.Locate(), hj.Project(1e-3)])
def test_event_selected(event_method):
    # The surfaces are crossed in the order 1, 2, 0: the second of any of the first two.
    x0 = jnp.array([-0.4, -0.15, 0.3])
    terminal = hj.TerminalEvent([1, 2], 2)

    def end(x0):
        sol = hj.simulate(
            models.affine_octants(),
            0.0,
            0.5,
            x0,
            event_method=event_method,
            terminal_event=terminal,
            max_steps=256,
            max_events=4,
        )
        value = jnp.stack([sol.t1, *sol.x1])
        return value, value

    tol = 1e-6 if isinstance(event_method, hj.Locate) else 1e-3
    reverse, value = jax.jit(jax.jacrev(end, has_aux=True))(x0)
    expected, jacobian = _second_crossing(x0)
    assert error(value, expected) < tol
    assert error(reverse, jacobian) < 10 * tol


def test_transition():
    field = lambda rate: lambda t, x, args: rate * jnp.ones_like(x)
    automaton = hj.HybridAutomaton(
        {"up": field(1.0), "down": field(-2.0)},
        [
            hj.Transition("up", "down", lambda t, x, args: 1 - x[0]),
            hj.Transition("down", "up", lambda t, x, args: x[0]),
        ],
    )
    run = lambda terminal: hj.simulate(
        automaton, 0.0, 9.0, jnp.array([0.25]), "up", terminal_event=terminal
    )
    sol = run(hj.TerminalEvent(("down", "up"), 2))
    np.testing.assert_allclose(sol.t1, 0.75 + 0.5 + 1 + 0.5)
    assert sol.mode1 == 0 and sol.events.count == 4
    with pytest.raises(ValueError, match="`terminal_event`.*'left'"):
        run(hj.TerminalEvent(("left", "up")))
    with pytest.raises(ValueError, match="`terminal_event`.*guard 2.*are 2"):
        run(hj.TerminalEvent(2))
    with pytest.raises(ValueError, match="`terminal_event`.*must be a `hj.Term"):
        run(0)
    with pytest.raises(ValueError, match="`terminal_event`.*one `count`"):
        run(hj.TerminalEvent(0, jnp.array([1, 2])))
    # Also where the automaton is within another system.
    spent = hj.with_cost(automaton, lambda t, x, dx, mode, args: x[0])
    sol = hj.simulate(
        spent,
        0.0,
        9.0,
        (jnp.array([0.25]), 0.0),
        "up",
        terminal_event=hj.TerminalEvent(("up", "down")),
    )
    np.testing.assert_allclose([sol.t1, sol.x1[1]], [0.75, (1 - 0.25**2) / 2])
    assert repr(sol).startswith("Solution(event_occurred, t=0 to 0.75, mode='down'")


def test_mark_without_a_reset():
    # It leads to where it is watched, and could fire again.
    fall = lambda t, x, args: jnp.stack([x[1], -args])
    mark = hj.Transition("fall", "fall", lambda t, x, args: x[0])
    system = hj.HybridAutomaton({"fall": fall}, [mark])

    def end(p):
        x0 = jnp.stack([p[0], 0 * p[0]])
        sol = hj.simulate(
            system, 0.0, 9.0, x0, "fall", p[1], terminal_event=hj.TerminalEvent(0)
        )
        return jnp.stack([sol.t1, *sol.x1])

    def exact(p):
        t = jnp.sqrt(2 * p[0] / p[1])
        return jnp.stack([t, 0 * t, -p[1] * t])

    p = jnp.array([1.3, 9.81])
    both = jax.jit(lambda p: (end(p), jax.jacrev(end)(p)))
    for got, want in zip(both(p), (exact(p), jax.jacfwd(exact)(p)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-7)


def test_errors():
    for event in (-1, (), 0.5, "up", ("up", 1)):
        with pytest.raises(ValueError, match="Argument `event` must be"):
            hj.TerminalEvent(event)
    for count in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="Argument `count` must be"):
            hj.TerminalEvent(0, count)
    z = jnp.array([1.0, 0.3, 9.81, 0.8])
    with pytest.raises(ValueError, match="`terminal_event`.*`checkpoints`"):
        _bounce(z, 1, checkpoints=2)
    with pytest.raises(ValueError, match="`terminal_event`.*number of a guard"):
        hj.simulate(
            models.BouncingBall(),
            0.0,
            1.0,
            jnp.array([1.0, 0.0]),
            0,
            terminal_event=hj.TerminalEvent(("up", "down")),
        )
