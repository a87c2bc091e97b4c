"""Is the covariance that of the error? Trials of a ball whose sensor sees nothing of the
impacts, so that it cannot be unknown, at a measurement, whether there was one."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from . import ball


TRIALS, STEPS, DT = 500, 100, 0.05
GRAVITY, RESTITUTION = 9.8, 0.7
START, VARIANCE0, PROCESS, NOISE = np.array([20.0, 0.0]), 0.1, 0.01, 0.025
BLIND = 1.5  # the height below which nothing is measured


@functools.cache
def trials():
    """True states, and their heights as measured: at all times, and at every tenth."""
    rng = np.random.default_rng(1)
    x = START + np.sqrt(VARIANCE0) * rng.normal(size=(TRIALS, 2))
    xs = []
    for _ in range(STEPS):
        x = x + np.sqrt(PROCESS) * rng.normal(size=x.shape)
        # From this height, it bounces once in a step at most.
        tau = ball.impact_time(x, GRAVITY)[:, None]
        down, up = x.copy(), x.copy()
        fall = np.sqrt(x[:, 1] ** 2 + 2 * GRAVITY * x[:, 0])
        up[:, 0], up[:, 1] = 0, RESTITUTION * fall
        bounced = np.stack(
            [
                up[:, 1] * (DT - tau[:, 0]) - GRAVITY * (DT - tau[:, 0]) ** 2 / 2,
                up[:, 1] - GRAVITY * (DT - tau[:, 0]),
            ],
            axis=1,
        )
        x = np.where(tau <= DT, bounced, ball.flow(down, DT, GRAVITY))
        xs.append(x)
    xs = np.stack(xs, axis=1)
    ys = xs[:, :, 0] + np.sqrt(NOISE) * rng.normal(size=xs.shape[:2])
    ys[xs[:, :, 0] < BLIND] = np.nan
    sparse = np.full_like(ys, np.nan)
    sparse[:, 9::10] = ys[:, 9::10]
    return xs, np.stack([ys, sparse])


@functools.cache
def filtered(saltation):
    def run(ys, saltation):
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

    return run


@functools.cache
def errors():
    """By kind of filter and by how much was measured: the normalised squares of errors
    and of innovations."""
    xs, ys = trials()
    run = jax.vmap(filtered(True), (0, None))
    program = jax.jit(
        jax.vmap(jax.vmap(run, (0, None)), (None, 0)),
        compiler_options=hj.compiler_options("fast_to_compile"),
    )
    out = program(ys, np.array([True, False]))
    assert np.all(out.result == hj.estimation.RESULTS.successful)
    error = np.asarray(out.xs) - xs
    white = np.linalg.solve(np.asarray(out.roots), error[..., None])[..., 0]
    return np.sum(white**2, axis=-1), np.asarray(out.nis), error


def share_in_band(squares, of, degrees):
    """At how many of the times the mean over trials is in its 95 % band."""
    count = of.sum(axis=0)
    mean = np.sum(squares * of, axis=0) / np.maximum(count, 1)
    low, high = chi2.ppf([[0.025], [0.975]], degrees * count) / np.maximum(count, 1)
    use = count > TRIALS // 2
    return np.mean((low < mean) & (mean < high), where=use), mean
