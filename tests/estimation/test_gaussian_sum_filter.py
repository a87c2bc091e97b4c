"""A ball that is measured while it is uncertain whether it has bounced, beside many
particles, in closed form."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import ball


GRAVITY, RESTITUTION, DEVIATION, PROCESS = 9.8, 0.7, 0.1, 0.05
START, ROOT0 = np.array([1.0, 0.0]), np.array([[0.1, 0.0], [0.06, 0.3]])
IMPACT = np.sqrt(2 / GRAVITY)
# Of the first measurement. The time of the impact has a deviation of 0.04.
TIMES = IMPACT + np.linspace(-0.12, 0.12, 9)
LATER = np.array([0.0, 0.05, 0.3])
NUMBER, STEP = 50_000, 1e-6


class Counting(hj.AbstractHybridSystem):
    """A ball whose mode is how often it has bounced."""

    restitution: jax.Array

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], jnp.asarray(-GRAVITY, x.dtype)])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -self.restitution * x[1]]), mode + 1


def filtered(restitution, x0, root0, ts, ys, number=8):
    return hj.estimation.gaussian_sum_filter(
        Counting(restitution),
        0.0,
        ts,
        ys[:, None],
        x0,
        root0,
        0,
        num_components=number,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=DEVIATION * jnp.eye(1),
        process_root=PROCESS * jnp.eye(2),
        max_steps=64,
        # A component that bounces twice between two measurements fails.
        max_events=1,
        throw=False,
    )


def particles(ts, ys):
    """Log-likelihoods, means, covariances, and how probable it is that the ball has
    bounced."""
    rng = np.random.default_rng(2)
    x = START + rng.normal(size=(NUMBER, 2)) @ ROOT0.T
    weights, bounced = np.full(NUMBER, 1 / NUMBER), np.zeros(NUMBER, bool)
    out, t0 = [], 0.0
    for t, y in zip(ts, ys, strict=True):
        x = x + np.sqrt(t - t0) * PROCESS * rng.normal(size=x.shape)
        x, hit = ball.advance(x, t - t0, GRAVITY, RESTITUTION)
        bounced, t0 = bounced | hit, t
        density = np.exp(-(((y - x[:, 0]) / DEVIATION) ** 2) / 2)
        weights = weights * density / np.sqrt(2 * np.pi) / DEVIATION
        likelihood, weights = np.log(weights.sum()), weights / weights.sum()
        mean = weights @ x
        covariance = (x - mean).T * weights @ (x - mean)
        out.append((likelihood, mean, covariance, weights @ bounced))
    return [np.array(a) for a in zip(*out, strict=True)]


@functools.cache
def cases():
    """For each time of the first measurement; then where there is no doubt; where many
    fail; and where all do."""
    rng = np.random.default_rng(1)
    ts = TIMES[:, None] + LATER[None]
    truth = [ball.predict(START + 0.05, t, GRAVITY, RESTITUTION)[0][0] for t in ts.flat]
    ys = np.reshape(truth, ts.shape) + DEVIATION * rng.normal(size=ts.shape)
    starts = np.stack([START] * 9 + [START, [0.16, 0.0], [np.nan, 0.0]])
    roots = np.stack([ROOT0] * 9 + [0.1 * ROOT0, 0.5 * ROOT0, ROOT0])
    more = np.array([[0.2, 0.3, 0.6], [0.2, 0.6, 0.8], [0.2, 0.6, 0.8]])
    ts, ys = np.concatenate([ts, more]), np.concatenate([ys, 0 * more + 0.1])
    ys[-2, 0] = 0.05
    ys[9] = [0.8, np.nan, 0.3]

    def both(step, *rest):
        of = lambda e: (lambda out: (out.log_likelihood, out))(filtered(e, *rest))
        one = jnp.ones(())
        _, slope, out = jax.jvp(of, (RESTITUTION + step,), (one,), has_aux=True)
        return slope, out

    program = jax.vmap(jax.vmap(both, (None, 0, 0, 0, 0)), (0, *[None] * 4))
    program = jax.jit(program, compiler_options=hj.compiler_options("fast_to_compile"))
    out = program(jnp.array([-STEP, 0.0, STEP]), starts, roots, ts, ys)
    slopes, out = jax.tree.map(np.asarray, out)
    low, _, high = out.log_likelihood
    differences = (high - low) / (2 * STEP)
    return ts, ys, jax.tree.map(lambda a: a[1], out), (slopes[1], differences)


def deviations(covariance):
    return np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))


def test_through_the_impact():
    ts, ys, out, _ = cases()
    bounced = np.asarray(out.probability(lambda mode: mode > 0))
    noise = DEVIATION**2, PROCESS**2, GRAVITY, RESTITUTION
    errors = {"mixture": [], "single": []}
    doubtful = 0
    for i in range(len(TIMES)):
        likelihood, mean, covariance, probable = particles(ts[i], ys[i])
        xs, Ps, single, _ = ball.kalman_filter(
            START, ROOT0 @ ROOT0.T, ts[i], ys[i], *noise
        )
        size = deviations(covariance)
        found = {
            "mixture": (out.log_likelihood[i], out.means[i], out.covariances[i]),
            "single": (single, xs, Ps),
        }
        for name, (log, means, covariances) in found.items():
            width = np.abs(np.log(deviations(covariances) / size))
            error = np.abs(means - mean) / size
            errors[name].append([abs(log - likelihood.sum()), error.max(), width.max()])
        assert np.all(np.abs(bounced[i] - probable) < 0.08)
        doubtful += np.sum((probable > 0.05) & (probable < 0.95))
    assert doubtful >= 6
    mean = {name: np.mean(error, axis=0) for name, error in errors.items()}
    assert np.all(mean["mixture"] < 0.25 * mean["single"])
    assert np.all(np.max(errors["mixture"], axis=0)[:2] < [0.1, 0.3])


def test_without_doubt():
    # Then it is the filter of one hypothesis.
    ts, ys, out, _ = cases()
    noise = DEVIATION**2, PROCESS**2, GRAVITY, RESTITUTION
    P = 0.01 * ROOT0 @ ROOT0.T
    xs, Ps, likelihood, _ = ball.kalman_filter(START, P, ts[9], ys[9], *noise)
    np.testing.assert_allclose(out.means[9], xs, atol=1e-8)
    np.testing.assert_allclose(out.covariances[9], Ps, atol=1e-9)
    np.testing.assert_allclose(out.log_likelihood[9], likelihood, atol=1e-8)
    np.testing.assert_array_equal(np.exp(out.log_weights[9]).max(axis=1), 1)


def test_failed_components():
    _, _, out, _ = cases()
    RESULTS = hj.estimation.RESULTS
    expected = [RESULTS.successful._value] * 11 + [RESULTS.nonfinite_state._value]
    np.testing.assert_array_equal(out.result._value, expected)
    assert np.all(np.isnan(out.means[-1])) and np.isnan(out.log_likelihood[-1])
    np.testing.assert_allclose(np.exp(out.log_weights[:-1]).sum(axis=2), 1)
    assert np.all(np.isfinite(out.means[:-1]))
    best = out.log_weights.max(axis=2)
    at_best = np.take_along_axis(out.log_weights, out.best[..., None], 2)[..., 0]
    np.testing.assert_array_equal(at_best[:-1], best[:-1])
    # Of eight components, those that have failed are missing.
    used = np.isfinite(out.log_weights[10]).sum(axis=1)
    assert used[0] == 8 and 0 < used[1] < 8


def test_derivative():
    *_, (slopes, differences) = cases()
    np.testing.assert_allclose(slopes[:-1], differences[:-1], rtol=1e-6, atol=1e-6)
    assert np.isnan(slopes[-1])


def test_errors():
    run = lambda number: filtered(
        jnp.array(0.7), START, ROOT0, TIMES[:2], np.zeros(2), number
    )
    with pytest.raises(ValueError, match="`num_components` must be at least 1"):
        run(0)
    with pytest.raises(ValueError, match="`num_components` must be an integer, but it"):
        run(2.0)
