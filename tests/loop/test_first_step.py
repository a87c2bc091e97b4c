"""The first step, at the start and after each event: `dt0`."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax import models

from ..helpers import ball_outcome, error


_DT0 = 0.03
_PID = dfx.PIDController(rtol=1e-8, atol=1e-8)
_STEPS = dfx.SaveAt(t0=True, steps=True)
_BALL = models.BouncingBall()


def _after_events(sol):
    """The times at which steps end, and the length of the one after each event."""
    ts, events = (np.asarray(t)[np.isfinite(t)] for t in (sol.ts, sol.events.t))
    at = np.searchsorted(ts, events)
    np.testing.assert_array_equal(ts[at], events)
    return ts, np.diff(ts)[at]


def test_after_events():
    # A ball needs no short steps, and so its controller takes long ones by itself.
    @jax.jit
    def simulate(z, dt0):
        system = models.BouncingBall(z[2], z[3])
        sol = hj.simulate(
            system, 0.0, 2.0, z[:2], 0, dt0=dt0, saveat=_STEPS, throw=False
        )
        return jnp.stack([*sol.x1, *sol.events.t[:3]]), sol

    run = lambda z, dt0: jax.linearize(lambda z: simulate(z, dt0), z, has_aux=True)
    z = jnp.array([1.0, 0.0, 9.81, 0.8])
    for dt0 in (_DT0, 0.01):
        value, push, sol = run(z, dt0)
        ts, after = _after_events(sol)
        assert len(after) == 3
        np.testing.assert_allclose([ts[1], *after], [dt0] * 4, rtol=1e-12)
        assert np.diff(ts).max() > 0.2
        exact = lambda z: ball_outcome(z, 3)
        assert error(value, exact(z)) < 1e-8
        direction = jnp.array([0.3, 1.0, 0.2, 0.1])
        assert error(push(direction), jax.jvp(exact, (z,), (direction,))[1]) < 1e-8
    # Traced, they may be anything.
    for dt0 in (0.0, -0.1, np.nan):
        assert simulate(z, dt0)[1].result == hj.RESULTS.dt_min_reached


def test_other_controllers():
    run = lambda controller: hj.simulate(
        _BALL,
        0.0,
        2.0,
        jnp.array([1.0, 0.0]),
        0,
        dt0=_DT0,
        stepsize_controller=controller,
        saveat=_STEPS,
    )
    # The first event is at 0.452, the third at 1.752.
    stops = [0.47, 1.77]
    sol = run(dfx.ClipStepSizeController(_PID, step_ts=stops))
    ts, after = _after_events(sol)
    assert np.isin(stops, ts).all()
    first, _, third = sol.events.t[:3]
    np.testing.assert_allclose(after, [0.47 - first, _DT0, 1.77 - third], rtol=1e-12)
    # A grid goes on.
    ts, after = _after_events(run(dfx.ConstantStepSize()))
    grid = np.delete(np.linspace(0.0, 2.0, 68), 1)  # diffrax begins with `dt0`
    assert np.abs(ts[:, None] - grid).min(axis=0).max() < 1e-12


def test_projection():
    system = hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.where(b > 0, 2.0, 1.0), lambda t, x, args: x - 0.4
    )
    sol = hj.simulate(
        system,
        0.0,
        1.0,
        jnp.array([0.0]),
        dt0=_DT0,
        event_method=hj.Project(0.01),
        saveat=_STEPS,
    )
    ts, after = _after_events(sol)
    np.testing.assert_allclose([ts[1], *after], [_DT0] * 2, rtol=1e-12)
    np.testing.assert_allclose(sol.x1, [1.6], rtol=1e-12)
