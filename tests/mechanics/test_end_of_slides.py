"""What else happens where a slide in space ends: docs/concepts/friction.md."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import PIDController
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..helpers import slope_along


_C = ContactMode
_free = 6
_flat = np.zeros((2, _free, _free))


def _body(at_random):
    """Two contacts: rows of their velocities, a force, a damping, a velocity with which
    the first one slides on its surface, and the second one sticks."""
    rng = np.random.default_rng(at_random)
    rows = rng.normal(size=(6, _free))
    force = -rows[:2].T @ rng.uniform(0.5, 2, 2) + 0.7 * rng.normal(size=_free)
    damping = 0.2 * rng.normal(size=(_free, _free))
    v = rng.normal(size=_free)
    held = rows[[0, 1, 3, 5]]
    v -= np.linalg.pinv(held) @ held @ v
    v *= 0.3 / np.linalg.norm(rows[[2, 4]] @ v)
    return rows, force, damping @ damping.T, v, np.zeros(2), _flat


@jax.jit
def _run(body, change, mode0, limit, tol, t1):
    def final(body):
        rows, force, damping, v, gaps, bend = body
        normals, along, across = rows.reshape(3, 2, _free)
        system = MechanicalSystem(
            lambda q, args: jnp.ones(_free),
            lambda t, q, v, args: force - damping @ v,
            lambda q, args: (normals + bend @ q / 2) @ q + gaps,
            2,
            normals=lambda q, args: normals + bend @ q,
            tangents=lambda q, args: jnp.stack([along, across], axis=1),
            friction=0.5,
            rest_speed=limit,
        )
        sol = hj.simulate(
            *(system, 0.0, t1, (jnp.zeros(_free), v), mode0),
            stepsize_controller=PIDController(tol, tol),
            max_events=16,
        )
        return jnp.concatenate(sol.x1), sol.events

    return jax.jvp(final, (body,), (change,), has_aux=True)


@pytest.mark.parametrize(
    "at_random, before, after",
    [
        # The other one slips, or lifts off; or the one that has stopped slides back.
        (6, [_C.SLIDING, _C.STICKING], [_C.STICKING, _C.SLIPPING]),
        (55, [_C.SLIDING, _C.STICKING], [_C.STICKING, _C.SLIPPING]),
        (45, [_C.SLIDING, _C.SLIDING], [_C.STICKING, _C.LIFTING]),
        (64, [_C.SLIDING, _C.STICKING], [_C.SLIPPING, _C.STICKING]),
        (97, [_C.SLIDING, _C.SLIDING], [_C.SLIDING, _C.SLIPPING]),
    ],
)
def test_what_begins_with_the_end_of_a_slide(at_random, before, after):
    # It begins as early as the slide ends, and then has no speed until that would be:
    # what is left out is of second order.
    body = _body(at_random)
    rng = np.random.default_rng(0)
    change = tuple(rng.normal(size=a.shape) for a in body[1:3])
    change = (0 * body[0], *change, *(0 * a for a in body[3:]))
    mode0 = np.array([_C.SLIDING, _C.STICKING])
    exact = _run(body, change, mode0, 1e-6, 1e-12, 1.0)
    for limit in (3e-5, 1e-4):
        got = _run(body, change, mode0, limit, 1e-12, 1.0)
        modes = np.stack([got[2].mode_before, got[2].mode_after], axis=1)
        assert (modes == [before, after]).all(axis=(1, 2)).any()
        for a, b, size in zip(got[:2], exact[:2], (120, 300), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=size * limit**2)


def _lands(at_random):
    """The first contact sticks, and the second one lands."""
    rng = np.random.default_rng(at_random)
    rows = rng.normal(size=(6, _free))
    force = -rows[0] * rng.uniform(0.5, 2) + 0.3 * rng.normal(size=_free)
    held, v = rows[[0, 2, 4]], rng.normal(size=_free)
    v -= np.linalg.pinv(held) @ held @ v
    v *= -rng.uniform(0.02, 0.1) / (rows[1] @ v)
    return rows, force, np.zeros((_free, _free)), v, np.array([0, 1e-3]), _flat


# Where slides slower than 2e-2 end, and another contact sticks, or opens as slowly.
# This one had friction in a direction at random, or one without a derivative: of 400
# such bodies, ends of these were wrong, or their derivatives.
@pytest.mark.parametrize(
    "at_random",
    [33, 45, 54, 58, 127, 129, 152, 155, 160, 182, 197, 217, 266, 269, 299, 338],
)
def test_slow_slides_after_an_impact(at_random):
    _check(_lands(at_random), [_C.STICKING, _C.FREE], 0.1)


def _rubs(at_random):
    """Both slide on surfaces that bend, with four degrees of freedom: if one sticks,
    nothing moves but what lifts off."""
    rng = np.random.default_rng(at_random)
    some = np.arange(_free) < 4
    rows = rng.normal(size=(6, _free)) * some
    force = -rows[:2].T @ rng.uniform(0.5, 2, 2) + 0.4 * rng.normal(size=_free)
    damping = 0.4 * rng.normal(size=(_free, _free))
    damping = damping @ damping.T + np.eye(_free)
    bend = 0.2 * rng.normal(size=(2, _free, _free)) * (some & some[:, None])
    v = rng.normal(size=_free)
    v -= np.linalg.pinv(rows[:2]) @ rows[:2] @ v
    v *= 0.3 / np.linalg.norm(rows[[2, 4]] @ v)
    return rows, force, damping, v, np.zeros(2), bend + bend.transpose(0, 2, 1)


# The slide of one ends, which holds the other one too. That had an acceleration on its
# bent surface, from before the end, against what holds it; or it lifts off, too early,
# and lands below its surface. Of 500 such bodies derivatives of these were wrong.
@pytest.mark.parametrize("at_random", [8, 94, 338, 348, 356, 375, 431, 491])
def test_the_end_of_a_slide_holds_another(at_random):
    _check(_rubs(at_random), [_C.SLIDING, _C.SLIDING], 1.5)


def _check(body, mode0, t1):
    """Do values converge, and are derivatives those of differences?"""
    change = np.random.default_rng(0).normal(size=_free)
    change = (0 * body[0], change, *(0 * a for a in body[2:]))

    def run(moved, tol):
        return _run(moved, change, np.array(mode0), 1e-2, tol, t1)

    value, slope, log = run(body, 1e-10)
    assert log.count > 0
    end = lambda moved: run(moved, 1e-12)[0]
    np.testing.assert_allclose(value, end(body), rtol=0, atol=1e-8)
    expected = slope_along(end, body, change, 1e-5)
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-6)
