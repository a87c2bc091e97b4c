"""Mechanical systems with soft constraints (Council, 3.2)."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import soft_contacts
from scipy.optimize import brentq


def _mass(q, args):
    """Of a two-link arm, with point masses at its joints."""
    c = jnp.cos(q[1])
    return jnp.stack(
        [jnp.stack([3 + 2 * c, 1 + c]), jnp.stack([1 + c, jnp.ones_like(c)])]
    )


def _heights(q):
    """Of the elbow and the hand, above the shoulder; links of length one."""
    elbow = jnp.sin(q[0])
    return jnp.stack([elbow, elbow + jnp.sin(q[0] + q[1])])


def _arm(stiffness, damping):
    """A two-link arm that falls on soft ground, half a metre below its shoulder."""
    weight = lambda q: 9.81 * jnp.sum(_heights(q))
    return soft_contacts(
        _mass,
        lambda t, q, v, args: -jax.grad(weight)(q),
        lambda q, args: _heights(q) + 0.5,
        2,
        stiffness=stiffness,
        damping=damping,
    )


def test_energy():
    # Conservative, and with a mass matrix that moves: the Coriolis terms are right.
    k = jnp.asarray([300.0, 500.0])

    @jax.jit
    def run(q):
        sol = hj.simulate(
            _arm(k, 0.0),
            0.0,
            3.0,
            (q, jnp.zeros(2)),
            stepsize_controller=dfx.PIDController(rtol=1e-11, atol=1e-11),
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 3, 31)),
        )
        return sol.xs, sol.events.count

    def energy(q, v):
        depth = jnp.minimum(_heights(q) + 0.5, 0)
        moving = v @ _mass(q, None) @ v / 2
        return moving + 9.81 * jnp.sum(_heights(q)) + jnp.sum(k * depth**2) / 2

    xs, count = run(jnp.asarray([1.2, 0.4]))
    assert count > 3
    energies = jax.vmap(energy)(*xs)
    np.testing.assert_allclose(energies, energies[0], rtol=0, atol=1e-8)


def test_saltation_matrix():
    """Equation (17), with the M⁻¹ Daᵀ that it lacks."""
    k, beta = jnp.asarray([300.0, 500.0]), jnp.asarray([3.0, 7.0])
    system = _arm(k, beta)
    for j, q2 in ((0, 0.4), (1, -0.9), (1, 0.7)):
        # Foot j at the ground, going down: activated; going up: released.
        q1 = -np.pi / 6
        if j == 1:
            height = lambda q1, q2=q2: _heights(np.array([q1, q2]))[1] + 0.5
            q1 = brentq(height, -1.2, 1.2, xtol=1e-15)
        q = jnp.asarray([q1, q2])
        slope = np.asarray(jax.jacfwd(_heights)(q))[j]
        mass = np.asarray(_mass(q, None))
        for sign in (-1, 1):
            v = jnp.asarray(sign * slope + [0.1, -0.2])
            speed = slope @ v
            assert sign * speed > 0.1
            # At the constraint, alpha = beta * speed. Activation adds -alpha Daᵀ to the
            # force, release takes it away; Dg = ∓Da.
            alpha = beta[j] * speed
            block = alpha / speed * np.linalg.solve(mass, np.outer(slope, slope))
            expected = np.eye(4)
            expected[2:, :2] = sign * block
            mode = np.array([-1, -1, 1, 1])
            if sign > 0:
                mode[[j, 2 + j]] = [1, -1]
            event = j if sign < 0 else 2 + j
            got = hj.saltation_matrix(system, 0.0, (q, v), jnp.asarray(mode), event)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


_psi = 0.6
_q = jnp.asarray([0.0, np.sin(_psi) - np.cos(_psi) ** 2, 0.0])


@pytest.mark.parametrize(
    ["damping", "single_support", "linear"],
    [(0.0, 1.0, True), (1.5, 1.0, True), (1.5, 0.5, False), (1.5, 2.0, False)],
)
def test_biped_at_double_touchdown(damping, single_support, linear):
    system = models.soft_biped(
        spread=_psi, damping=damping, single_support=single_support
    )
    v = jnp.asarray([0.0, -2.0, 0.0])
    np.testing.assert_allclose(
        system.event_functions(0.0, (_q, v), None), 0, rtol=0, atol=1e-15
    )
    derivative = hj.b_derivative(system, 0.0, (_q, v))
    assert derivative.is_linear() == linear
    # Right foot: 0, left foot: 1. Equation (19), with beta as in the errata.
    difference = derivative.matrix((1, 0)) - derivative.matrix((0, 1))
    beta = 2 * damping * (1 - single_support)
    expected = np.zeros((6, 6))
    expected[4, 0] = -4 * beta * np.cos(_psi)
    expected[4, 2] = -2 * beta * (np.sin(2 * _psi) + np.cos(_psi))
    np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-12)
    if not linear:
        assert np.max(np.abs(expected)) > 1


def test_biped_order_difference_in_general():
    # Any mass, inertia and speed. From (17), for the order (j, k), with the rates r of
    # the gaps, and b₁ and b₂ the dampings with one foot and with both:
    # -M⁻¹ (b₁ Daⱼᵀ Daⱼ + (b₂ - b₁) rⱼ/rₖ Daⱼᵀ Daₖ + b₂ Daₖᵀ Daₖ). At equal rates, the
    # difference of the two orders is that of the errata.
    m, inertia, length = 1.7, 0.4, 1.2
    q = jnp.asarray([0.0, length * np.sin(_psi) - (length * np.cos(_psi)) ** 2, 0.0])
    system = models.soft_biped(
        m, inertia, length, _psi, damping=0.8, single_support=0.3
    )
    v = jnp.asarray([0.2, -2.0, 0.1])
    derivative = hj.b_derivative(system, 0.0, (q, v))
    difference = derivative.matrix((1, 0)) - derivative.matrix((0, 1))
    gaps = lambda q: -system.event_functions(0.0, (q, v), None)[:2]
    right, left = np.asarray(jax.jacfwd(gaps)(q))
    ratio = (left @ v) / (right @ v)
    assert abs(ratio - 1) > 0.05
    block = np.outer(right, right) - np.outer(left, left)
    block += ratio * np.outer(left, right) - np.outer(right, left) / ratio
    block *= 0.8 * 0.7 / np.array([[m], [m], [inertia]])
    expected = np.zeros((6, 6))
    expected[3:, :3] = -block
    np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_one_sided_derivatives_of_a_landing():
    # Through the whole landing, against one-sided differences.
    drop = _q + jnp.asarray([0.0, 0.3, 0.0])
    time = np.sqrt(2 * 0.3 / 9.81) + 0.05

    def final(x, single_support):
        sol = hj.simulate(
            models.soft_biped(spread=_psi, single_support=single_support),
            0.0,
            time,
            x,
            stepsize_controller=dfx.PIDController(rtol=1e-11, atol=1e-11),
            max_steps=256,
        )
        return jnp.concatenate(sol.x1)

    @jax.jit
    def compare(single_support):
        x = (drop, jnp.zeros(3))
        tangent = (jnp.asarray([1.0, 0.2, 0.5]), jnp.asarray([0.3, 0.0, -0.4]))
        fn = lambda x: final(x, single_support)
        one_sided, differences = [], []
        for sign in (1.0, -1.0):
            v = jax.tree.map(lambda a, sign=sign: sign * a, tangent)
            one_sided.append(jax.jvp(fn, (x,), (v,))[1])
            h = 1e-5
            # Richardson: one-sided, of second order.
            at = lambda s, v=v: fn(jax.tree.map(lambda a, b: a + s * b, x, v))
            differences.append((4 * at(h) - 3 * at(0.0) - at(2 * h)) / (2 * h))
        return jnp.stack(one_sided), jnp.stack(differences)

    for single_support, kink in ((1.0, False), (0.5, True)):
        one_sided, differences = compare(single_support)
        np.testing.assert_allclose(one_sided, differences, rtol=0, atol=2e-5)
        jump = np.max(np.abs(one_sided[0] + one_sided[1]))
        assert jump > 0.1 if kink else jump < 1e-9
