"""Branches of orbits, and what happens on them, against closed forms."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.analysis import continue_orbit, Period, Section

from .maps import MapInTime


_ONE, _TWO = Section(0, max_time=1.5), Section(0, 2, max_time=2.5)
_FEW: Any = dict(max_events=3, max_steps=32)


def test_fold_and_period_doubling():
    # y -> y + p - y^2: orbits y = +-sqrt(p) with multipliers 1 - 2 y.
    system_of = lambda p: MapInTime(lambda y: y + p - y**2)
    branch = continue_orbit(
        system_of,
        0.5,
        _ONE,
        jnp.array([0.7, 0.0]),
        0,
        step=0.1,
        num_attempts=30,
        bounds=(-1.0, 1.2),
        **_FEW,
    )
    assert branch.result == hj.analysis.RESULTS.successful
    n = int(branch.count)
    y, p = np.asarray(branch.x[:n, 0]), np.asarray(branch.parameter[:n])
    np.testing.assert_allclose(y**2, p, atol=1e-9)
    assert p[-1] > 1.2 and np.all(np.isnan(branch.parameter[n:]))
    sizes = np.max(np.abs(branch.multipliers[:n]), axis=1)
    np.testing.assert_allclose(sizes, np.abs(1 - 2 * y), atol=1e-6)
    np.testing.assert_array_equal(branch.is_stable[:n], np.abs(1 - 2 * y) < 1)
    (doubling,) = branch.bifurcations()
    assert doubling.kind == "period_doubling"
    np.testing.assert_allclose(doubling.parameter, 1.0, atol=1e-3)
    np.testing.assert_allclose(doubling.x, [1, 0], atol=1e-3)

    # The other way: through the fold at 0.
    back = continue_orbit(
        system_of,
        0.5,
        _ONE,
        jnp.array([0.7, 0.0]),
        0,
        step=-0.1,
        num_attempts=30,
        bounds=(-1.0, 1.2),
        **_FEW,
    )
    (fold,) = back.bifurcations()
    assert fold.kind == "fold"
    np.testing.assert_allclose([fold.parameter, fold.x[0]], [0, 0], atol=1e-3)
    assert back.x[int(back.count) - 1, 0] < -1

    # The doubled branch: y = (1 +- sqrt(p - 1)) is mapped onto each other.
    x0, tangent = branch.doubled(doubling)
    doubled = continue_orbit(
        system_of,
        doubling.parameter,
        _TWO,
        x0,
        0,
        step=0.05,
        num_attempts=12,
        tangent=tangent,
        **_FEW,
    )
    n = int(doubled.count)
    y, p = np.asarray(doubled.x[:n, 0]), np.asarray(doubled.parameter[:n])
    assert n == 13 and p[-1] > 1.1
    np.testing.assert_allclose((y - 1) ** 2, p - 1, atol=1e-9)
    with pytest.raises(ValueError, match="must be a period doubling"):
        branch.doubled(fold)


def test_neimark_sacker():
    # The delayed logistic map: at 2 its orbit 1 - 1/a loses its stability to a circle.
    branch = continue_orbit(
        lambda a: MapInTime(lambda y: jnp.stack([a * y[0] * (1 - y[1]), y[0]])),
        1.7,
        _ONE,
        jnp.array([0.41, 0.41, 0.0]),
        0,
        step=0.05,
        num_attempts=25,
        bounds=(1.0, 2.3),
        **_FEW,
    )
    (found,) = branch.bifurcations()
    assert found.kind == "neimark_sacker"
    np.testing.assert_allclose(found.parameter, 2, atol=1e-3)
    np.testing.assert_allclose(found.x, [0.5, 0.5, 0.0], atol=1e-3)


class _Hopf(hj.AbstractHybridSystem):
    """Its orbits are circles of radius sqrt(p), of period 2 pi."""

    p: jax.Array

    def flow(self, t, x, mode, args):
        turn = jnp.stack([-x[1], x[0]])
        return turn + (self.p - jnp.sum(x**2)) * x

    def guards(self, t, x, mode, args):
        return jnp.zeros((0,))

    def jump(self, t, x, mode, event, args):
        return x, mode


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_unknown_period(dtype):
    # Without any event, and in the precision of the state.
    branch = continue_orbit(
        _Hopf,
        0.3,
        Period(6.0, autonomous=True),
        jnp.array([0.5, 0.0], dtype),
        0,
        step=0.05,
        num_attempts=8,
        max_steps=128,
    )
    assert branch.x.dtype == branch.parameter.dtype == dtype
    n = int(branch.count)
    tol = 1e-7 if dtype == jnp.float64 else 1e-3
    assert n == 9 and branch.parameter[8] > 0.4
    radius = np.linalg.norm(branch.x, axis=1)
    np.testing.assert_allclose(radius**2, branch.parameter, atol=tol)
    np.testing.assert_allclose(branch.period, 2 * np.pi, rtol=tol)
    sizes = np.sort(np.abs(branch.multipliers), axis=1)
    exact = np.exp(-4 * np.pi * np.asarray(branch.parameter))
    np.testing.assert_allclose(sizes[:, 0], exact, atol=tol)
    np.testing.assert_allclose(sizes[:, 1], 1, atol=10 * tol)
    assert np.all(branch.is_stable) and branch.bifurcations() == []


def test_grazing():
    # Where the stop is only touched: the amplitude of the free oscillation is known.
    w, d, c = 2.0, 0.5, 0.1
    branch = continue_orbit(
        lambda a: models.ImpactOscillator(a, w, d, damping=c),
        1.6,
        Period(2 * np.pi / w),
        jnp.array([-2.29, 0.51]),
        0,
        step=-0.1,
        num_attempts=60,
        max_events=3,
        max_steps=64,
    )
    assert branch.result == hj.analysis.RESULTS.grazing
    *_, last = branch.bifurcations()
    assert last.kind == "grazing"
    exact = d * np.hypot(1 - w**2, c * w)
    np.testing.assert_allclose(last.parameter, exact, rtol=1e-5)


def test_errors():
    system_of = lambda p: MapInTime(lambda y: y + p - y**2)
    go = lambda x0=(0.7, 0.0), **more: continue_orbit(
        system_of,
        0.5,
        _ONE,
        jnp.array(x0),
        0,
        **{**dict(step=0.1, num_attempts=5, **_FEW), **more},
    )
    with pytest.raises(ValueError, match="`num_attempts` must be a positive integer"):
        go(num_attempts=0)
    with pytest.raises(ValueError, match=r"`tangent` must have.*\(3,\).*\(2,\)"):
        go(tangent=jnp.ones(2))
    with pytest.raises(hj.SimulationError, match="vector field.*NaN or infinity"):
        go(x0=(jnp.nan, 0.0))
