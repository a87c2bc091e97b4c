"""The filter of a bouncing ball, beside one in closed form."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import batch_jacobians
from . import ball


# The first is the start, and two are the same.
TIMES = np.array([0.0, 0.2, 0.35, 0.4, 0.4, 0.47, 0.6, 0.85, 1.1])
NAMES = (
    "height",
    "speed",
    "gravity",
    "restitution",
    "deviation",
    "process",
    "diffusion",
)


def filtered(z, ys):
    height, speed, gravity, restitution, deviation, process, diffusion = z
    return hj.estimation.kalman_filter(
        hj.models.BouncingBall(gravity, restitution),
        0.0,
        TIMES,
        ys[:, None],
        jnp.stack([height, speed]),
        0.1 * jnp.eye(2),
        0,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=deviation * jnp.eye(1),
        process_root=process * jnp.eye(2),
        diffusion=diffusion * jnp.array([[0.0], [1.0]]),
        throw=False,
    )


@functools.cache
def program():
    def outcome(z, ys):
        out = filtered(z, ys)
        P = out.roots[-1] @ out.roots[-1].T
        likelihood = out.log_likelihood
        return jnp.concatenate([likelihood[None], out.xs[-1], P.ravel()]), out

    return batch_jacobians(outcome)


def reference(z, ys):
    height, speed, gravity, restitution, deviation, process, diffusion = z
    x, P = np.array([height, speed]), 0.01 * np.eye(2)
    rest = deviation**2, process**2, gravity, restitution, diffusion
    return ball.kalman_filter(x, P, TIMES, ys, *rest)


@functools.cache
def cases():
    # Heights from which the first bounce is before, between and after measurements.
    heights = np.linspace(0.75, 1.2, 10)
    zs = np.stack([heights, *np.ones((6, 10))], axis=1)
    zs[:, 1:] = [0.1, 9.8, 0.7, 0.05, 0.05, 0.2]
    rng = np.random.default_rng(0)
    ys = np.stack([reference(z, np.full(len(TIMES), np.nan))[0][:, 0] for z in zs])
    ys = ys + 0.03 * rng.normal(size=ys.shape)
    ys[:, 6] = np.nan
    # A measurement says that the ball has bounced before: it was predicted above the
    # ground.
    ys[-3:, 4] = -1.5
    # A lane that fails.
    zs = np.concatenate([zs, [[np.nan, *zs[0, 1:]]]])
    ys = np.concatenate([ys, ys[:1]])
    return zs, ys, program()(jnp.asarray(zs), jnp.asarray(ys))


def test_values():
    zs, ys, (*_, out) = cases()
    for i, (z, y) in enumerate(zip(zs[:-1], ys, strict=False)):
        xs, Ps, likelihood, rewound = reference(z, y)
        np.testing.assert_allclose(out.xs[i], xs, atol=1e-8)
        P = out.roots[i] @ out.roots[i].swapaxes(1, 2)
        np.testing.assert_allclose(P, Ps, atol=1e-9)
        np.testing.assert_allclose(out.log_likelihood[i], likelihood, atol=1e-8)
        np.testing.assert_array_equal(out.rewound[i], rewound)
        np.testing.assert_array_equal(out.measured[i], ~np.isnan(y))
    assert np.sum(out.rewound) >= 3
    assert not np.any(out.unreachable)
    # The first bounce is in three of the intervals.
    bounced = {np.argmax(xs[:, 1] > 0.2) for xs in np.asarray(out.xs[:-1])}
    assert bounced == {4, 5, 6}


def test_gradients():
    # Those of the closed form; the bounce moves from one interval into another.
    zs, ys, (_, columns, rows, _) = cases()
    for i, (z, y) in enumerate(zip(zs[:-1], ys, strict=False)):

        def value(z, y=y):
            xs, Ps, likelihood, _ = reference(z, y)
            return np.concatenate([[likelihood], xs[-1], Ps[-1].ravel()])

        for j, name in enumerate(NAMES):
            step = 1e-6 * np.eye(len(NAMES))[j]
            slope = (value(z + step) - value(z - step)) / 2e-6
            for got in (columns[i, :, j], rows[i, :, j]):
                bound = 1e-6 * np.maximum(1, np.abs(slope))
                assert np.all(np.abs(got - slope) < bound), (i, name)


def test_failed_lane():
    zs, ys, (values, *_, out) = cases()
    failed = out.result != hj.estimation.RESULTS.successful
    np.testing.assert_array_equal(failed, [False] * 10 + [True])
    assert np.all(np.isnan(out.xs[-1])) and np.isnan(values[-1, 0])
    assert np.all(np.isfinite(values[:-1]))


@pytest.mark.thorough
def test_single_precision():
    zs, ys, (*_, out) = cases()
    single = jax.jit(
        jax.vmap(lambda z, y: filtered(z, y.astype(z.dtype))),
        compiler_options=hj.compiler_options("fast_to_compile"),
    )
    got = single(jnp.asarray(zs, jnp.float32), ys)
    assert got.roots.dtype == jnp.float32
    np.testing.assert_allclose(got.xs, out.xs, atol=2e-4)
    square = lambda roots: roots @ roots.swapaxes(-1, -2)
    np.testing.assert_allclose(square(got.roots), square(out.roots), atol=1e-5)
    np.testing.assert_allclose(got.log_likelihood, out.log_likelihood, rtol=1e-3)
