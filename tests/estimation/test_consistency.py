"""Is the covariance that of the error? Trials of a ball whose sensor sees nothing of
the impacts, so that it cannot be unknown, at a measurement, whether there was one."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from . import ball


TRIALS, STEPS, DT = 500, 100, 0.05
GRAVITY, RESTITUTION = 9.8, 0.7
START, VARIANCE0, PROCESS, NOISE = np.array([20.0, 0.0]), 0.1, 0.01, 0.025
BLIND = 1.5  # the height below which nothing is measured


@functools.cache
def trials():
    """True states, and their heights as measured, at every tenth of the times."""
    rng = np.random.default_rng(1)
    x = START + np.sqrt(VARIANCE0) * rng.normal(size=(TRIALS, 2))
    xs = []
    for _ in range(STEPS):
        x = x + np.sqrt(PROCESS) * rng.normal(size=x.shape)
        # From this height, it bounces once in a step at most.
        x, _ = ball.advance(x, DT, GRAVITY, RESTITUTION)
        xs.append(x)
    xs = np.stack(xs, axis=1)
    ys = xs[:, :, 0] + np.sqrt(NOISE) * rng.normal(size=xs.shape[:2])
    ys[xs[:, :, 0] < BLIND] = np.nan
    ys[:, np.arange(STEPS) % 10 != 9] = np.nan
    return xs, ys


def filtered(ys, saltation):
    return hj.estimation.kalman_filter(
        hj.models.BouncingBall(GRAVITY, RESTITUTION),
        0.0,
        DT * np.arange(1, STEPS + 1),
        ys[:, None],
        jnp.asarray(START),
        np.sqrt(VARIANCE0) * jnp.eye(2),
        0,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=np.sqrt(NOISE) * jnp.eye(1),
        # The noise of a step is that of a unit of time, times its length.
        process_root=np.sqrt(PROCESS / DT) * jnp.eye(2),
        saltation=saltation,
        max_steps=64,
        throw=False,
    )


SALTED, NAIVE = 0, 1


@functools.cache
def squares():
    """Normalised squares of errors and of innovations, by kind of filter; NaN where it
    cannot be known whether the ball has bounced, and where nothing was measured."""
    xs, ys = trials()
    batch = jax.vmap(jax.vmap(filtered, (0, None)), (None, 0))
    program = jax.jit(batch, compiler_options=hj.compiler_options("fast_to_compile"))
    out = program(ys, np.array([True, False]))
    assert np.all(out.result == hj.estimation.RESULTS.successful)
    error = np.asarray(out.xs) - xs
    white = np.linalg.solve(np.asarray(out.roots), error[..., None])[..., 0]
    nees = np.where(xs[:, :, 0] > BLIND, np.sum(white**2, axis=-1), np.nan)
    return nees, np.where(np.isnan(ys), np.nan, out.nis)


def score(values, expected):
    """The mean over time of each trial: by how many standard errors the mean of these
    is off. Trials are independent, times are not."""
    each = np.nanmean(values, axis=1)
    return (each.mean() - expected) / (each.std(ddof=1) / np.sqrt(TRIALS))


def test_consistent():
    nees, nis = squares()
    assert abs(score(nees[SALTED], 2)) < 1.96
    assert abs(score(nis[SALTED], 1)) < 1.96


def test_without_saltation():
    nees, nis = squares()
    assert abs(score(nees[NAIVE], 2)) > 1.96
    assert abs(score(nis[NAIVE], 1)) > 1.96


def test_after_an_impact():
    # At each time until something is measured again, the mean over trials.
    nees, _ = squares()
    step = np.arange(43, 49)
    low, high = chi2.ppf([0.025, 0.975], 2 * TRIALS) / TRIALS
    mean = np.nanmean(nees[:, :, step], axis=1)
    assert np.all((low < mean[SALTED]) & (mean[SALTED] < high))
    assert np.all(mean[NAIVE] < low)
