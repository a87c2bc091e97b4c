"""Decoupled limbs (Pace and Burden), and contacts that touch down together."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import decoupled, MechanicalSystem


def test_decoupled():
    rigid = decoupled(models.rigid_trotter(), jnp.array([0.5, 0.0]))
    # The cosine of the angle between their constraints: (1/m - a²/I) / (1/m + a²/I).
    cosine = (1 - 0.3**2 / 0.15) / (1 + 0.3**2 / 0.15)
    np.testing.assert_allclose(rigid.coupling[0, 1], cosine, rtol=1e-12)
    assert not rigid and not rigid.orthogonal and not rigid.through_body
    # (6) holds where the legs' effective masses happen to fit, and only there.
    fits = models.rigid_trotter(inertia=0.09)
    assert decoupled(fits, jnp.array([0.5, 0.0])).orthogonal
    assert not decoupled(fits, jnp.array([0.5, 0.0])).through_body
    assert not decoupled(fits, jnp.array([0.5, 0.1])).orthogonal
    soft = decoupled(models.soft_trotter(), jnp.array([0.5, 0.1, 0.0, 0.0]))
    assert soft and soft.orthogonal and soft.through_body


def test_limbs_that_feel_each_other():
    # As the soft trotter, but for one term that couples the limbs.
    soft = models.soft_trotter()

    def with_(**changes):
        kwargs = dict(mass_matrix=soft.mass_matrix, effort=soft.effort, gap=soft.gap)
        options = {k: changes.pop(k) for k in ["restitution"] if k in changes}
        kwargs.update(changes)
        system = MechanicalSystem(**kwargs, n_contacts=2, **options)
        return decoupled(system, jnp.array([0.5, 0.1, 0.01, 0.02]))

    def push(i, by):
        return lambda t, q, v, args: soft.effort(t, q, v, args).at[i].add(by(q, v))

    assert with_()
    assert not with_(effort=push(2, lambda q, v: v[3]))
    assert not with_(effort=push(0, lambda q, v: q[2] * q[3]))
    assert with_(effort=push(0, lambda q, v: q[2] ** 2 + q[3] * q[0]))
    inertia = lambda q, args: soft.mass_matrix(q, args).at[2].add(q[3] ** 2)
    assert not with_(mass_matrix=inertia)
    assert not with_(restitution=lambda q, v, args: jnp.stack([v[3] ** 2, v[3] ** 2]))
    assert with_(restitution=lambda q, v, args: jnp.stack([v[2] ** 2, v[3] ** 2]) / 99)


def _before(drop):
    speed = -jnp.sqrt(2 * 9.81 * drop)
    q = jnp.array([0.5, 0.0, 0.0, 0.0])
    return q, jnp.stack([speed, 0.0, speed, speed])


@pytest.mark.thorough
def test_soft_legs_are_differentiable():
    system, mode = models.soft_trotter(), jnp.zeros(2, jnp.int32)
    q, v = _before(0.2)
    corner = hj.b_derivative(system, 0.0, (q, v), mode)
    assert corner.is_linear()
    np.testing.assert_array_equal(corner.mode_after, [2, 2])
    # (59), with (54): the derivative of both resets, and the terms of each alone.
    flow = lambda x, mode: jnp.concatenate(
        system.flow(jnp.zeros(()), x, jnp.array(mode), None)
    )
    reset = lambda v, feet: v.at[2:].multiply(1 - jnp.array(feet))
    both = jnp.eye(8).at[6, 6].set(0).at[7, 7].set(0)
    matrix = both
    for j, feet in enumerate([[1, 0], [0, 1]]):
        alone = jnp.eye(8).at[6 + j, 6 + j].set(0)
        after = flow((q, reset(v, feet)), 2 * jnp.array(feet))
        row = jnp.zeros(8).at[2 + j].set(1) / v[2 + j]
        matrix = matrix + jnp.outer(after - alone @ flow((q, v), [0, 0]), row)
    for order in [[0, 1], [1, 0]]:
        np.testing.assert_allclose(corner.matrix(order), matrix, atol=1e-10)


@pytest.mark.thorough
def test_outcomes_of_trotting():
    # Figure 1: the final rotational velocity as a function of the initial rotation.
    def final(theta, soft):
        feet = 0.2 + jnp.sin(theta) * jnp.array([0.3, -0.3])
        q = jnp.stack([0.7, theta])
        system = models.soft_trotter() if soft else models.rigid_trotter()
        q = jnp.concatenate([q, feet]) if soft else q
        mode = jnp.zeros(2, jnp.int32)
        sol = hj.simulate(
            system,
            0.0,
            0.3,
            (q, jnp.zeros_like(q)),
            mode,
            stepsize_controller=dfx.PIDController(rtol=1e-11, atol=1e-11),
            max_steps=512,
            throw=False,
        )
        return sol.x1[1][1]

    slope = jax.jit(
        jax.vmap(lambda a, b: jax.jvp(lambda a: final(a, True), (a,), (b,)))
    )
    h = 1e-5
    at = jnp.array([0.0, 0.0, h, -h, 2 * h, -2 * h, 0.1, 0.1 + h, 0.1 - h])
    value, rate = slope(at, jnp.array([1.0, -1.0] + [1.0] * 7))
    # From the left as from the right, and as the differences.
    np.testing.assert_allclose(rate[0], -rate[1], rtol=1e-9)
    difference = (8 * (value[2] - value[3]) - (value[4] - value[5])) / (12 * h)
    np.testing.assert_allclose(rate[0], difference, rtol=1e-6)
    np.testing.assert_allclose(rate[6], (value[7] - value[8]) / (2 * h), rtol=1e-5)

    rigid = jax.jit(
        jax.vmap(lambda a: jax.jvp(lambda a: final(a, False), (a,), (1.0,)))
    )
    value, rate = rigid(jnp.array([0.0, 1e-7, -1e-7]))
    assert np.abs(value[1] - value[2]) > 0.5
    assert np.isnan(rate[0])  # there is none
    with pytest.raises(ValueError, match="order"):
        corner = hj.b_derivative(
            models.rigid_trotter(),
            0.0,
            (jnp.array([0.5, 0.0]), jnp.array([-2.0, 0.0])),
            jnp.zeros(2, jnp.int32),
        )
        corner((jnp.ones(2), jnp.ones(2)))
