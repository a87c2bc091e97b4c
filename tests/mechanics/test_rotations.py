"""Configurations with quaternions: velocities that are not their rates."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax.mechanics import (
    ball_joint,
    consistent_state,
    decoupled,
    free_joint,
    MechanicalSystem,
    Multibody,
    rotate,
)
from scipy.integrate import solve_ivp
from scipy.special import ellipj

from ..helpers import batch_jacobians, error


_turned = jnp.array([0.5, 0.1, -0.5, 0.7])  # a unit quaternion


#
# An asymmetric body tumbles: Jacobi
#

_inertia = np.array([3.0, 2.0, 1.0])


def _jacobi(w1, w3, t):
    """Angular velocities in the body, from (w1, 0, w3): Landau, Lifshitz, section 37,
    for inertias that decrease, and a momentum nearer to the third axis."""
    a, b, c = _inertia
    # By symmetry as in the book, where they increase: (c, b, a), if M^2 > 2 E b.
    E2, M2 = a * w1**2 + c * w3**2, (a * w1) ** 2 + (c * w3) ** 2
    assert M2 > E2 * b
    s = t * np.sqrt((a - b) * (M2 - E2 * c) / (a * b * c))
    m = (b - c) * (E2 * a - M2) / ((a - b) * (M2 - E2 * c))
    sn, cn, dn, _ = ellipj(s, m)  # pyright: ignore
    first = np.sqrt((M2 - E2 * c) / (a * (a - c))) * dn
    second = np.sqrt((E2 * a - M2) / (b * (a - b))) * sn
    third = np.sqrt((E2 * a - M2) / (c * (a - c))) * cn
    return np.stack([first, second, third], axis=-1)


def test_a_tumbling_body():
    body = Multibody(
        lambda q, args: jnp.asarray(_inertia),
        lambda t, q, v, args: jnp.zeros(3),
        velocity_to_qdot=ball_joint,
    )

    def final(w):
        v0 = jnp.stack([w[0], jnp.zeros(()), w[1]])
        sol = hj.simulate(body, 0.0, 7.0, (_turned, v0), max_steps=512)
        return jnp.concatenate(sol.x1), None

    w = np.array([[1.0, 0.3], [1.2, 0.9], [0.8, 1.1], [1.5, 0.2]])
    x1, forward, reverse, _ = batch_jacobians(final)(w)
    (q, v), (dq, dv) = (np.split(a, [4], axis=1) for a in (x1, forward))
    exact = np.stack([_jacobi(row[0], row[1], 7.0) for row in w])
    # The book's signs are for one sense of rotation.
    sign = np.sign(np.sum(exact * v, axis=0))
    assert error(v, sign * exact) < 2e-7
    h = 1e-5
    for i, e in enumerate(np.eye(2)):
        plus, minus = (
            [_jacobi(row[0], row[1], 7.0) for row in w + s * e] for s in (h, -h)
        )
        steps = np.stack(plus) - np.stack(minus)
        assert error(dv[..., i], sign * steps / (2 * h)) < 2e-6
    assert error(reverse, forward) < 1e-7
    # Units stay units, and their tangents are tangent.
    assert np.abs(np.sum(q**2, axis=1) - 1).max() < 1e-7
    assert np.abs(np.einsum("li,lij->lj", q, dq)).max() < 1e-6
    # The angular momentum stays, as the world sees it.
    start = np.stack([w[:, 0], 0 * w[:, 0], w[:, 1]], axis=1)
    momentum = jax.vmap(lambda q, v: rotate(q, v * _inertia))
    before = momentum(jnp.broadcast_to(_turned, q.shape), jnp.asarray(start))
    assert error(momentum(q, v), before) < 2e-7


#
# A rod, by a point that is not its middle: its mass matrix depends on where it points
#

_gravity, _half, _mass = 9.81, 0.5, 2.0
_about_middle = np.array([_mass / 12, _mass / 12, 0.01])


def _rod(end):
    """A free rod of unit length along its z axis, with a thickness, of which the
    configuration says where its `end` is, from its middle."""
    arm = jnp.array([0.0, 0.0, end])

    def middle(q, v):
        """The velocity of the middle, as the world sees it."""
        return v[:3] + rotate(q[3:], jnp.cross(v[3:], -arm))

    def mass_matrix(q, args):
        J = jax.jacfwd(lambda v: middle(q, v))(jnp.zeros(6))
        spin = jnp.diag(jnp.concatenate([jnp.zeros(3), _about_middle]))
        return _mass * jnp.matmul(J.T, J) + spin

    def effort(t, q, v, args):
        J = jax.jacfwd(lambda v: middle(q, v))(jnp.zeros(6))
        return jnp.matmul(jnp.array([0, 0, -_mass * _gravity]), J)

    return mass_matrix, effort


def _ends(q, end):
    """Where the ends of the rod are, in the world."""
    places = jnp.array([[0.0, 0.0, -_half - end], [0.0, 0.0, _half - end]])
    turned = jax.vmap(lambda r: rotate(q[3:], r))(places)
    return q[:3][None] + turned


@pytest.mark.thorough
def test_a_thrown_rod():
    # By an end, and by a point beside the middle: the same motion. Its middle flies
    # along a parabola, and its axis turns about the angular momentum.
    t1 = 0.9
    spin = jnp.array([2.0, -3.0, 1.0])

    def thrown(end):
        rod = Multibody(*_rod(end), velocity_to_qdot=free_joint)
        arm = rotate(_turned, jnp.array([0.0, 0.0, end]))
        turning = rotate(_turned, spin)

        def final(z):
            v = z + jnp.cross(turning, arm)
            x0 = jnp.concatenate([arm, _turned]), jnp.concatenate([v, spin])
            sol = hj.simulate(rod, 0.0, t1, x0, max_steps=256)
            q, _ = sol.x1
            both = _ends(q, end), jnp.sum(q[3:] ** 2)
            return both, both

        return jax.jacfwd(final, has_aux=True)(jnp.array([1.0, 0.5, 4.0]))

    world = np.asarray(rotate(_turned, jnp.asarray(_about_middle) * spin))
    rate = world / _about_middle[0]  # of the axis of a symmetric body
    axis = np.asarray(rotate(_turned, jnp.array([0.0, 0.0, 1.0])))
    w = np.linalg.norm(rate)
    n, angle = rate / w, w * t1
    axis = (
        axis * np.cos(angle)
        + np.cross(n, axis) * np.sin(angle)
        + n * (n @ axis) * (1 - np.cos(angle))
    )
    middle = np.array([1.0, 0.5, 4.0 - _gravity * t1 / 2]) * t1
    exact = middle + np.array([[-_half], [_half]]) * axis
    run = jax.jit(jax.vmap(thrown))
    (by_speed, norm_by_speed), (ends, norm) = run(jnp.array([-0.5, 0.2]))
    for k in range(2):
        assert error(ends[k], exact) < 1e-7
        assert error(by_speed[k], np.broadcast_to(t1 * np.eye(3), (2, 3, 3))) < 1e-7
    assert error(norm, np.ones(2)) < 1e-8
    assert np.abs(norm_by_speed).max() < 1e-7


@pytest.mark.thorough
def test_a_rod_lands():
    # Without friction and with e = 0.5, on both ends one after the other, as by SciPy
    # for a planar rod. The plane is turned about the vertical.
    weight = jnp.zeros(6).at[2].set(-_mass * _gravity)
    rod = MechanicalSystem(
        lambda q, args: jnp.concatenate([jnp.full(3, _mass), _about_middle]),
        lambda t, q, v, args: weight,
        lambda q, args: _ends(q, 0.0)[:, 2],
        2,
        restitution=0.5,
        velocity_to_qdot=free_joint,
    )
    t1 = 0.7

    def final(z):
        height, tilt, spin = z
        # First the body is tilted about its y axis; then about the vertical.
        half = jnp.stack([jnp.cos(tilt / 2), jnp.sin(tilt / 2)])
        heading = jnp.array([jnp.cos(0.4), jnp.sin(0.4)])
        turned = jnp.stack(
            [
                heading[0] * half[0],
                -heading[1] * half[1],
                heading[0] * half[1],
                heading[1] * half[0],
            ]
        )
        q0 = jnp.concatenate([jnp.zeros(2), height[None], turned])
        v0 = jnp.zeros(6).at[4].set(spin)
        mode0 = jnp.zeros(2, int)
        # Of few stages, which compiles faster.
        options = dict[str, Any](solver=dfx.Bosh3(), max_steps=512, max_events=8)
        sol = hj.simulate(rod, 0.0, t1, (q0, v0), mode0, **options)
        log = sol.events
        heights = _ends(sol.x1[0], 0.0)[:, 2]
        return jnp.concatenate([heights, log.t[:2]]), (log.count, log.event)

    def scipy(z):
        height, tilt, spin = z

        def tip(side):
            event = lambda t, y: y[0] + side * _half * np.cos(y[1])
            event.terminal, event.direction = True, -1
            return event

        rates = lambda t, y: [y[2], y[3], -_gravity, 0.0]
        t, y, log = 0.0, np.array([height, tilt, 0.0, spin]), []
        while True:
            sides = -1, 1
            run = solve_ivp(
                rates, (t, t1), y, events=list(map(tip, sides)), rtol=1e-12, atol=1e-12
            )
            t, y = run.t[-1], run.y[:, -1]
            if run.status == 0:
                ends = y[0] + np.array(sides) * _half * np.cos(y[1])
                return np.concatenate([ends, log[:2]])
            side = sides[int(len(run.t_events[1]) > 0)]
            log.append(t)
            J = np.array([1.0, -side * _half * np.sin(y[1])])
            push = np.array([1 / _mass, 12 / _mass]) * J
            y[2:] -= push * 1.5 * (J @ y[2:]) / (J @ push)

    z = np.array([[0.9, 1.2, 0.3], [0.7, 1.9, -0.4], [0.8, 1.35, 1.0]])
    # Forward only, which takes half as long to compile: backward is as elsewhere.
    push = jax.vmap(lambda z, e: jax.jvp(final, (z,), (e,), has_aux=True), (0, None))
    push = jax.jit(push)
    pushed = [push(z, e) for e in np.eye(3)]
    value, _, (count, events) = pushed[0]
    forward = np.stack([column for _, column, _ in pushed], axis=-1)
    assert count.min() >= 2 and {0, 1} <= set(np.asarray(events[:, :2]).flatten())
    h = 1e-6
    slope = lambda z, e: (scipy(z + h * e) - scipy(z - h * e)) / (2 * h)
    for k, row in enumerate(z):
        assert error(value[k], scipy(row)) < 1e-6
        slopes = np.stack([slope(row, e) for e in np.eye(3)], axis=1)
        assert error(forward[k], slopes) < 1e-5


#
# A top
#


def _top():
    """A heavy symmetric top, free, with its tip held by constraints; and the same with
    a ball joint."""
    arm, about_tip = 0.3, jnp.array([0.3, 0.3, 0.2])
    weight = _mass * _gravity

    def torque(t, q, v, args):
        height = lambda v: rotate(q, jnp.cross(v, jnp.array([0, 0, arm])))[2]
        return -weight * jax.grad(height)(jnp.zeros(3))

    top = Multibody(lambda q, args: about_tip, torque, velocity_to_qdot=ball_joint)
    middle = jnp.array([0.0, 0.0, arm])
    about_middle = about_tip - _mass * arm**2 * jnp.array([1.0, 1.0, 0.0])
    free = Multibody(
        lambda q, args: jnp.concatenate([jnp.full(3, _mass), about_middle]),
        lambda t, q, v, args: (
            jnp.concatenate(
                [jnp.array([0, 0, -weight]), -jnp.cross(v[3:], about_middle * v[3:])]
            )
            * jnp.array([1.0, 1, 1, 0, 0, 0])
        ),
        lambda t, q, args: q[:3] - rotate(q[3:], middle),
        velocity_to_qdot=free_joint,
    )
    return top, free, arm, about_tip, weight


def test_a_top():
    top, free, arm, inertia, weight = _top()
    tilt, t1 = 0.6, 1.3
    tilted = jnp.array([np.cos(tilt / 2), np.sin(tilt / 2), 0.0, 0.0])
    axis = lambda q: rotate(q, jnp.array([0.0, 0.0, 1.0]))

    @jax.jit
    def run(spins):
        # A top that precesses steadily: A W^2 cos(tilt) - C w3 W + m g l = 0.
        A, C = inertia[0], inertia[2]
        root = jnp.sqrt((C * spins) ** 2 - 4 * A * weight * arm * np.cos(tilt))
        precession = (C * spins - root) / (2 * A * np.cos(tilt))

        def one(spin, precession):
            v = jnp.stack([jnp.zeros(()), precession * np.sin(tilt), spin])
            held = hj.simulate(top, 0.0, t1, (tilted, v), max_steps=512)
            middle = rotate(tilted, jnp.array([0.0, 0.0, arm]))
            q0 = jnp.concatenate([middle, tilted])
            speed = rotate(tilted, jnp.cross(v, jnp.array([0.0, 0.0, arm])))
            v0 = jnp.concatenate([speed, v])
            bound = hj.simulate(free, 0.0, t1, (q0, v0), max_steps=512)
            return axis(held.x1[0]), axis(bound.x1[0][3:]), bound.x1[0][:3]

        along = jnp.ones(()), jnp.ones(())
        return precession, *jax.jvp(one, (spins, precession), along)

    precession, (held, bound, place), slope = jax.vmap(run)(jnp.array([20.0, 25.0]))
    start = np.asarray(axis(tilted))
    for k in range(2):
        angle = precession[k] * t1
        turn = np.array(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
        exact = np.append(turn @ start[:2], start[2])
        assert error(held[k], exact) < 1e-6
        assert error(bound[k], exact) < 1e-6
        assert error(place[k], arm * exact) < 1e-6
        # Two formulations, one derivative.
        assert error(slope[1][k], slope[0][k]) < 1e-5
        assert error(slope[2][k], arm * slope[0][k]) < 1e-5


def test_consistent_state_of_a_top():
    _, free, arm, _, _ = _top()
    tilted = jnp.array([np.cos(0.3), np.sin(0.3), 0.0, 0.0])

    direction = jnp.array([1.0, -1.0, 0.5])

    @jax.jit
    def found(q0):
        def state(q0):
            guess = jnp.concatenate([q0, tilted]), jnp.ones(6)
            return consistent_state(free, 0.0, guess, throw=False)

        return jax.jvp(state, (q0,), (direction,))

    q0 = jnp.array([0.05, -0.2, 0.2])
    (q, v), (dq, dv) = found(q0)
    residual, rate = jax.jit(lambda x: free.residuals(0.0, x))((q, v))
    assert np.abs(residual).max() < 1e-12 and np.abs(rate).max() < 1e-12
    q, v, dq, dv = map(np.asarray, (q, v, dq, dv))
    assert abs(np.sum(q[3:] ** 2) - 1) < 1e-8
    assert abs(np.sum(q[3:] * dq[3:])) < 1e-8
    plus, minus = (found(q0 + s * direction)[0] for s in (1e-5, -1e-5))
    slopes = jtu.tree_map(lambda a, b: (a - b) / 2e-5, plus, minus)
    assert error(dq, slopes[0]) < 1e-7 and error(dv, slopes[1]) < 1e-7


#
# Conventions, and what is refused
#


def test_joints():
    # To turn about one's own axis by a rate, for a small time.
    q, w = _turned, jnp.array([0.3, -0.2, 0.7])
    r = jnp.array([0.1, 0.4, -0.3])
    _, rate = jax.jvp(lambda q: rotate(q, r), (q,), (ball_joint(q, w),))
    assert error(rate, rotate(q, jnp.cross(w, r))) < 1e-14
    assert error(rotate(3 * q, r), rotate(q, r)) < 1e-14
    quarter = jnp.array([np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)])
    turned = rotate(quarter, jnp.array([1.0, 0.0, 0.0]))
    assert error(turned, jnp.array([0.0, 1.0, 0.0])) < 1e-15


def test_refused():
    mass = lambda q, args: jnp.ones(3)
    effort = lambda t, q, v, args: jnp.zeros(3)
    x = jnp.ones(4) / 2, jnp.ones(3)
    with pytest.raises(ValueError, match="`velocity_to_qdot`"):
        hj.simulate(Multibody(mass, effort), 0.0, 1.0, x)
    short = Multibody(mass, effort, velocity_to_qdot=lambda q, v: v)
    with pytest.raises(ValueError, match="`velocity_to_qdot` must return"):
        hj.simulate(short, 0.0, 1.0, x)
    gap = lambda q, args: jnp.ones(1)
    ball = MechanicalSystem(mass, effort, gap, 1, velocity_to_qdot=ball_joint)
    with pytest.raises(ValueError, match="`velocity_to_qdot`"):
        decoupled(ball, x[0])
    with pytest.raises(ValueError, match="`velocity_to_qdot`"):
        energy = lambda q, v, args: jnp.sum(v**2)
        MechanicalSystem.from_lagrangian(energy, gap, 1, velocity_to_qdot=ball_joint)


def test_float32():
    body = Multibody(
        lambda q, args: jnp.asarray(_inertia),
        lambda t, q, v, args: jnp.zeros(3),
        velocity_to_qdot=ball_joint,
    )
    w = jnp.array([1.0, 0.0, 0.3], jnp.float32)
    q0 = _turned.astype(jnp.float32)
    run = lambda w: hj.simulate(body, 0.0, 7.0, (q0, w), max_steps=128).x1
    (q, v), slope = jax.jit(lambda w: jax.jvp(run, (w,), (w,)))(w)
    assert q.dtype == v.dtype == jnp.float32
    exact = _jacobi(1.0, 0.3, 7.0)
    assert error(np.abs(v), np.abs(exact)) < 1e-3
    assert abs(jnp.sum(q * slope[0])) < 1e-3
