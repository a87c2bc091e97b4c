"""Products of flows and saltation matrices, against derivatives of simulations."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import error


def _check(system, t1, x0s, mode0, **options):
    """For each start: the monodromy, and the derivative in reverse mode."""

    @jax.jit
    def run(x0s):
        def one(x0):
            end = lambda x: hj.simulate(system, 0.0, t1, x, mode0, **options).x1
            found = hj.analysis.monodromy(system, 0.0, t1, x0, mode0, **options)
            return found, jax.jacrev(end)(x0)

        return jax.vmap(one)(x0s)

    found, jacobian = run(x0s)
    for i in range(x0s.shape[0]):
        assert error(found.matrix[i], jacobian[i]) < 1e-6
        product = np.linalg.multi_dot(np.asarray(found.factors[i])[::-1])
        assert error(product, found.matrix[i]) < 1e-12
    return found


def test_thrown_ball():
    # Bounces on the ground and on a wall, also on both at once: the last one.
    system = models.ThrownBall(drag=0.0, wall_height=3.0)
    t = np.sqrt(2 / 9.81)
    x0s = jnp.array(
        [[0.0, 1.0, 6.0, 0.0], [0.5, 0.4, 5.0, 1.0], [3.0, 1.0, 1 / t, 0.0]]
    )
    found = _check(system, 1.4, x0s, 0, max_events=6, max_steps=64)
    counts = found.solution.events.count
    np.testing.assert_array_equal(found.count, 2 * counts + 1)
    log = jax.tree.map(lambda a: a[2], found.solution.events)
    assert log.t[0] == log.t[1]
    # One factor for an instant.
    np.testing.assert_array_equal(found.factors[2, 1], np.eye(4))
    assert np.max(np.abs(found.factors[2, 3] - np.eye(4))) > 1
    # The event of another is the saltation matrix.
    saltation = jax.jit(lambda *here: hj.saltation_matrix(system, *here))
    for i in range(2):
        log = jax.tree.map(lambda a, i=i: a[i], found.solution.events)
        for k in range(int(log.count)):
            here = log.t[k], log.x_before[k], log.mode_before[k], log.event[k]
            matrix = saltation(*here)
            np.testing.assert_allclose(found.factors[i, 2 * k + 1], matrix, atol=1e-12)
        padding = found.factors[i, 2 * int(log.count) + 1 :]
        np.testing.assert_array_equal(
            padding, np.broadcast_to(np.eye(4), padding.shape)
        )


class _Pulses(hj.AbstractHybridSystem):
    """Integrators, whose spikes push the others at once: over their thresholds, too."""

    weights: jax.Array

    def flow(self, t, x, mode, args):
        return 1.0 - jnp.array([0.1, 0.3, 0.2]) * x

    def guards(self, t, x, mode, args):
        return 1.0 - x

    def jump(self, t, x, mode, event, args):
        fires = jnp.arange(3) == event
        return jnp.where(fires, 0.2 * x, x + self.weights[event]), mode


@pytest.mark.thorough
def test_cascade():
    # What is inside its guard set happens when that was entered: one factor for all.
    weights = jnp.array([[0.0, 0.3, 0.05], [0.05, 0.0, 0.4], [0.05, 0.05, 0.0]])
    x0s = jnp.array([[0.8, 0.7, 0.5], [0.5, 0.2, 0.1], [0.5, 0.6, 0.9]])
    found = _check(_Pulses(weights), 1.5, x0s, 0, max_events=12, max_steps=64)
    log = found.solution.events
    assert np.sum(log.t[0, 1:] == log.t[0, :1]) >= 2
    followed = np.broadcast_to(np.eye(3), (3, 3))
    np.testing.assert_array_equal(found.factors[0, 1], followed)


def test_errors():
    ball = models.BouncingBall()
    with pytest.raises(ValueError, match="`t1` must be a real scalar"):
        hj.analysis.monodromy(ball, 0.0, "1", jnp.ones(2), 0)
    with pytest.raises(hj.SimulationError, match="max_events"):
        hj.analysis.monodromy(ball, 0.0, 2.0, jnp.ones(2), 0, max_events=1)
    failed = hj.analysis.monodromy(
        ball, 0.0, 2.0, jnp.ones(2), 0, max_events=1, throw=False
    )
    assert failed.result == hj.analysis.RESULTS.max_events_reached
    assert np.all(np.isnan(failed.matrix))
