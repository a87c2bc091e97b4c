"""A bound on how many contacts are closed at once changes nothing but the time."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import ContactMode
from scipy.spatial.transform import Rotation


# Three feet on each side, so that how they share the weight is determined.
_height, _eps = 0.1, np.finfo(float).eps
_around = np.array([[0.3, 0.1], [-0.2, 0.2], [-0.1, -0.3]])
_feet = np.array([[*place, side * _height] for place in _around for side in (-1, 1)])


def _prism(**kwargs: Any):
    """With a friction of its own at each of its feet."""
    return models.body_on_plane(
        _feet, inertia=[0.02, 0.03, 0.04], friction=np.linspace(0.2, 0.9, 6), **kwargs
    )


def _of_prism(most_closed: int | None):
    """Vector field, guards and jump of a prism, with their derivatives."""
    prism = _prism(most_closed=most_closed)

    @jax.jit
    def of(q, v, mode, event, dq, dv):
        along = lambda fn: jax.jvp(fn, ((q, v),), ((dq, dv),))
        t = jnp.zeros(())
        x, mode_after = prism.jump(t, (q, v), mode, event, None)
        return (
            along(lambda x: prism.flow(t, x, mode, None)),
            along(lambda x: prism.guards(t, x, mode, None)),
            along(lambda x: prism.jump(t, x, mode, event, None)[0]),
            x,
        ), mode_after

    return of


def test_the_same_equations():
    # On each of its sides, whichever of the feet are closed, with forces of their own;
    # and whichever event there is.
    rng = np.random.default_rng(0)
    of_all, of_some = _of_prism(None), _of_prism(3)
    kinds = [ContactMode.STICKING, ContactMode.SLIDING, ContactMode.LIFTING]
    events = 0
    for _ in range(60):
        side = rng.choice([-1, 1])
        feet = rng.permutation(np.flatnonzero(_feet[:, 2] == side * _height))
        mode, closed = np.zeros(6, int), feet[: rng.integers(4)]
        mode[closed] = rng.choice(kinds, closed.size)
        turn = Rotation.from_rotvec([0, 0, rng.uniform(-3, 3)])
        turn = turn * Rotation.from_rotvec([np.pi * (side > 0), 0, 0])
        q = jnp.array([0, 0, _height, *np.roll(turn.as_quat(), 1)])
        v, dq, dv = rng.normal(size=6), rng.normal(size=7), rng.normal(size=6)
        here = rng.choice(feet)
        v = -v * np.sign(v[2:3] + turn.apply(np.cross(v[3:], _feet[here]))[2])
        # A touchdown, a liftoff, the end of a departure; or the cone, the end of a
        # slide.
        kind = rng.integers(2) if mode[here] in kinds[:2] else 0
        args = q, v, mode, kind * 6 + here, dq, dv
        (exact, mode_exact), (got, mode_got) = of_all(*args), of_some(*args)
        np.testing.assert_array_equal(mode_got, mode_exact)
        # Nine rows of three feet that stick are redundant. And directions in which feet
        # begin to slip, on which the jump depends, are found up to so much.
        of_jump = 0.375 if ContactMode.SLIPPING in mode_exact else 0.5
        digits = 0.5, 0.5, of_jump, of_jump
        for few, every, digit in zip(got, exact, digits, strict=True):
            for a, b in zip(jax.tree.leaves(few), jax.tree.leaves(every), strict=True):
                scale = max(1.0, float(jnp.max(jnp.abs(b))))
                np.testing.assert_allclose(a, b, rtol=0, atol=_eps**digit * scale)
        events += bool((mode_exact != mode).any())
    assert events > 30


def test_in_single_precision():
    prism = _prism(most_closed=3)
    mode = np.array([0, 0, 0, ContactMode.SLIDING, 0, 0])
    q = np.array([0, 0, _height, np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    flow = jax.jit(lambda q, v: prism.flow(jnp.zeros((), q.dtype), (q, v), mode, None))
    exact, got = (
        flow(jnp.asarray(q, dtype), jnp.arange(6, dtype=dtype))[1]
        for dtype in (jnp.float64, jnp.float32)
    )
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, rtol=1e-4)


def test_too_many():
    # Rods that fall flat, and others that fall on one end, on either: these are right,
    # and the same without those.
    def final(tilt):
        rod = models.rod(friction=0.3, most_closed=1)
        q = jnp.stack([jnp.zeros_like(tilt), 1.0 + 0 * tilt, tilt])
        sol = hj.simulate(rod, 0.0, 0.46, (q, jnp.zeros(3)), throw=False)
        return sol.x1[0][1], (sol.result, sol.mode1)

    run = jax.jit(jax.vmap(jax.value_and_grad(final, has_aux=True)))
    tilts = jnp.array([0.0, 1.2, 0.0, -1.3])
    (height, (result, mode)), slope = run(tilts)
    bad = tilts == 0
    np.testing.assert_array_equal(result == hj.RESULTS.nonfinite_state, bad)
    np.testing.assert_array_equal((mode == ContactMode.CROWDED).any(1), bad)
    assert np.isnan(slope[bad]).all()
    alone = jnp.array([0.8, 1.2, -0.9, -1.3])
    (height_alone, _), slope_alone = run(alone)
    np.testing.assert_allclose(height[~bad], height_alone[1::2], rtol=1e-12)
    np.testing.assert_allclose(slope[~bad], slope_alone[1::2], rtol=1e-12)
    up, down = (run(alone + h)[0][0] for h in (1e-4, -1e-4))
    np.testing.assert_allclose(slope_alone, (up - down) / 2e-4, rtol=1e-6)


def test_errors():
    flat = jnp.array([0.0, 1.0, 0.0]), jnp.zeros(3)
    rod = models.rod(friction=0.3, most_closed=1)
    with pytest.raises(hj.SimulationError, match=r"contact 1: .*`most_closed`"):
        hj.simulate(rod, 0.0, 0.5, flat)
    lying = jnp.zeros(3), jnp.zeros(3)
    with pytest.raises(ValueError, match=r"`most_closed` .*contact 0"):
        hj.simulate(rod, 0.0, 0.5, lying)
    starts = lambda q: rod.start(jnp.zeros(()), (q, lying[1]), None, None)[1]
    np.testing.assert_array_equal(jax.jit(starts)(lying[0]), [ContactMode.CROWDED] * 2)
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match="`most_closed` must be a positive"):
            models.rod(most_closed=wrong)
    with pytest.raises(ValueError, match="`most_closed` does not go with `apex"):
        models.rod(most_closed=1, apex=True)
    # No fewer than there are is no bound.
    assert models.rod(most_closed=2).most_closed is None
