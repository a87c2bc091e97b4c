"""What `saveat` asks for, at the edges."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import BouncingBall

from ..helpers import batch_jacobians, bouncing_ball


_ball = BouncingBall()


def test_three_subs():
    # A tuple of three is not the triple of times, states and modes.
    subs = (
        dfx.SubSaveAt(t0=True),
        dfx.SubSaveAt(t1=True, fn=lambda t, x, args: (x[0], x[1], t)),
        dfx.SubSaveAt(ts=jnp.array([0.2, 0.7])),
    )
    sol = hj.simulate(
        _ball, 0.0, 1.0, jnp.array([1.0, 0.0]), 0, saveat=dfx.SaveAt(subs=subs)
    )
    truth = lambda t: bouncing_ball(1.0, 0.8, t)
    assert [ts.tolist() for ts in sol.ts] == [[0.0], [1.0], [0.2, 0.7]]
    assert [modes.shape for modes in sol.modes] == [(1,), (1,), (2,)]
    start, end, between = sol.xs
    np.testing.assert_array_equal(start, [[1.0, 0.0]])
    np.testing.assert_allclose(jnp.concatenate(end), [*truth(1.0), 1.0], atol=1e-8)
    np.testing.assert_allclose(between, [truth(0.2), truth(0.7)], atol=1e-8)


def test_no_time_at_all():
    # The start is the end: in the air, and on the floor, where it bounces at once.
    def outcome(z, t0):
        saveat = dfx.SaveAt(t0=True, ts=jnp.stack([t0 + 0 * z[2]]), t1=True)
        sol = hj.simulate(_ball, t0, z[2], z[:2], 0, saveat=saveat)
        return jnp.concatenate([*sol.xs, sol.evaluate(t0)]), sol.ts

    t0 = np.array([0.0, 1.7, 0.0, 1.7])
    air, floor = [[1.0, 0.3]] * 2, [[0.0, -1.0]] * 2
    z = jnp.asarray(np.column_stack([air + floor, t0]))
    value, forward, reverse, ts = batch_jacobians(outcome)(z, jnp.asarray(t0))
    np.testing.assert_array_equal(ts, np.stack([t0] * 3, axis=1))
    x1 = np.array(air + [[0.0, 0.8]] * 2)
    np.testing.assert_allclose(value, np.tile(x1, 4), atol=1e-12)
    # Both modes, at the start and at the end.
    ends = np.array([0, 1, 4, 5])
    np.testing.assert_allclose(reverse[:, ends], forward[:, ends], atol=1e-12)
    in_the_air = forward[:2, :6].reshape(2, 3, 2, 3)
    expected = np.broadcast_to(np.eye(2), (2, 3, 2, 2))
    np.testing.assert_allclose(in_the_air[..., :2], expected, atol=1e-12)
    # Only the end moves with `t1`.
    np.testing.assert_allclose(in_the_air[:, 2, :, 2], [[0.3, -9.81]] * 2, atol=1e-12)
    np.testing.assert_allclose(in_the_air[:, 0, :, 2], 0.0, atol=1e-12)


def test_function_of_states():
    # A function that has no derivative at NaN, of times and states that there are not:
    # unused slots, and what a failed simulation did not reach. Next to it the states
    # themselves.
    fn = lambda t, x, args: (jnp.sqrt(args * x[1] ** 2), x[0] > 0.5)
    subs = [dfx.SubSaveAt(steps=True), dfx.SubSaveAt(ts=[0.2, 0.9], t1=True)]
    subs += [dfx.SubSaveAt(steps=s.steps, ts=s.ts, t1=s.t1, fn=fn) for s in subs]

    def speeds(z, max_dt):
        controller = dfx.PIDController(rtol=1e-8, atol=1e-8, dtmax=max_dt)
        sol = hj.simulate(
            _ball,
            0.0,
            1.0,
            z[:2],
            0,
            z[2],
            saveat=dfx.SaveAt(subs=subs),
            stepsize_controller=controller,
            max_steps=32,
            max_events=4,
            throw=False,
        )
        *states, (steps, high), (times, _) = sol.xs
        exist = [jnp.isfinite(ts) & (ts <= sol.stats["t_end"]) for ts in sol.ts]
        values = [jnp.sqrt(z[2]) * jnp.abs(x[:, 1]) for x in states]
        values = [*values, steps, times]
        kept = [jnp.where(e, v, 0) for e, v in zip(exist, values, strict=True)]
        plain, got = (jnp.sum(jnp.concatenate(part)) for part in (kept[:2], kept[2:]))
        return jnp.stack([got, plain]), (steps, high, times, exist[0])

    # The second lane needs more steps than it may take; its derivatives are NaN.
    lanes, max_dt = jnp.array([[1.0, 0.3, 2.0]] * 2), jnp.array([0.1, 0.01])
    _, *jacobians, out = batch_jacobians(speeds)(lanes, max_dt)
    for jacobian in jacobians:
        np.testing.assert_allclose(jacobian[0, 0], jacobian[0, 1], rtol=1e-10)
        assert np.isnan(jacobian[1]).all()
    steps, high, times, used = out
    np.testing.assert_array_equal(np.isnan(steps), ~used)
    assert high.dtype == bool
    assert np.isfinite(times[0]).all()
    np.testing.assert_array_equal(np.isnan(times[1]), [False, True, True])


def test_function_of_states_in_a_masked_loss():
    # Of a lane that failed and is left out, nothing is seen.
    saveat = dfx.SaveAt(ts=[0.2, 0.9], fn=lambda t, x, args: jnp.sqrt(args * x[1] ** 2))

    def loss(factor, q):
        simulate = lambda q: hj.simulate(
            _ball,
            0.0,
            1.0,
            jnp.stack([q, 0.0 * q]),
            0,
            factor,
            saveat=saveat,
            max_steps=32,
            max_events=2,
            throw=False,
        )
        sol = jax.vmap(simulate)(q)
        okay = sol.result == hj.RESULTS.successful
        return jnp.sum(jnp.where(okay[:, None], sol.xs, 0.0)), okay

    gradient, okay = jax.jit(jax.grad(loss, has_aux=True))(2.0, jnp.array([1.0, 0.01]))
    assert okay.tolist() == [True, False]
    speeds = np.abs([bouncing_ball(1.0, 0.8, t)[1] for t in (0.2, 0.9)])
    np.testing.assert_allclose(gradient, np.sum(speeds) / np.sqrt(8), rtol=1e-7)


#
# Times outside of the interval
#


@pytest.mark.parametrize(
    "ts, message",
    {
        "before": (
            [0.5, 2.5],
            "between.*1.0 and 2.0, but one of them is 0.5",
        ),
        "beyond": (
            [1.5, 2.5],
            "between.*1.0 and 2.0, but one of them is 2.5",
        ),
        "nan": ([1.5, np.nan], "one of them is nan"),
        "unsorted": ([1.2, 1.7, 1.5], "ascending.*1.5 comes after 1.7.*Sort"),
    }.values(),
)
def test_times_that_cannot_be_saved(ts, message):
    subs = [dfx.SubSaveAt(ts=ts), dfx.SubSaveAt(ts=[1.5])]
    saveat = dfx.SaveAt(subs=subs)
    solve = lambda x0: hj.simulate(_ball, 1.0, 2.0, x0, 0, saveat=saveat).xs
    for call in (solve, jax.jit(solve)):
        with pytest.raises(ValueError, match=message):
            call(jnp.array([1.0, 0.0]))


def test_traced_times_that_cannot_be_saved():
    rounding = 4 * np.finfo(float).eps
    good = [[1.0, 1.5, 2.0], [1.2, 1.2, 1.2], [1.0 - rounding, 1.5, 2.0 + 2 * rounding]]
    bad = [[0.9, 1.5, 2.0], [1.2, 1.1, 1.3], [1.0, 1.5, 2.1], [1.0, np.nan, 2.0]]
    ts = jnp.array(good + bad)

    @jax.jit
    @jax.vmap
    def lanes(ts):
        def height(ts):
            sol = hj.simulate(
                _ball,
                1.0,
                2.0,
                jnp.array([1.0, 0.0]),
                0,
                saveat=dfx.SaveAt(ts=ts),
                throw=False,
                max_steps=32,
                max_events=4,
            )
            return jnp.sum(sol.xs[:, 0]), (sol.xs, sol.result)

        return jax.grad(height, has_aux=True)(ts)

    slopes, (xs, results) = lanes(ts)
    fine = np.arange(len(ts)) < len(good)
    assert (results == hj.RESULTS.invalid_times).tolist() == (~fine).tolist()
    for k, times in enumerate(good):
        truth = np.array([bouncing_ball(1.0, 0.8, t - 1.0) for t in times])
        np.testing.assert_allclose(xs[k], truth, atol=1e-8)
        np.testing.assert_allclose(slopes[k, 1], truth[1, 1], atol=1e-7)
    assert not np.isfinite(np.asarray(xs)[~fine]).all(axis=(1, 2)).any()
    # Traced, but known when the program ends.
    with pytest.raises(hj.SimulationError, match="`saveat`.*`jnp.minimum\\(ts, t1\\)`"):
        jax.grad(
            lambda t1: hj.simulate(
                _ball,
                1.0,
                t1,
                jnp.array([1.0, 0.0]),
                0,
                saveat=dfx.SaveAt(ts=[1.5, 2.5]),
                max_steps=32,
                max_events=4,
            ).xs[0, 0]
        )(2.0)
