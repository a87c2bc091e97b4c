"""What else begins where a slide in space ends: docs/concepts/friction.md."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import PIDController
from hybridjax.mechanics import ContactMode, MechanicalSystem


_C = ContactMode
_free = 6


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
    return rows, force, damping @ damping.T, v


@jax.jit
def _run(body, change, limit, tol):
    def final(body):
        rows, force, damping, v = body
        normals, along, across = rows.reshape(3, 2, _free)
        system = MechanicalSystem(
            lambda q, args: jnp.ones(_free),
            lambda t, q, v, args: force - damping @ v,
            lambda q, args: normals @ q,
            2,
            normals=lambda q, args: normals,
            tangents=lambda q, args: jnp.stack([along, across], axis=1),
            friction=0.5,
            rest_speed=limit,
        )
        sol = hj.simulate(
            *(system, 0.0, 1.0, (jnp.zeros(_free), v)),
            jnp.array([_C.SLIDING, _C.STICKING]),
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
    change = (0 * body[0], *change, 0 * body[3])
    exact = _run(body, change, 1e-6, 1e-12)
    for limit in (3e-5, 1e-4):
        got = _run(body, change, limit, 1e-12)
        modes = np.stack([got[2].mode_before, got[2].mode_after], axis=1)
        assert (modes == [before, after]).all(axis=(1, 2)).any()
        for a, b, size in zip(got[:2], exact[:2], (120, 300), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=size * limit**2)
