"""The directions in which contacts slide against their friction."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics import ContactMode
from hybridjax.mechanics._contacts.complementarity import Active, contact_forces
from hybridjax.mechanics._contacts.kinematics import gaps
from hybridjax.mechanics._contacts.sliding_directions import (
    sliding_directions,
    turning,
)
from hybridjax.mechanics._contacts.tangential import along, norm, rows_of, unit
from hybridjax.models import body_on_plane
from scipy.optimize import nnls
from scipy.spatial.transform import Rotation

from ..helpers import slope_along


_friction, _n, _d = jnp.array([0.3, 0.5, 0.4]), 3, 9


def _slides_on(W, c, friction):
    """Directions, impulses and velocities of contacts that land and all slide on."""
    n, every = friction.size, jnp.ones(friction.size, bool)
    active = Active(every, ~every, unit(c[n:], n))
    found = sliding_directions(W, c, active, every, friction)
    active = turning(W, c, found, found.direction, every, friction)
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
        value = lambda given, change=change: _impact(given, change)[0]
        expected = slope_along(value, given, change, h)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)


def test_second_derivatives():
    rng, h = np.random.default_rng(1), 1e-4

    @jax.jit
    def run(given, change):
        first = lambda given: _impact(given, change)[1]
        return jax.jvp(first, (given,), (change,))

    for _ in range(10):
        given, change = rng.normal(size=(2, 3 * _n + 1, _d))
        given[-1, :_n] = -1.0, -1.0, -2.0
        given[-1, _n:] = 2 * np.sign(given[-1, _n:]) + given[-1, _n:]
        _, got = run(given, change)
        value = lambda given, change=change: run(given, change)[0]
        expected = slope_along(value, given, change, h)
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-7)


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
        value = lambda given, change=change: run(given, change)[0]
        expected = slope_along(value, given, change, h)
        # Where four feet share three impulses, eight digits are rounding.
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


# Of a body on four feet.
_low = np.array([[i, j, -1] for i in (-1, 1) for j in (-1, 1)])


@eqx.filter_jit
def _land(box, *states):
    """The velocities and modes after feet have touched down, and how these move."""

    def one(state):
        q, v, mode, foot = state
        (_, after), mode = box.jump(jnp.zeros(()), (q, v), mode, foot, None)
        _, normals = gaps(box, q, v, None)
        tangents = rows_of(box.tangents(q, None))
        return after, mode, box.mass_matrix(q, None), normals, tangents

    # One after the other: each takes as many attempts as it needs.
    return lax.map(one, states)


# Of the first directions were not found, and all was over; of the second four that all
# stick were not, as their least forces pull.
@pytest.mark.parametrize("seed", [3, 4])
def test_friction_is_against_the_slip_or_it_is_said(seed):
    # A tall box on four feet tips over one of them, and turns; feet of which it is said
    # that they are closed may approach. That is a lot for a search: what it does not
    # find is no solution, and so the mode says.
    feet, friction = np.array([0.1, 0.08, 0.4]) * _low, np.linspace(0.2, 0.9, 4)
    inertia = [0.02, 0.03, 0.004]
    box = body_on_plane(feet, inertia=inertia, friction=friction, rest_speed=1e-12)
    rng, m = np.random.default_rng(seed), 600
    turns = Rotation.from_rotvec(rng.uniform(-3, 3, (m, 1)) * np.array([[0, 0, 1.0]]))
    q = np.zeros((m, 7))
    q[:, 2], q[:, 3:] = 0.4, np.roll(turns.as_quat(), 1, axis=1)
    v, foot = rng.normal(size=(m, 6)), rng.integers(4, size=m)
    mode = rng.choice([0, 0, 1, 8], size=(m, 4))
    each = np.arange(m)
    mode[each, foot] = ContactMode.FREE
    _, _, _, normals, _ = _land(box, q, v, mode, foot)
    rates = np.einsum("kni,ki->kn", normals, v)[each, foot]
    v = -v * np.sign(rates)[:, None]
    results = map(np.asarray, _land(box, q, v, mode, foot))

    slid, lost = 0, 0
    for before, after, mode, mass, normal, tangent in zip(v, *results, strict=True):
        if (mode < 0).any():
            lost += 1
            continue
        slips = (tangent @ after).reshape(2, 4)
        speeds = np.sqrt((slips**2).sum(axis=0))
        if (speeds < 1e-6).any():
            continue
        # The impulse is one of contacts that push, each with its friction.
        against = slips / speeds
        J = normal - friction[:, None] * np.einsum(
            "in,ind->nd", against, tangent.reshape(2, 4, 6)
        )
        impulse = mass * (after - before)
        _, missed = nnls(J.T, impulse)
        assert missed < 1e-6 * np.abs(impulse).max()
        assert (normal[mode != ContactMode.FREE] @ after > -1e-9).all()
        slid += 1
    assert slid > 200 and lost == 0


def test_what_opens_does_not_sink():
    # A body that turns about the line between two feet, which stick or slide, lands on
    # a third one, so slowly that slides end with it. That must not push what the impact
    # has opened into the ground.
    # The fourth one is above it: else all would rest there at last.
    feet = np.array([[1, 1, 1], [1.2, 0.9, 1], [0.8, 1.1, 1], [1, 0.7, 0.9]]) * _low
    feet, friction = np.array([0.1, 0.08, 0.2]) * feet, np.linspace(0.2, 0.6, 4)
    inertia = [0.02, 0.03, 0.004]
    box = body_on_plane(feet, inertia=inertia, friction=friction, rest_speed=1e-2)
    rng, m = np.random.default_rng(0), 600
    q = np.tile([0, 0, 0.2, 1.0, 0, 0, 0], (m, 1))
    _, normals = gaps(box, jnp.asarray(q[0]), jnp.zeros(6), None)
    v, mode, foot = np.zeros((m, 6)), np.zeros((m, 4), int), np.zeros(m, int)
    for k in range(m):
        *edge, foot[k] = chosen = rng.permutation(3)
        speed = 10 ** rng.uniform(-4, -2)
        v[k] = np.linalg.lstsq(normals[chosen], [0, 0, -speed])[0]
        v[k, [0, 1, 5]] += speed * rng.integers(2) * rng.normal(size=3)
        mode[k, edge] = rng.choice([ContactMode.STICKING, ContactMode.SLIDING], 2)
    after, found, *_ = _land(box, q, v, mode, foot)
    rates = np.asarray(after) @ np.asarray(normals).T
    touched = (mode != ContactMode.FREE) | (np.arange(4) == foot[:, None])
    opened = touched & np.isin(found, [ContactMode.FREE, ContactMode.LIFTING])
    assert (found >= 0).all() and opened.any(axis=1).sum() > 50
    assert (rates[touched] > -1e-12).all()
    assert (rates[touched & ~opened] < 1e-12).all()
