"""Covariances through flows and events, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.analysis import propagate_covariance

from ..helpers import error


def _covariance_of_ball(height, root, noise, t1, g, e):
    """Of a ball that bounces, with noise in its acceleration: flights between impacts,
    and the saltation matrix of each."""
    s = root @ root.T
    v, q, t = 0.0, height, 0.0

    def fly(s, h):
        a = np.array([[1, h], [0, 1]])
        added = noise**2 * np.array([[h**3 / 3, h**2 / 2], [h**2 / 2, h]])
        return a @ s @ a.T + added

    while True:
        impact = np.sqrt(v**2 + 2 * g * q)
        h = (v + impact) / g
        if t + h > t1:
            return fly(s, t1 - t)
        xi = np.array([[-e, 0], [(1 + e) * -g / -impact, -e]])
        s = xi @ fly(s, h) @ xi.T
        v, q, t = e * impact, 0.0, t + h


@pytest.mark.parametrize(
    "dtype", [jnp.float64, pytest.param(jnp.float32, marks=pytest.mark.thorough)]
)
def test_bouncing_ball(dtype):
    # With one to four bounces; from a covariance of rank one.
    g, e, noise, t1 = 9.81, 0.8, 0.05, 1.5
    root = np.array([[0.02], [0.03]])

    def run(height):
        x0 = jnp.stack([height, jnp.zeros_like(height)])
        found = propagate_covariance(
            models.BouncingBall(jnp.asarray(g, dtype), jnp.asarray(e, dtype)),
            0.0,
            t1,
            x0,
            root,
            0,
            diffusion=jnp.array([[0.0], [noise]]),
            max_events=5,
            max_steps=64,
            throw=False,
        )
        return found.covariance, found

    heights = jnp.array([0.35, 0.4, 1.0, 3.0], dtype)
    covariance, found = jax.jit(jax.vmap(run))(heights)
    assert covariance.dtype == dtype
    assert len(set(found.solution.events.count.tolist())) >= 3
    tol = 1e-6 if dtype == jnp.float64 else 2e-3
    for got, height in zip(covariance, heights.tolist(), strict=True):
        assert error(got, _covariance_of_ball(height, root, noise, t1, g, e)) < tol
    # Right before and after an event.
    xi = found.after[2, 0] @ np.linalg.inv(found.before[2, 0])
    assert np.abs(np.linalg.det(xi)) < 1 and np.all(np.triu(found.root, 1) == 0)

    if dtype == jnp.float64:
        # Its derivative by the height.
        slope = jax.jit(jax.jacfwd(lambda h: run(h)[0]))(1.0)
        exact = [
            _covariance_of_ball(1 + d, root, noise, t1, g, e) for d in (1e-5, -1e-5)
        ]
        assert error(slope, (exact[0] - exact[1]) / 2e-5) < 1e-5


def test_rank_is_lost():
    # A mass that drops on a slope and slides: Kong et al., (53) and (54). Across the
    # slope, there is no uncertainty left: not of where it is, and not of how fast.
    angle, g = 0.3, 9.81
    slope = models.ball_on_slope(angle, gravity=g, contact="sliding")
    normal = np.array([np.sin(angle), np.cos(angle)])
    x0 = jnp.array([0.0, 0.5, 0.4, 0.0])
    root = np.diag([0.1, 0.2, 0.3, 0.4]) + 0.05
    found = propagate_covariance(
        slope, 0.0, 0.6, x0, root, "free", max_events=2, max_steps=64
    )
    assert found.solution.events.count == 1
    event = found.solution.events
    v = np.asarray(event.x_before[0, 2:])
    along = np.eye(2) - np.outer(normal, normal)
    # The flow after it, less what it makes of the flow before: both are known.
    a = np.array([0, -g])
    jump = np.concatenate([along @ v - v, along @ a - along @ a])
    xi = np.block([[np.eye(2), np.zeros((2, 2))], [np.zeros((2, 2)), along]])
    xi += np.outer(jump, np.append(normal, [0, 0])) / (normal @ v)
    before = found.before[0] @ found.before[0].T
    after = found.after[0] @ found.after[0].T
    assert error(after, xi @ before @ xi.T) < 1e-9
    for k in (0, 1):
        across = np.zeros(4)
        across[2 * k : 2 * k + 2] = normal
        assert np.abs(across @ found.covariance @ across) < 1e-12


def test_errors():
    ball = models.BouncingBall()
    x0 = jnp.ones(2)
    with pytest.raises(ValueError, match=r"`root0` must be a matrix.*\(2, ...\)"):
        propagate_covariance(ball, 0.0, 1.0, x0, jnp.eye(3), 0)
    with pytest.raises(ValueError, match="`diffusion` must be a matrix"):
        propagate_covariance(ball, 0.0, 1.0, x0, jnp.eye(2), 0, diffusion=jnp.ones(2))
