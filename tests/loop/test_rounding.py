"""Tolerances and steps that suit the dtype, and warnings of those that cannot."""

import functools
import warnings

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import ThrownBall

from ..helpers import error


_simulate = functools.partial(hj.simulate, max_steps=256, max_events=8, throw=False)


def _throw(throws, tol=None):
    """A ball with drag, in the dtype of its throw."""

    def one(throw):
        controller = None if tol is None else dfx.PIDController(rtol=tol, atol=tol)
        x0 = jnp.concatenate([jnp.array([0.0, 1.2], throw.dtype), throw])
        ball = ThrownBall(drag=0.1)
        sol = _simulate(ball, 0.0, 1.5, x0, 0, stepsize_controller=controller)
        return sol.x1, sol.stats["num_steps"]

    return jax.jit(jax.vmap(one))(throws)


def test_default_tolerances():
    throws = np.stack([np.linspace(1, 3, 8), np.linspace(2, 0, 8)], axis=1)
    exact, _ = _throw(jnp.asarray(throws), 1e-12)
    for dtype, tol, expected in ((np.float64, 1e-8, 1e-6), (np.float32, 1e-5, 3e-4)):
        x, steps = _throw(jnp.asarray(throws, dtype))
        same, same_steps = _throw(jnp.asarray(throws, dtype), tol)
        np.testing.assert_array_equal(x, same)
        np.testing.assert_array_equal(steps, same_steps)
        assert x.dtype == dtype and error(x, exact) < expected
    # No step is rejected because of rounding.
    _, in_float64 = _throw(jnp.asarray(throws), 1e-5)
    assert (np.abs(in_float64 - steps) <= 2).all()


def _fall(dtype=jnp.float32, t0=0.0, **kwargs):
    x0 = jnp.array([0.0, 1.2, 1.0, 0.0], dtype)
    # Nothing of what is asked here needs to be compiled.
    run = lambda x0: _simulate(ThrownBall(), t0, t0 + 1, x0, 0, **kwargs).x1
    return jax.eval_shape(run, x0)


def _pid(rtol, atol):
    return dfx.PIDController(rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "match, kwargs",
    [
        (
            "`stepsize_controller` has tolerances, 1e-08 and 1e-08, .*float32.*Leave",
            dict(stepsize_controller=_pid(1e-8, 1e-8)),
        ),
        (
            "`stepsize_controller`",
            dict(
                stepsize_controller=dfx.ClipStepSizeController(
                    _pid(np.float32(1e-7), 0.0)
                )
            ),
        ),
        (
            "`solver` has tolerances of its root finder, 1e-09",
            dict(
                solver=dfx.Kvaerno3(
                    root_finder=dfx.VeryChord(rtol=1e-9, atol=1e-9, norm=jnp.max)
                )
            ),
        ),
        ("`tangent_rtol` is 1e-08, .* 1.2e-05 is taken", dict(tangent_rtol=1e-8)),
        ("`dt0` is 1e-06, .*go nowhere", dict(t0=100.0, dt0=1e-6)),
    ],
)
def test_warnings(match, kwargs):
    with pytest.warns(UserWarning, match=match) as record:
        _fall(**kwargs)
    assert [warning.filename for warning in record] == [__file__]
    # In float64 all of that makes sense.
    _fall(jnp.float64, **kwargs)


def test_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fall()
        # One of the two is enough, and what is traced is not known.
        _fall(stepsize_controller=_pid(1e-8, 1e-4))
        _fall(stepsize_controller=_pid(3e-7, 0.0))
        _fall(dt0=1e-6)
        run = lambda tol: _fall(stepsize_controller=_pid(tol, tol)).shape
        assert jax.jit(lambda tol: jnp.zeros(run(tol)))(1e-9).shape == (4,)


class _Pulled(hj.AbstractHybridSystem):
    """What is pulled to `cos(t)`, with the rate `args[0]`, and stays above the guard,
    which is `args[1]` below that."""

    def flow(self, t, x, mode, args):
        return args[0] * (jnp.cos(t) - x)

    def guards(self, t, x, mode, args):
        return x - jnp.cos(t) + args[1]

    def jump(self, t, x, mode, event, args):
        return x + 1, mode


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_stiff_flow_is_not_rounding(dtype):
    # Explicit steps as long as is stable are off by the tolerance, another way at each
    # point within them: the guard does not go by its rates, step after step.
    rate, below = np.meshgrid([1e3, 3e3], [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3])

    def solve(args):
        return hj.simulate(
            *(_Pulled(), 0.0, 0.5, jnp.ones(1, dtype), 0, args),
            stepsize_controller=_pid(1e-3, 1e-3),
            max_steps=2048,
            max_events=8,
            throw=False,
        )

    args = np.stack([rate.ravel(), below.ravel()], axis=1).astype(dtype)
    sol = jax.jit(jax.vmap(solve))(args)
    assert (sol.result == hj.RESULTS.successful).all()
    assert (sol.events.count == 0).all()
    # Where the start is forgotten.
    k = rate.ravel()
    exact = k * (k * np.cos(0.5) + np.sin(0.5)) / (1 + k**2)
    np.testing.assert_allclose(sol.x1[:, 0], exact, atol=2e-3)
