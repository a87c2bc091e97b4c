"""The directions in which contacts slide against their friction."""

import jax
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics._contacts.complementarity import Active, contact_forces
from hybridjax.mechanics._contacts.sliding_directions import sliding_directions
from hybridjax.mechanics._contacts.tangential import along, norm, unit

from ..helpers import slope, STEPS


_friction, _n, _d = jnp.array([0.3, 0.5, 0.4]), 3, 9


def _slides_on(W, c, friction):
    """Directions, impulses and velocities of contacts that land and all slide on."""
    n, every = friction.size, jnp.ones(friction.size, bool)
    active = Active(every, ~every, unit(c[n:], n))
    active = sliding_directions(W, c, active, every, friction)
    impulses = contact_forces(W, c, active, friction)
    return active.direction, impulses, c + W @ impulses


@jax.jit
def _impact(given, change):
    """Impulses and directions of three contacts that slide on, and their derivatives
    along a change; and how far they are from sliding against their friction."""

    def solved(given):
        J = jnp.eye(3 * _n) + 0.1 * given[:-1]
        direction, impulses, after = _slides_on(J @ J.T, given[-1], _friction)
        slip = after[_n:]
        off = norm(slip, _n) - along(direction, slip, _n)
        return jnp.concatenate([direction, impulses]), (impulses[:_n], off)

    return jax.jvp(solved, (given,), (change,), has_aux=True)


def test_derivatives_also_of_what_pulls():
    # The first one separates, and is held back, as in impacts too slow for any contact
    # to open. So its friction pushes it along.
    rng, h = np.random.default_rng(0), 1e-4
    for _ in range(20):
        given, change = rng.normal(size=(2, 3 * _n + 1, _d))
        angles = rng.uniform(0, 2 * np.pi, _n)
        slips = 2 * np.cos(angles), 2 * np.sin(angles)
        given[-1] = np.concatenate([[1.0, -1.0, -2.0], *slips])
        _, got, (normal, off) = _impact(given, change)
        np.testing.assert_array_equal(np.sign(normal), [-1, 1, 1])
        np.testing.assert_allclose(off, 0, atol=1e-12)
        ends = [_impact(given + k * h * change, change)[0] for k in STEPS]
        np.testing.assert_allclose(got, slope(ends, h), rtol=0, atol=1e-8)


def test_derivatives_of_redundant_feet():
    # Four feet of a rigid body land: how they share the impulse is not determined, and
    # is the least. By friction it moves the body, and with that the directions.
    feet = np.array([[1, 1.0, 0.8], [1, 1.2, -1.0], [1, -1.0, 0.9], [1, -0.7, -1.1]])
    n, friction = 4, jnp.array([0.3, 0.5, 0.4, 0.2])

    @jax.jit
    def run(given, change):
        def solved(given):
            rows = jnp.eye(3 + 2 * n) + 0.1 * given[:-1]
            J = jnp.concatenate([feet @ rows[:3], rows[3:]])
            direction, impulses, after = _slides_on(J @ J.T, J @ given[-1], friction)
            return jnp.concatenate([direction, impulses]), after

        return jax.jvp(solved, (given,), (change,), has_aux=True)

    rng, h = np.random.default_rng(0), 1e-3
    for _ in range(10):
        given, change = rng.normal(size=(2, 4 + 2 * n, 3 + 2 * n))
        angles = rng.uniform(0, 2 * np.pi, n)
        speeds = -5.0, 0.1, 0.1, *3 * np.cos(angles), *3 * np.sin(angles)
        given[-1] = speeds
        _, got, after = run(given, change)
        np.testing.assert_allclose(after[:n], 0, atol=1e-12)
        ends = [run(given + k * h * change, change)[0] for k in STEPS]
        # Where four feet share three impulses, eight digits are rounding.
        np.testing.assert_allclose(got, slope(ends, h), rtol=0, atol=1e-4)
