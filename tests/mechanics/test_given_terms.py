"""Coriolis terms and normals that are given, and not derived."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics import decoupled, MechanicalSystem, Multibody

from ..helpers import error


def _mass(q, args):
    # A point at (x, y) = r (cos, sin), in polar coordinates, of mass 2.
    return 2 * jnp.stack([jnp.ones_like(q[0]), q[0] ** 2])


def _bias(q, v, args):
    return 2 * jnp.stack([-q[0] * v[1] ** 2, 2 * q[0] * v[0] * v[1]])


def _effort(t, q, v, args):
    return jnp.stack([args, t + 0 * q[0]])


def _gap(q, args):
    return jnp.stack([4.0 - q[0] ** 2])


def _normals(q, args):
    return jnp.stack([jnp.stack([-2 * q[0], 0 * q[1]])])


def test_given_and_derived():
    tangents = lambda q, args: jnp.array([[0.0, 1.0]])
    derived, given = (
        MechanicalSystem(
            *(_mass, _effort, _gap, 1),
            tangents=tangents,
            friction=0.3,
            bias=bias,
            normals=normals,
        )
        for bias, normals in ((None, None), (_bias, _normals))
    )
    x = jnp.array([1.3, 0.4]), jnp.array([-0.7, 1.9])

    def all_of_it(x, args):
        t = jnp.asarray(0.3)
        for mode in jnp.array([[0], [2]]):
            yield derived.flow(t, x, mode, args), given.flow(t, x, mode, args)

    @jax.jit
    def values_and_tangents(x, args):
        out = lambda x, args: list(all_of_it(x, args))
        return jax.jvp(out, (x, args), (x, jnp.ones_like(args)))

    for part in values_and_tangents(x, jnp.asarray(0.2)):
        for (_, dv), (_, dv_given) in part:
            assert error(dv_given, dv) < 1e-14
            assert np.abs(dv).max() > 1


def test_what_limbs_feel():
    # Two balls, and a spring between them: as an effort, or among what is given.
    spring = lambda q: jnp.stack([q[1] - q[0], q[0] - q[1]])
    ones, nothing = lambda q, args: jnp.ones(2), lambda t, q, v, args: jnp.zeros(2)
    for bias, apart in (
        (lambda q, v, args: jnp.ones(2), True),
        (lambda q, v, args: -spring(q), False),
    ):
        balls = MechanicalSystem(ones, nothing, lambda q, args: q, 2, bias=bias)
        assert bool(decoupled(balls, jnp.zeros(2), v=jnp.ones(2))) == apart


def test_wrong_normals():
    x = jnp.array([1.3, 0.4]), jnp.array([-0.7, 1.9])
    make = lambda normals: MechanicalSystem(_mass, _effort, _gap, 1, normals=normals)
    run = lambda system, x, throw: hj.simulate(
        system, 0.0, 1.0, x, args=0.2, throw=throw, max_steps=64
    )
    wrong = make(lambda q, args: -_normals(q, args))
    with pytest.raises(ValueError, match="`normals` is not the derivative .* gap 0"):
        run(wrong, x, True)
    sol = jax.jit(lambda x: run(wrong, x, False))(x)
    assert sol.result == hj.RESULTS.nonfinite_state
    with pytest.raises(ValueError, match="`normals` must return an array of shape"):
        run(make(lambda q, args: q), x, True)


def test_wrong_shape():
    body = Multibody(_mass, _effort, bias=lambda q, v, args: v[:1])
    x = jnp.array([1.3, 0.4]), jnp.array([-0.7, 1.9])
    with pytest.raises(ValueError, match="`bias` must return an array of shape"):
        hj.simulate(body, 0.0, 1.0, x, args=0.2)
