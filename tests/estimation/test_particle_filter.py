import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from . import ball


TIMES = np.array([0.2, 0.3, 0.6, 0.8])
GRAVITY, RESTITUTION, DEVIATION, PROCESS = 9.8, 0.7, 0.03, 0.03
# From the second, some of the particles bounce twice between two measurements, which is
# more than they may; and the third is nowhere.
STARTS = np.array([[1.0, 0.1], [0.16, 0.0], [np.nan, 0.0]])
ROOT0 = np.array([[0.02, 0.0], [0.01, 0.03]])


def run(x0, ys, key, number=1000):
    return hj.estimation.particle_filter(
        hj.models.BouncingBall(GRAVITY, RESTITUTION),
        0.0,
        TIMES,
        ys,
        x0,
        ROOT0,
        0,
        key=key,
        num_particles=number,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=DEVIATION * jnp.eye(1),
        process_root=PROCESS * jnp.eye(2),
        max_steps=32,
        max_events=1,
        throw=False,
    )


@functools.cache
def cases():
    noise = DEVIATION**2, PROCESS**2, GRAVITY, RESTITUTION
    of = lambda ys: ball.kalman_filter(STARTS[0], ROOT0 @ ROOT0.T, TIMES, ys, *noise)
    ys = np.full((3, len(TIMES)), np.nan)
    ys[0] = of(ys[0])[0][:, 0]
    ys[0] += DEVIATION * np.random.default_rng(1).normal(size=len(TIMES))
    ys[0, 1] = np.nan
    ys[1:, 0] = 0.05
    program = jax.jit(
        jax.vmap(run), compiler_options=hj.compiler_options("fast_to_compile")
    )
    out = program(STARTS, ys[:, :, None], jr.split(jr.key(0), 3))
    return of(ys[0]), jax.tree.map(np.asarray, out)


def test_near_the_kalman_filter():
    # All of its noise is small: the filter of first order is nearly right.
    (xs, Ps, likelihood, _), out = cases()
    spread = np.sqrt(np.diagonal(Ps, axis1=1, axis2=2))
    error = spread / np.sqrt(out.effective[0])[:, None]
    assert np.all(np.abs(out.means[0] - xs) < 5 * error)
    size = spread[:, :, None] * spread[:, None, :]
    assert np.all(np.abs(out.covariances[0] - Ps) < 0.2 * size)
    assert abs(out.log_likelihood[0] - likelihood) < 0.1
    np.testing.assert_allclose(np.exp(out.log_weights[0]).sum(axis=1), 1)
    np.testing.assert_allclose(out.log_likelihoods[0].sum(), out.log_likelihood[0])
    assert np.all(out.effective[:2] <= 1000 + 1e-6)


def test_failed_particles():
    _, out = cases()
    RESULTS = hj.estimation.RESULTS
    names = [RESULTS.successful, RESULTS.successful, RESULTS.no_particles]
    expected = [item._value for item in names]
    np.testing.assert_array_equal(out.result._value, expected)
    # Those that fail have no weight, and the others have all of it.
    failed = np.isneginf(out.log_weights[1, 2])
    assert 100 < failed.sum() < 900
    assert np.exp(out.log_weights[1, 2][~failed]).sum() == pytest.approx(1)
    assert np.all(np.isfinite(out.means[1])) and np.isfinite(out.log_likelihood[1])
    assert np.all(np.isnan(out.means[2])) and np.isnan(out.log_likelihood[2])


def test_errors():
    with pytest.raises(ValueError, match="`num_particles` must be at least 1"):
        run(STARTS[0], np.zeros((4, 1)), jr.key(0), 0)
    with pytest.raises(ValueError, match="`num_particles` must be an integer, but it"):
        run(STARTS[0], np.zeros((4, 1)), jr.key(0), 10.0)  # pyright: ignore
    with pytest.raises(RuntimeError, match="has no derivative, as particles are drawn"):
        value = lambda x: run(x, np.zeros((4, 1)), jr.key(0)).log_likelihood
        jax.eval_shape(jax.grad(value), jnp.asarray(STARTS[0]))
