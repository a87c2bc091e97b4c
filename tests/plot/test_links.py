"""Where the links of robots are: as their own guards and constraints say."""

import jax
import jax.numpy as jnp
import numpy as np
from hybridjax import models


_RANDOM, _T = np.random.default_rng(0), jnp.zeros(())


def _both(fn, *shape):
    """For several random states."""
    return jax.device_get(jax.jit(jax.vmap(fn))(_RANDOM.normal(size=(20, *shape))))


def _lengths(links):
    return np.linalg.norm(links[:, :, 1] - links[:, :, 0], axis=-1)


def _is_chain(links, first, second):
    np.testing.assert_array_equal(links[:, first, 1], links[:, second, 0])


def test_planar_robots():
    lengths = np.array([0.6, 0.4, 0.3])
    for make, legs in ((models.planar_monoped, 1), (models.planar_biped, 2)):
        robot = make(lengths=lengths, ground=lambda x: 0.1 * x)
        links, gaps = _both(
            lambda q, robot=robot: (
                models.planar_links(q, lengths),
                robot.gap(q, None),
            ),
            3 + 2 * legs,
        )
        assert links.shape == (20, 1 + 2 * legs, 2, 2)
        feet = links[:, 2::2, 1]
        np.testing.assert_allclose(feet[..., 1] - 0.1 * feet[..., 0], gaps, atol=1e-12)
        expected = lengths[[0] + [1, 2] * legs]
        np.testing.assert_allclose(_lengths(links), np.tile(expected, (20, 1)))
        for leg in range(legs):
            np.testing.assert_array_equal(links[:, 0, 0], links[:, 1 + 2 * leg, 0])
            _is_chain(links, 1 + 2 * leg, 2 + 2 * leg)


def test_walkers():
    for walker, length in (
        (models.CompassGait(slope=0.1, lower=0.4, upper=0.5), 0.9),
        (models.SimplestWalker(slope=0.1), 1.0),
    ):
        links, guards = _both(
            lambda x, walker=walker: (
                walker.links(0.3 * x),
                walker.guards(_T, 0.3 * x, jnp.asarray(1), None),
            ),
            4,
        )
        _is_chain(links, 0, 1)
        np.testing.assert_allclose(_lengths(links), length)
        np.testing.assert_array_equal(links[:, 0, 0], 0)
        # The swing foot is above the slope while its guard is positive, if it is in
        # front of the other, and else while it is negative.
        x, y = links[:, 1, 1].T
        above = y * np.cos(0.1) + x * np.sin(0.1)
        in_front = x * np.cos(0.1) - y * np.sin(0.1) > 0
        assert in_front.any() and not in_front.all()
        np.testing.assert_array_equal(above > 0, (guards[:, 1] > 0) == in_front)


def test_two_legs():
    body = models.TwoLegs(half_width=0.3, leg_length=0.5)
    links, guards = _both(
        lambda x: (body.links(x), body.guards(_T, x, jnp.zeros(2, int), None)), 6
    )
    np.testing.assert_allclose(links[:, 1:, 1, 1], guards, atol=1e-12)
    np.testing.assert_allclose(_lengths(links), np.tile([0.6, 0.5, 0.5], (20, 1)))
    np.testing.assert_array_equal(links[:, 0], links[:, 1:, 0])


def test_five_bar():
    (bars,) = models.five_bar().vector_fields
    links, residuals = _both(
        lambda q: (models.five_bar_links(q), bars.constraints(0.0, q, None)), 6
    )
    squared = residuals + np.array([2.0, 3.25, 3.25, 2.0])
    np.testing.assert_allclose(_lengths(links) ** 2, squared)
    np.testing.assert_array_equal(links[0, [0, -1], [0, 1]], [[-0.5, 0], [0.5, 0]])
    for k in range(3):
        _is_chain(links, k, k + 1)
