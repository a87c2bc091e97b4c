"""Rods and legs against independent derivations, energy balances and closed forms."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem
from scipy.integrate import quad


_g = 9.81
_tight = dfx.PIDController(rtol=1e-11, atol=1e-11)


#
# The equations of motion, from energies typed here
#


def _down(angle):
    return jnp.stack([jnp.sin(angle), -jnp.cos(angle)])


def _uniform_rods(centres, masses, lengths):
    """A Lagrangian; and the energy, as a function of the state."""

    def parts(q, v):
        place, speed = jax.jvp(centres, (q,), (v,))
        angle_rate = v[2:]
        moving = 0.5 * masses @ jnp.sum(speed**2, axis=1)
        turning = 0.5 * (masses * lengths**2 / 12) @ angle_rate**2
        return moving + turning, _g * masses @ place[:, 1]

    lagrangian = lambda q, v, args: jnp.subtract(*parts(q, v))
    return lagrangian, lambda x: jnp.add(*parts(*x))


def _legs(masses, lengths, count):
    """Hip at `q[:2]`; angles of the torso, and thigh and shank of each leg."""
    (m0, m1, m2), (l0, l1, l2) = masses, lengths

    def links(q):
        hip = q[:2]
        centres, feet = [hip - l0 / 2 * _down(q[2])], []
        for k in range(count):
            thigh, shank = _down(q[3 + 2 * k]), _down(q[4 + 2 * k])
            knee = hip + l1 * thigh
            centres += [hip + l1 / 2 * thigh, knee + l2 / 2 * shank]
            feet.append(knee + l2 * shank)
        return jnp.stack(centres), jnp.stack(feet)

    masses = jnp.array([m0] + [m1, m2] * count)
    lengths = jnp.array([l0] + [l1, l2] * count)
    rods = _uniform_rods(lambda q: links(q)[0], masses, lengths)
    return *rods, lambda q: links(q)[1]


def _same_motion(ours, energies, d, modes):
    """Accelerations and contact forces of two systems of `d` degrees of freedom, in
    many states and all of the modes."""
    modes = jnp.array(modes)

    def both(q, v, mode):
        motion = lambda system: jnp.concatenate(
            [
                system.flow(0.0, (q, v), mode, None)[1],
                *system.contact_forces(0.0, (q, v), mode),
            ]
        )
        return motion(ours), motion(energies)

    keys = jax.random.split(jax.random.key(0), (6, 2))
    states = jax.vmap(jax.vmap(lambda k: jax.random.normal(k, (d,))))(keys)
    run = jax.vmap(jax.vmap(both, (None, None, 0)), (0, 0, None))
    got, want = jax.jit(run)(states[:, 0], states[:, 1], modes)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


_sliding = [ContactMode.FORWARD, ContactMode.BACKWARD, 6, 7]
_leg_modes = [ContactMode.FREE, ContactMode.STICKING, ContactMode.FORWARD]


def _from_energies(legs, count):
    lagrangian, _, feet = legs
    push = jnp.array([3.0, -2.0, 1.0, 4.0])[: 2 * count]
    torques = lambda t, q, v, args: push
    # The opposites of all torques, on the link above.
    share = jnp.zeros((3 + 2 * count, 2 * count))
    for k in range(count):
        hip, knee = 2 * k, 2 * k + 1
        share = share.at[2, hip].set(-1).at[3 + hip, hip].set(1)
        share = share.at[3 + hip, knee].set(-1).at[4 + hip, knee].set(1)
    return torques, MechanicalSystem.from_lagrangian(
        lagrangian,
        lambda q, args: feet(q)[:, 1],
        count,
        effort=lambda t, q, v, args: share @ push,
        tangents=lambda q, args: jax.jacfwd(lambda q: feet(q)[:, 0])(q),
        friction=0.3,
    )


def test_monoped():
    masses, lengths = (2.0, 0.5, 0.3), (0.3, 0.25, 0.2)
    torques, energies = _from_energies(_legs(masses, lengths, 1), 1)
    leg = models.planar_monoped(torques, masses=masses, lengths=lengths, friction=0.3)
    _same_motion(leg, energies, 5, [[m] for m in _leg_modes])


def test_biped():
    masses, lengths = (10.0, 3.0, 2.0), (0.6, 0.4, 0.35)
    torques, energies = _from_energies(_legs(masses, lengths, 2), 2)
    biped = models.planar_biped(torques, masses=masses, lengths=lengths, friction=0.3)
    _same_motion(biped, energies, 7, [[m, n] for m in _leg_modes for n in _leg_modes])


def test_rod():
    def lagrangian(q, v, args):
        return 0.5 * 2.0 * (v[0] ** 2 + v[1] ** 2 - 2 * _g * q[1]) + 0.05 * v[2] ** 2

    reach = lambda q: 0.4 * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
    ends = lambda q: jnp.stack([q[:2] - reach(q), q[:2] + reach(q)])
    energies = MechanicalSystem.from_lagrangian(
        lagrangian,
        lambda q, args: ends(q)[:, 1],
        2,
        tangents=lambda q, args: jax.jacfwd(lambda q: ends(q)[:, 0])(q),
        friction=0.3,
    )
    rod = models.rod(2.0, 0.4, 0.1, friction=0.3)
    modes = [[m, n] for m in _leg_modes for n in _leg_modes if m == 0 or n == 0]
    _same_motion(rod, energies, 3, modes)


def test_gyroscopic_terms():
    # A charge in a magnetic field that changes from place to place.
    field = lambda q: 1 + q[0] ** 2
    potential = lambda q: jnp.stack([0.0, q[0] + q[0] ** 3 / 3])  # its curl
    lagrangian = lambda q, v, args: 0.5 * v @ v + potential(q) @ v - q[1] ** 2
    charge = MechanicalSystem.from_lagrangian(lagrangian, lambda q, args: q[1:], 1)
    q, v = jnp.array([0.7, 2.0]), jnp.array([0.3, -0.4])
    flow = lambda x: charge.flow(jnp.zeros(()), x, jnp.zeros(1, int), None)
    _, got = jax.jit(flow)((q, v))
    want = field(q) * jnp.stack([v[1], -v[0]]) - jnp.stack([0.0, 2 * q[1]])
    np.testing.assert_allclose(got, want, rtol=1e-12)


#
# Motions
#


@pytest.mark.thorough
def test_energy_of_the_biped():
    # It falls on one foot, then on the other, and collapses.
    biped: Any = models.planar_biped(friction=2.0)
    masses, lengths = (10.0, 3.0, 2.0), (0.6, 0.4, 0.4)
    _, energy, _ = _legs(masses, lengths, 2)
    q = jnp.array([0.0, 0.0, 0.1, 0.5, -0.3, -0.3, -0.5])
    q = q.at[1].add(0.02 - jnp.min(biped.gap(q, None)))

    @jax.jit
    @jax.vmap
    def run(rate):
        v = jnp.zeros(7).at[2].set(rate)
        sol = hj.simulate(
            biped,
            0.0,
            0.25,
            (q, v),
            jnp.zeros(2, jnp.int32),
            stepsize_controller=_tight,
            max_steps=1024,
            max_events=16,
        )
        log = sol.events
        jump = log.x_after[1] - log.x_before[1]
        mass = jax.vmap(lambda q: biped.mass_matrix(q, None))(log.x_before[0])
        lost = 0.5 * jnp.einsum("ki,kij,kj->k", jump, mass, jump)
        at = jax.vmap(energy)
        values = energy((q, v)), at(log.x_before), at(log.x_after), energy(sol.x1)
        return log, lost, values

    logs, losses, values = run(jnp.array([-1.0, 0.0, 1.0]))
    for lane in range(3):
        log, lost, (first, before, after, last) = jax.tree.map(
            lambda leaf, lane=lane: np.asarray(leaf)[lane], (logs, losses, values)
        )
        n = int(log.count)
        assert {0, 1} <= set(log.event[:n])
        starts = np.concatenate([[first], after[:n]])
        ends = np.concatenate([before[:n], [last]])
        slides = np.concatenate(
            [[False], np.isin(log.mode_after[:n], _sliding).any(axis=1)]
        )
        np.testing.assert_allclose(ends[~slides], starts[~slides], rtol=1e-9)
        assert (ends[slides] < starts[slides]).all()
        # Carnot's theorem: what is lost is the energy of the lost velocity, if the feet
        # stick.
        loss, sticks = before[:n] - after[:n], ~slides[1:]
        np.testing.assert_allclose(loss[sticks], lost[:n][sticks], atol=1e-9)
        assert loss[sticks].max() > 0.1 and loss.min() > -1e-9


@pytest.mark.thorough
def test_rod_falls_over():
    # Without friction, on its left end: the centre falls straight down. When the other
    # end lands, with the first one closed, all stops.
    def ours(p):
        tilt, half_length, g = p
        rod = models.rod(1.0, half_length, gravity=g)
        q = jnp.stack([0.0, half_length * jnp.sin(tilt), tilt])
        sol = hj.simulate(
            rod,
            0.0,
            1.0,
            (q, jnp.zeros(3)),
            jnp.array([ContactMode.FORWARD, ContactMode.FREE]),
            stepsize_controller=_tight,
            max_steps=256,
            max_events=4,
        )
        log = sol.events
        number = log.count.astype(float)
        rate = -log.x_before[1][0, 2]
        value = jnp.stack([log.t[0], rate])
        return value, (value, jnp.stack([*sol.x1[1], number]))

    def rate(tilt, angle):  # for half length and gravity 1
        fallen = np.sin(tilt) - np.sin(angle)
        return np.sqrt(2 * fallen / (np.cos(angle) ** 2 + 1 / 3))

    def exact(tilt):
        # The root at the start is taken out of the integrand: angle = tilt - y².
        integrand = lambda y: 2 * y / rate(tilt, tilt - y**2)
        time, _ = quad(integrand, 0, np.sqrt(tilt), epsabs=1e-14, epsrel=1e-13)
        return np.array([time, rate(tilt, 0)])

    points = np.array([[0.5, 0.5, 9.81], [0.9, 0.3, 4.0], [0.3, 0.6, 12.0]])
    slopes, (got, ends) = jax.jit(jax.vmap(jax.jacrev(ours, has_aux=True)))(points)
    np.testing.assert_allclose(ends[:, :3], 0, atol=1e-9)
    np.testing.assert_array_equal(ends[:, 3], 1)
    for (tilt, length, g), x, dx in zip(points, got, slopes, strict=True):
        scale = np.array([np.sqrt(length / g), np.sqrt(g / length)])
        want = scale * exact(tilt)
        np.testing.assert_allclose(x, want, rtol=1e-8)
        h = 1e-3
        near, far = (
            exact(tilt + h) - exact(tilt - h),
            exact(tilt + 2 * h) - exact(tilt - 2 * h),
        )
        by_tilt = scale * (8 * near - far) / (12 * h)
        by_length = np.array([0.5, -0.5]) * want / length
        by_gravity = np.array([-0.5, 0.5]) * want / g
        want = np.stack([by_tilt, by_length, by_gravity], axis=1)
        np.testing.assert_allclose(dx, want, rtol=1e-6)


#
# The planar hopper
#

_hill = lambda x: 0.1 * jnp.sin(3 * x)
_args = jnp.array([4.0, -0.02])  # torque, extension
_zero = jnp.zeros(())


def _planar_hopper(stiffness: Any = 3000.0):
    return models.PlanarHopper(_hill, 8.0, 0.6, 0.6, stiffness, 1.5, _g)


def test_planar_hopper_in_stance():
    # From energies: the length and angle of the leg are those between hip and foot.
    hopper = _planar_hopper()
    foot = jnp.stack([0.2, _hill(0.2)])

    def leg(q):
        reach = q[:2] - foot
        return jnp.arctan2(-reach[0], reach[1]), jnp.sqrt(reach @ reach)

    def energy(q):
        return 8 * _g * q[1] + 3000 / 2 * (0.58 - leg(q)[1]) ** 2

    def both(q, v):
        swing, turned = jax.jvp(lambda q: leg(q)[0], (q,), (v,))
        hip = lambda q: leg(q)[0] - q[2]
        moment = 4 - 1.5 * (turned - v[2])
        force = moment * jax.grad(hip)(q) - jax.grad(energy)(q)
        want = [v, turned[None], force / jnp.array([8.0, 8.0, 0.6]), jnp.zeros(1)]
        x = jnp.concatenate([q, swing[None], v, foot[:1]])
        return hopper.flow(_zero, x, jnp.array(1), _args), jnp.concatenate(want)

    states = jax.random.normal(jax.random.key(0), (20, 2, 3))
    q = jnp.array([[0.2, 0.6, 0.0]]) + 0.1 * states[:, 0]
    got, want = jax.jit(jax.vmap(both))(q, states[:, 1])
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_planar_hopper_lands():
    # The foot stays where it is, and on the hill.
    hopper, zero = _planar_hopper(), jnp.asarray(0)
    for lean in (-0.3, 0.0, 0.4):
        x = jnp.array([0.1, 0.0, 0.2, lean, 1.0, -2.0, 0.5, 9.0])
        x = x.at[1].add(-hopper.guards(_zero, x, zero, _args)[0])
        before = hopper.foot(x, zero, _args)
        np.testing.assert_allclose(before[1], _hill(before[0]), atol=1e-15)
        after, mode = hopper.jump(_zero, x, zero, zero, _args)
        assert mode == 1
        np.testing.assert_allclose(hopper.foot(after, mode, _args), before, atol=1e-15)
        np.testing.assert_array_equal(after[:7], x[:7])
        # The leg is as long as in flight: no force yet.
        np.testing.assert_allclose(
            hopper.guards(_zero, after, mode, _args)[1], 0, atol=1e-15
        )


def test_planar_hopper_hops_on_the_spot():
    def hop(height, stiffness):
        hopper = _planar_hopper(stiffness)
        x0 = jnp.zeros(8).at[1].set(height)
        args = jnp.zeros(2)
        sol = hj.simulate(
            hopper, 0.0, 1.0, x0, 0, args, stepsize_controller=_tight, max_events=4
        )
        want = models.spring_hopper_flow(1.0, height, 8.0, stiffness, 0.6, _g)
        return (sol.x1[jnp.array([1, 5])], sol.events.t[:2]), want

    heights, stiffnesses = jnp.array([0.8, 1.0, 0.9]), jnp.array([2e3, 3e3, 8e3])
    got, want = jax.jit(jax.vmap(hop))(heights, stiffnesses)
    for ours, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-7, atol=1e-8)


#
# The compass gait
#


_compass = models.CompassGait(slope=np.deg2rad(3.0), gravity=9.8)


def _masses(hip, angles):
    """Where the masses of hip, swing and stance leg are, and both feet."""
    swing, stance = _down(angles[0]), _down(angles[1])
    masses = jnp.stack([hip, hip + 0.5 * swing, hip + 0.5 * stance])
    return masses, hip + swing, hip + stance


def _kinetic(place, z, rate):
    _, speed = jax.jvp(place, (z,), (rate,))
    return 0.5 * jnp.array([10.0, 5.0, 5.0]) @ jnp.sum(speed**2, axis=1)


def test_compass_gait_swings():
    # About the stance foot, from the energies.
    place = lambda angles: _masses(-_down(angles[1]), angles)[0]
    height = lambda q: jnp.array([10.0, 5.0, 5.0]) @ place(q)[:, 1]
    lagrangian = lambda q, v, args: _kinetic(place, q, v) - 9.8 * height(q)
    # Of the hip, from the stance leg to the swing leg; and of the ankle.
    joints = lambda q: jnp.stack([q[0] - q[1], q[1]])
    energies = MechanicalSystem.from_lagrangian(
        lagrangian,
        lambda q, args: q[:1],
        1,
        effort=lambda t, q, v, torques: jax.jacfwd(joints)(q).T @ torques,
    )

    def both(x, torques):
        q, v = x[:2], x[2:]
        _, want = energies.flow(jnp.zeros(()), (q, v), jnp.zeros(1, int), torques)
        ours = lambda args: _compass.flow(jnp.zeros(()), x, jnp.asarray(0), args)[2:]
        return ours(torques), want, ours(None)

    keys = jax.random.split(jax.random.key(0))
    states = jax.random.normal(keys[0], (20, 4))
    torques = jax.random.normal(keys[1], (20, 2)) * 30
    # Half of them without motors.
    torques = torques.at[10:].set(0)
    got, want, passive = jax.jit(jax.vmap(both))(states, torques)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(got[10:], passive[10:])


def test_compass_gait_lands():
    # An impulse at the foot that lands, and none at the other, on the free machine.
    def exact(x):
        place = lambda z: _masses(z[:2], z[2:])[0]
        feet = lambda z: _masses(z[:2], z[2:])[1:]
        z = jnp.concatenate([-_down(x[1]), x[:2]])
        mass = jax.hessian(lambda rate: _kinetic(place, z, rate))(jnp.zeros(4))
        landing, standing = jax.jacfwd(feet)(z)
        # The stance foot is at rest before.
        rate = jnp.concatenate([-standing[:, 2:] @ x[2:], x[2:]])
        block = jnp.block([[mass, -landing.T], [landing, jnp.zeros((2, 2))]])
        momentum = jnp.concatenate([mass @ rate, jnp.zeros(2)])
        after = jnp.linalg.solve(block, momentum)[2:4]
        return jnp.concatenate([x[:2][::-1], after[::-1]])

    x = jax.random.normal(jax.random.key(1), (20, 4))
    one = jnp.asarray(1)
    land = lambda x: _compass.jump(jnp.zeros(()), x, one, one, None)[0]
    np.testing.assert_allclose(
        jax.vmap(land)(x), jax.jit(jax.vmap(exact))(x), rtol=1e-8
    )


def test_compass_gait_walks():
    # It settles into the published gait of this slope, from which it starts off it.
    published = jnp.array([-0.3234, 0.2187, -0.3772, -1.0918])

    def walk(push):
        x0 = published.at[3].add(push)
        sol = hj.simulate(
            _compass,
            0.0,
            30.0,
            x0,
            jnp.asarray(0),
            stepsize_controller=dfx.PIDController(rtol=1e-9, atol=1e-9),
            max_steps=4096,
            max_events=128,
        )
        last = sol.events.count - 1 - (sol.events.count % 2)
        return sol.events.x_after[last], sol.events.event[last], sol.events.count

    x, event, count = jax.jit(jax.vmap(walk))(jnp.array([0.0, 0.02]))
    assert (count > 70).all() and (event == 1).all()
    np.testing.assert_allclose(x, jnp.stack([published] * 2), atol=1e-4)
