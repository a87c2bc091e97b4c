"""Contacts against closed forms: values, event times and gradients."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem
from hybridjax.models._bodies.planar_body import PlanarBody
from scipy.integrate import quad, solve_ivp

from ..helpers import both_jacobians, error


_tight = dfx.PIDController(rtol=1e-11, atol=1e-11)
# It has few stages, which compiles faster, and is exact where all paths are parabolas.
_of_parabolas = dfx.Bosh3()
_F, _B, _S = ContactMode.FORWARD, ContactMode.BACKWARD, ContactMode.STICKING


def _compare(ours, exact, points, rtol):
    """Values and all first derivatives of both."""
    closed = lambda p: (exact(p), jax.jacrev(exact)(p))
    values, slopes = jax.jit(jax.vmap(closed))(points)

    @jax.jit
    def row(p, k):
        # Of one point, and one cotangent: batches take longer to compile.
        value, pull = jax.vjp(ours, p)
        return value, pull((jnp.arange(value.size) == k).astype(value.dtype))[0]

    for p, value, slope in zip(points, values, slopes, strict=True):
        for k, expected in enumerate(slope):
            got, of_row = row(p, k)
            np.testing.assert_allclose(got, value, rtol=rtol, atol=rtol)
            np.testing.assert_allclose(of_row, expected, rtol=rtol, atol=rtol)


def _slide(p, controller):
    """Thrown at a slope so that it slides up, stops, and slides back or sticks."""
    angle, mu, drop, speed = p
    slope = models.point_mass_on_slope(angle, friction=mu)
    turn = jnp.stack([jnp.cos(angle), -jnp.sin(angle)])
    normal = jnp.stack([jnp.sin(angle), jnp.cos(angle)])
    sol = hj.simulate(
        slope,
        0.0,
        1.5,
        (drop * normal, -speed * turn),
        jnp.array([ContactMode.FREE]),
        solver=_of_parabolas,
        stepsize_controller=controller,
        max_steps=64,
        max_events=8,
    )
    q, v = sol.x1
    times = sol.events.t[0], sol.events.t[1]
    return jnp.stack([turn @ q, turn @ v, normal @ q, *times])


def _slide_exact(p):
    angle, mu, drop, speed = p
    down, press = 9.81 * jnp.sin(angle), 9.81 * jnp.cos(angle)
    lands = jnp.sqrt(2 * drop / press)
    s, v = -speed * lands + down * lands**2 / 2, -speed + down * lands
    v = v + mu * press * lands  # the tangential impulse
    stops = -v / (down + mu * press)
    s = s + v * stops / 2
    rest = 1.5 - lands - stops
    back = jnp.maximum(down - mu * press, 0)
    return jnp.stack([s + back * rest**2 / 2, back * rest, 0 * s, lands, lands + stops])


_slides = jnp.array(
    [
        [angle, mu, drop, speed]
        for angle, mu in [(0.3, 0.2), (0.5, 0.3), (0.3, 0.4), (0.2, 0.5)]
        for drop in [0.05, 0.2]
        for speed in [4.0, 6.0]
    ]
)


@pytest.mark.thorough
def test_slope():
    _compare(lambda p: _slide(p, _tight), _slide_exact, _slides, 1e-8)


@pytest.mark.thorough
def test_sticking_without_a_limit():
    # What drops on a slope, however steep, stays where it lands.
    end = 1.5

    def lands(p):
        angle, height, speed = p
        slope = models.point_mass_on_slope(angle, static_friction=jnp.inf)
        down = jnp.stack([jnp.cos(angle), -jnp.sin(angle)])
        normal = jnp.stack([jnp.sin(angle), jnp.cos(angle)])
        x0 = height * normal, speed * down
        mode = jnp.array([ContactMode.FREE])
        q, v = hj.simulate(slope, 0.0, end, x0, mode, solver=_of_parabolas).x1
        return jnp.stack([down @ q, normal @ q, down @ v, normal @ v])

    def landed(p):
        angle, height, speed = p
        t = jnp.sqrt(2 * height / (9.81 * jnp.cos(angle)))
        s = speed * t + 9.81 * jnp.sin(angle) * t**2 / 2
        return jnp.stack([s, 0 * s, 0 * s, 0 * s])

    points = np.random.default_rng(5).uniform([0.1, 0.2, -2], [1.3, 0.5, 2], (16, 3))
    _compare(lands, landed, jnp.asarray(points), 1e-7)


def test_float32():
    # The state, and the parameters that are not given have more digits.
    loose = dfx.PIDController(rtol=1e-5, atol=1e-5)

    @jax.jit
    def column(p, e):
        # Of one point, and one tangent: batches take longer to compile.
        return jax.jvp(lambda p: _slide(p, loose), (p,), (e,))

    exact = jax.jacfwd(lambda p: (_slide_exact(p),) * 2, has_aux=True)
    slopes, values = jax.jit(jax.vmap(exact))(_slides)
    points, basis = _slides.astype(jnp.float32), jnp.eye(4, dtype=jnp.float32)
    columns = [[column(p, e) for e in basis] for p in points]
    value = np.stack([row[0][0] for row in columns])
    slope = np.stack([np.stack([s for _, s in row], axis=-1) for row in columns])
    for got, expected in ((value, values), (slope, slopes)):
        assert got.dtype == jnp.float32
        assert error(got, expected) < 1e-4


def test_stick_slip():
    # A block that sticks and slips, on the level; the second slip is like the first.
    def ours(p):
        stiffness, mu, more, speed, mass = p
        block = models.block_on_incline(0.0, mu, mu + more, stiffness, speed, mass)
        sol = hj.simulate(
            block,
            0.0,
            9.0,
            (jnp.zeros(2), jnp.zeros(2)),
            jnp.array([_S]),
            stepsize_controller=_tight,
            max_steps=1024,
            max_events=16,
        )
        # A slip has three events: it begins, is fastest (where it is told from the
        # beginning), and ends.
        times = jnp.concatenate([sol.events.t[:6:3], sol.events.t[2:6:3]])
        return jnp.concatenate([sol.events.x_after[0][2][:1], times])

    def exact(p):
        stiffness, mu, more, speed, mass = p
        weight = 9.81 * mass
        drawn = more * weight / stiffness
        frequency = jnp.sqrt(stiffness / mass)
        angle = 2 * jnp.pi - 2 * jnp.arctan(drawn * frequency / speed)
        first = (mu + more) * weight / (stiffness * speed)
        slip = speed * angle / frequency + 2 * drawn
        after = first + angle / frequency
        again = after + 2 * drawn / speed
        again = after + (slip - speed * angle / frequency) / speed
        return jnp.stack([slip, first, again, after, again + angle / frequency])

    points = [
        [stiffness, 0.1, more, speed, mass]
        for stiffness in [8.0, 15.0]
        for more in [0.03, 0.06]
        for speed, mass in [(0.4, 1.0), (0.5, 1.5)]
    ]
    _compare(ours, exact, jnp.array(points), 1e-7)


def _rest(b, h, tilt):
    """A block that stands on its right corner, tilted to the right."""
    up = b * jnp.sin(tilt) + h * jnp.cos(tilt)
    return jnp.stack([jnp.zeros_like(up), up, -tilt])


@pytest.mark.thorough
def test_rocking_block():
    def ours(p):
        b, h, tilt = p
        sol = hj.simulate(
            models.rocking_block(b, h),
            0.0,
            1.0,
            (_rest(b, h, tilt), jnp.zeros(3)),
            jnp.array([ContactMode.FREE, _S]),
            stepsize_controller=_tight,
            max_steps=512,
            max_events=8,
        )
        _, before = sol.events.x_before
        _, after = sol.events.x_after
        # Time and rate of the first landing, and the share of the rate that is left.
        return jnp.stack([sol.events.t[0], before[0, 2], after[0, 2] / before[0, 2]])

    def exact(b, h, tilt):
        # Housner (1963): energy, and angular momentum about the landing corner.
        R, alpha = np.hypot(b, h), np.arctan2(b, h)
        p2 = 9.81 * 3 / (4 * R)
        # The rate at the angle tilt - y², which takes the root out of the integrand.
        rate = lambda y: np.sqrt(
            4 * p2 * np.sin(alpha - tilt + y**2 / 2) * np.sin(y**2 / 2)
        )
        end = np.sqrt(tilt)
        time, _ = quad(lambda y: 2 * y / rate(y), 0, end, epsabs=1e-13, epsrel=1e-12)
        return np.array([time, rate(end), 1 - 1.5 * np.sin(alpha) ** 2])

    points = np.array([[0.1, 0.5, 0.1], [0.08, 0.4, 0.15], [0.1, 0.3, 0.2]])
    both = jax.jacrev(lambda p: (ours(p),) * 2, has_aux=True)
    jacobian, value = jax.jit(jax.vmap(both))(points)
    for point, x, dx in zip(points, value, jacobian, strict=True):
        np.testing.assert_allclose(x, exact(*point), rtol=1e-8)
        for k, step in enumerate(1e-4 * np.eye(3)):
            # Of fourth order in the step.
            near = exact(*(point + step)) - exact(*(point - step))
            far = exact(*(point + 2 * step)) - exact(*(point - 2 * step))
            slope = (8 * near - far) / 12e-4
            np.testing.assert_allclose(dx[:, k], slope, rtol=2e-6, atol=2e-6)


@pytest.mark.thorough
def test_contacts_stay_closed():
    # Ten seconds of rocking, while the corner that it stands on slips and sticks.
    @jax.jit
    def run(mu):
        block = models.rocking_block(0.2, 2.0, friction=mu)
        sol = hj.simulate(
            block,
            0.0,
            10.0,
            (_rest(0.2, 2.0, jnp.asarray(0.05)), jnp.zeros(3)),
            jnp.array([ContactMode.FREE, _S]),
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 10, 401)),
            max_steps=1024,
        )
        gaps = jax.vmap(lambda q: block.gap(q, None))(sol.xs[0])
        return gaps, sol.modes, sol.events.count, sol.events.event

    gaps, modes, count, events = run(0.07)
    closed = np.isin(modes, [_S, _F, _B, 6, 7])
    assert closed.any(axis=1).all()
    assert np.abs(gaps[closed]).max() < 1e-8
    assert gaps.min() > -1e-8
    impacts = np.isin(events[:count], [0, 1]).sum()
    assert impacts >= 8 and count - impacts >= 16  # it does rock, and slip


def _table(mu):
    """A rigid table on four feet: two would do."""
    body = PlanarBody(jnp.asarray(2.0), jnp.asarray(0.4), jnp.asarray(9.81))
    feet = jnp.array([-0.6, -0.2, 0.2, 0.6])
    return MechanicalSystem(
        body.mass_matrix,
        body.effort,
        lambda q, args: q[1] - 0.5 * jnp.cos(q[2]) + feet * jnp.sin(q[2]),
        4,
        tangents=lambda q, args: jnp.stack(
            [jnp.ones(4), jnp.zeros(4), 0.5 * jnp.cos(q[2]) - feet * jnp.sin(q[2])], 1
        ),
        friction=mu,
    )


@pytest.mark.thorough
def test_redundant_contacts():
    # Falls flat on four feet, slides on them, and stops: as a point mass would.
    def ours(p):
        mu, speed, drop = p
        q, v = jnp.stack([0.0, 0.5 + drop, 0.0]), jnp.stack([speed, 0.0, 0.0])
        table = _table(mu)
        mode = jnp.zeros(4, jnp.int32)
        options = dict[str, Any](solver=_of_parabolas, max_steps=64, max_events=8)
        sol = hj.simulate(table, 0.0, 1.5, (q, v), mode, **options)
        normal, _ = table.contact_forces(1.5, sol.x1, sol.mode1)
        return jnp.concatenate([*sol.x1, jnp.sum(normal)[None]])

    def exact(p):
        mu, speed, drop = p
        lands = jnp.sqrt(2 * drop / 9.81)
        after = jnp.maximum(speed - mu * 9.81 * lands, 0)  # the tangential impulse
        slides = jnp.minimum(after / (mu * 9.81), 1.5 - lands)
        x = speed * lands + after * slides - mu * 9.81 * slides**2 / 2
        v = after - mu * 9.81 * slides
        return jnp.stack([x, 0.5, 0.0, v, 0.0, 0.0, 2 * 9.81])

    points = [[0.3, 3.0, 0.1], [0.2, 2.0, 0.3], [0.3, 6.0, 0.01], [0.4, 0.5, 0.2]]
    _compare(ours, exact, jnp.array(points), 1e-7)


@pytest.mark.thorough
def test_rimless_wheel():
    n, slope, inertia = 8, 0.1, 0.2
    wheel = models.rimless_wheel(n, slope, inertia=inertia)
    alpha = np.pi / n
    tip = lambda phi, rate: (
        # Its spoke 0 stands at phi past the normal.
        (
            jnp.array([np.sin(phi), np.cos(phi), -phi]),
            rate * jnp.array([np.cos(phi), -np.sin(phi), -1.0]),
        )
    )

    @jax.jit
    def run(x):
        mode = jnp.zeros(n, int).at[0].set(_S)
        sol = hj.simulate(wheel, 0.0, 1.2, x, mode, max_steps=200, max_events=8)
        return sol.events, sol.mode1

    log, _ = run(tip(-0.1, 1.2))
    rates = lambda x: -np.asarray(x[1])[: int(log.count), 2]
    before, after = rates(log.x_before), rates(log.x_after)
    assert log.count == 2
    np.testing.assert_array_equal(log.event[:2], [1, 2])
    # One spoke takes over from the other, in the instant in which it lands.
    np.testing.assert_array_equal(log.mode_after[:2], np.eye(n, dtype=int)[1:3])
    loss = (np.cos(2 * alpha) + inertia) / (1 + inertia)
    np.testing.assert_allclose(after, loss * before, rtol=1e-8)
    gain = lambda a, b: (
        2 * 9.81 / (1 + inertia) * (np.cos(a + slope) - np.cos(b + slope))
    )
    exact = np.sqrt(1.2**2 + gain(-0.1, alpha))
    np.testing.assert_allclose(before[0], exact, rtol=1e-8)
    exact = np.sqrt(after[0] ** 2 + gain(-alpha, alpha))
    np.testing.assert_allclose(before[1], exact, rtol=1e-8)


@pytest.mark.thorough
def test_one_of_two_lifts_off():
    # A rod that lies on both ends; a growing torque lifts the right one. It turns about
    # the left one, which goes on sticking.
    def ours(p):
        mass, half_length, rate = p
        turn = lambda t: jnp.stack([0.0, 0.0, 1.0]) * rate * t
        weight = jnp.stack([0.0, -9.81 * mass, 0.0])
        rod = models.rod(
            mass,
            half_length,
            friction=1.0,
            effort=lambda t, q, v, args: weight + turn(t),
        )
        sol = hj.simulate(
            rod,
            0.0,
            1.0,
            (jnp.zeros(3), jnp.zeros(3)),
            jnp.array([_S, _S]),
            stepsize_controller=_tight,
            max_steps=512,
            max_events=4,
        )
        normal, _ = rod.contact_forces(1.0, sol.x1, sol.mode1)
        value = jnp.stack([sol.events.t[0], sol.x1[0][2], sol.x1[1][2]])
        return value, (value, normal, sol.mode1, sol.events.event[0])

    def exact(p):
        # The angle and its rate, and their derivatives, from the liftoff on.
        mass, half_length, rate = p
        inertia = mass * half_length**2 * 4 / 3
        lifts = 9.81 * mass * half_length / rate

        def field(t, y):
            weight = 9.81 * mass * half_length * np.cos(y[0])
            acceleration = (rate * t - weight) / inertia
            by_angle = 9.81 * mass * half_length * np.sin(y[0]) / inertia
            by_mass = -rate * t / mass
            by_length = (weight - 2 * rate * t) / half_length
            by_p = np.array([by_mass, by_length, t]) / inertia
            along = y[5:] * 1.0, by_angle * y[2:5] + by_p
            return np.concatenate([[y[1], acceleration], *along])

        # The acceleration is zero at liftoff, so nothing starts with a slope.
        sol = solve_ivp(
            field, (lifts, 1.0), np.zeros(8), "DOP853", rtol=1e-12, atol=1e-13
        )
        y = sol.y[:, -1]
        by_p = lifts * np.array([1 / mass, 1 / half_length, -1 / rate])
        return np.array([lifts, *y[:2]]), np.stack([by_p, y[2:5], y[5:]])

    points = np.array([[1.0, 0.5, 8.0], [2.0, 0.3, 10.0], [0.5, 0.6, 4.0]])
    run = jax.jit(jax.vmap(jax.jacfwd(ours, has_aux=True)))
    slopes, (values, normal, mode, event) = run(points)
    for point, x, dx in zip(points, values, slopes, strict=True):
        value, slope = exact(point)
        np.testing.assert_allclose(x, value, rtol=1e-8)
        np.testing.assert_allclose(dx, slope, rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(mode, [[_S, ContactMode.LIFTING]] * 3)
    np.testing.assert_array_equal(event, [1] * 3)
    assert (normal[:, 0] > 0).all() and (normal[:, 1] == 0).all()


def test_no_limit_of_friction():
    # A rod that turns about its end, until that would have to be held down. Without the
    # force along the ground it would sink: so it slides, as it does a little before
    # where the friction is large.
    @jax.jit
    def slope(p):
        return jax.jvp(ours, (p,), (jnp.array([0.7, -0.4, 1.0, 0.0]),), has_aux=True)

    def ours(p):
        tilt, rate, mu, static = p
        rod = models.rod(friction=mu, static_friction=static)
        end = 0.5 * jnp.stack([jnp.cos(tilt), jnp.sin(tilt)])
        turn = 0.5 * jnp.stack([-jnp.sin(tilt), jnp.cos(tilt)])
        q = jnp.concatenate([end, tilt[None]])
        v = rate * jnp.concatenate([turn, jnp.ones(1)])
        sol = hj.simulate(
            rod,
            0.0,
            0.3,
            (q, v),
            jnp.array([_S, ContactMode.FREE]),
            solver=_of_parabolas,
            stepsize_controller=dfx.PIDController(rtol=1e-9, atol=1e-9),
            max_steps=512,
            max_events=8,
        )
        return jnp.concatenate(sol.x1), sol.events.mode_after[0]

    for p in [1.3, 3.6, 0.1], [1.6, 3.0, 0.2], [1.5, -3.2, 0.3], [1.9, -3.6, 0.0]:
        x, dx, mode = slope(jnp.array([*p, jnp.inf]))
        backward = p[1] > 0
        slips = ContactMode.SLIPPING_FORWARD + backward
        np.testing.assert_array_equal(mode, [slips, ContactMode.FREE])
        limit, d_limit, _ = slope(jnp.array([*p, 1e7]))
        np.testing.assert_allclose(x, limit, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(dx, d_limit, rtol=1e-6, atol=1e-7)


def test_an_impact_opens_a_contact_that_has_drifted():
    # The ends of a rod of much inertia, of which one slides and the other strikes: they
    # part, and begin at their surface, whatever the errors of the steps before.
    rod = models.rod(inertia=0.5)
    gap = lambda q: rod.gap(q, None)
    mode, v = jnp.array([_F, ContactMode.FREE]), jnp.array([0.3, -1.0, -2.0])

    @jax.jit
    def parts(q, dq):
        jump = lambda q: rod.jump(jnp.zeros(()), (q, v), mode, jnp.asarray(1), None)[0]
        (q, after), (dq, _) = jax.jvp(jump, (q,), (dq,))
        of_velocity = jax.jvp(gap, (q,), (after,))[1]
        return gap(q), of_velocity, jax.jvp(gap, (q,), (dq,))[1]

    for drift in (-1e-5, 1e-6):
        q = jnp.array([0.1, drift / 2, -drift])
        np.testing.assert_allclose(gap(q), [drift, 0], atol=1e-12)
        place, speed, tangent = parts(q, jnp.array([0.2, 0.5, -0.3]))
        np.testing.assert_allclose(place, 0, atol=1e-12)
        assert speed[0] > 0.5 and abs(speed[1]) < 1e-9
        np.testing.assert_allclose(tangent, 0, atol=1e-4)


def test_what_an_impact_hardly_opens_stays_closed():
    # One end of a rod rests, the other one strikes where this is nearly the center of
    # percussion. What opens with less than the speed of a last bounce does not; with
    # such errors of the inertia it opens with up to 10 um/s, or not at all.
    def rod(share, **options):
        mass = jnp.diag(jnp.stack([jnp.ones_like(share), share / 2]))
        push = jnp.array([-9.81, 0.0])
        gap = lambda q, args: q[0] + jnp.array([1.0, -0.5]) * jnp.sin(q[1])
        return hj.mechanics.MechanicalSystem(
            lambda q, args: mass, lambda t, q, v, args: push, gap, 2, **options
        )

    @jax.jit
    def after(share, rest_speed):
        system = rod(1 + share, rest_speed=rest_speed)
        x, mode = (jnp.zeros(2), jnp.array([-0.4, 0.4])), jnp.array([_F, 0])
        (_, v), mode = system.jump(jnp.zeros(()), x, mode, jnp.asarray(1), None)
        return v[0] + jnp.array([1.0, -0.5]) * v[1], mode

    for share in (1e-5, 1e-7, 1e-9, 1e-12, 0.0, -1e-9):
        speeds, mode = after(share, 1e-4)
        np.testing.assert_allclose(speeds, 0, atol=1e-15)
        np.testing.assert_array_equal(mode, [_F, _F])
    for share in (1e-2, 1e-3):
        speeds, mode = after(share, 1e-5)
        # By the impulse of the other one, through the entries of J M^-1 J^T.
        own, across = 1 + 0.5 / (1 + share), 1 - 1 / (1 + share)
        np.testing.assert_allclose(speeds, [0.6 * across / own, 0], atol=1e-15)
        assert mode[0] == ContactMode.FREE and mode[1] == _F


def test_restitution_of_the_state():
    # Of each contact; Newton's law, for one impact of each end of a rod in free fall.
    bounce = lambda q, v, args: jnp.stack([0.5 / (1 + v[1] ** 2), 0.3 + 0.1 * v[2]])
    rod = models.rod(0.7, 0.4, restitution=bounce)
    q, v = jnp.zeros(3), jnp.array([0.3, -1.5, 0.4])
    rate = lambda v: v[1] + 0.4 * jnp.array([-1.0, 1.0]) * v[2]
    jump = eqx.filter_jit(rod.jump)
    for j in range(2):
        x, mode = jump(jnp.zeros(()), (q, v), jnp.zeros(2, int), jnp.asarray(j), None)
        share = bounce(q, v, None)[j]
        np.testing.assert_allclose(rate(x[1])[j], -share * rate(v)[j], rtol=1e-12)
        np.testing.assert_array_equal(mode, [0, 0])


@pytest.mark.thorough
def test_paddle_juggler():
    e, amplitude, frequency, g = 0.7, 0.05, 2.5, 9.81
    period = 1 / frequency
    omega = 2 * np.pi * frequency
    speed = g * period / 2 * (1 - e) / (1 + e)  # of the paddle, at impact
    phase = np.arccos(speed / (amplitude * omega))
    begin, height = phase / omega, amplitude * np.sin(phase)

    @jax.jit
    @jax.vmap
    def run(A, e, w):
        juggler = models.paddle_juggler(e, A, frequency)
        x0 = (jnp.array([height]), jnp.stack([w]))
        sol = hj.simulate(
            juggler, begin, begin + 3.5 * period, x0, jnp.zeros(1, int), max_steps=200
        )
        return sol.events.t[:3], sol.x1

    t, (q, v) = run(jnp.array([amplitude]), jnp.array([e]), jnp.array([g * period / 2]))
    np.testing.assert_allclose(t[0], begin + period * np.arange(1, 4), rtol=1e-9)
    np.testing.assert_allclose(q[0, 0], height + g * period**2 / 8, rtol=1e-8)
    np.testing.assert_allclose(v[0, 0], 0, atol=1e-7)


def test_ball_rides_on_paddle():
    # Without restitution it lands, rides, and is thrown where the paddle's acceleration
    # is -g: a closed contact whose surface moves.
    amplitude, frequency, g = 0.05, 3.0, 9.81
    omega = 2 * np.pi * frequency
    leaves = (np.arcsin(g / (amplitude * omega**2))) / omega

    def run(A):
        juggler = models.paddle_juggler(0.0, A, frequency)
        x0 = (jnp.zeros(1), jnp.stack([A * omega]))
        sol = hj.simulate(
            juggler,
            0.0,
            0.1,
            x0,
            jnp.array([_F]),
            stepsize_controller=_tight,
            max_steps=200,
        )
        return sol.events.t[0], sol.x1

    value = jax.jit(jax.value_and_grad(run, has_aux=True))
    (t, (q, v)), slope = value(amplitude)
    np.testing.assert_allclose(t, leaves, rtol=1e-8)
    exact = jax.grad(lambda A: jnp.arcsin(g / (A * omega**2)) / omega)(amplitude)
    np.testing.assert_allclose(slope, exact, rtol=1e-7)
    fly = 0.1 - leaves
    speed = amplitude * omega * np.cos(omega * leaves)
    height = amplitude * np.sin(omega * leaves) + speed * fly - g * fly**2 / 2
    np.testing.assert_allclose([q[0], v[0]], [height, speed - g * fly], rtol=1e-8)


def test_what_departed_a_while_ago_cannot_stop_at_once():
    # A cart is pulled by a force that grows, until it slides. What slides on it, and is
    # faster, drags it along, and then sticks to it. From then on it has to be dragged,
    # and slows the cart down, which has a speed by then.
    ground, top, g = 0.5, 0.3, 9.81

    @jax.jit
    def ours(p):
        speed, growth, duration = p
        stack = MechanicalSystem(
            lambda q, args: jnp.eye(4),  # cart and load, along and up; 1 kg each
            lambda t, q, v, args: jnp.stack([growth * t, -g, 0 * t, -g]),
            lambda q, args: jnp.stack([q[1], q[3] - q[1]]),
            2,
            tangents=lambda q, args: jnp.array([[1.0, 0, 0, 0], [-1, 0, 1, 0]]),
            friction=jnp.array([ground, top]),
        )
        x = jnp.zeros(4), jnp.zeros(4).at[2].set(speed)
        sol = hj.simulate(stack, 0.0, duration, x, max_events=8)
        return jnp.append(sol.x1[1][::2], sol.events.t[:2])

    def exact(p):
        speed, growth, duration = p
        departs = (2 * ground - top) * g / growth
        # Until both are as fast: growth / 2 t^2 = speed - drag (departs + t).
        drag = top * g
        root = jnp.sqrt(drag**2 + 2 * growth * (speed - drag * departs))
        until = (root - drag) / growth
        together = lambda t: (growth * t**2 / 2 - drag * t) / 2
        after = together(duration - departs) - together(until)
        at_end = growth * until**2 / 2 + after
        return jnp.stack([at_end, at_end, departs, departs + until])

    # (Its derivatives are tried by the family `stacks` of the fuzzer.)
    for p in ([0.6, 40.0, 0.204], [0.58, 40.0, 0.2], [0.6, 38.0, 0.206]):
        got, expected = ours(jnp.array(p)), exact(jnp.array(p))
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_a_flat_foot_is_held_by_one_of_its_points():
    # The other one slips by its forces, and cannot: it has no acceleration but that by
    # which errors of the one that sticks, left by the solver, are removed.
    rod = models.rod(friction=0.5)
    mode = jnp.array([ContactMode.SLIPPING_BACKWARD, _S])
    x = lambda left: (jnp.zeros(3), jnp.array([left, 0.0, 0.0]))
    guards = jax.jit(lambda left: rod.guards(jnp.zeros(()), x(left), mode, None))
    for left in (-1e-5, -1e-9, 0.0, 1e-9, 1e-5):
        of_departure = guards(left)[4]
        assert of_departure > abs(left)


@pytest.mark.thorough
def test_a_trestle_is_not_pushed_apart_by_its_legs():
    # Two legs, spread as far as their joints let them, carry a weight: what these hold,
    # friction might hold as well, or push against. It is pushed along the ground, more
    # and more, until no friction is left at either foot.
    side, spread = np.array([-1.0, 1.0]), np.pi / 4
    feet = lambda q: (q[0] + side * jnp.sin(q[2:]), q[1] - jnp.cos(q[2:]))
    along = jax.jacfwd(lambda q: feet(q)[0])
    gap = lambda q, _: jnp.concatenate([feet(q)[1], spread - q[2:]])

    def final(z):
        friction, rate = z
        none = jnp.zeros((2, 4))
        system = MechanicalSystem(
            lambda q, args: jnp.array([1.0, 1.0, 0.1, 0.1]),
            lambda t, q, v, args: jnp.stack([args * t, -9.81, 0.0, 0.0]),
            gap,
            4,
            tangents=lambda q, args: jnp.concatenate([along(q), none]),
            friction=jnp.stack([friction, friction, 0.0, 0.0]),
        )
        x0 = jnp.array([0.0, np.cos(spread), spread, spread]), jnp.zeros(4)
        sol = hj.simulate(
            system, *(0.0, 1.0, x0), args=rate, solver=_of_parabolas, throw=False
        )
        return sol.x1[0][0], (sol.successful, sol.x1[0][1:])

    slopes = jax.jit(jax.value_and_grad(final, has_aux=True))
    for friction, rate in ((0.05, 1), (0.2, 5), (0.3, 1), (0.3, 5), (0.6, 10)):
        (x, (successful, others)), slope = slopes(jnp.array([friction, rate]))
        assert successful
        np.testing.assert_allclose(others, [np.cos(spread), spread, spread], atol=1e-9)
        # It is held until then, and leaves with the force that is beyond friction.
        begin = 9.81 * friction / rate
        late = max(1 - begin, 0)
        by_friction = -9.81 * late**2 / 2
        by_rate = late**3 / 6 + begin * late**2 / 2
        np.testing.assert_allclose(x, rate * late**3 / 6, atol=1e-9)
        np.testing.assert_allclose(slope, [by_friction, by_rate], atol=1e-8)


def test_efforts_jump_between_two_simulations():
    # A ball that sticks is drawn up, or along the ground, from the start on, and less
    # later. Its mode is that of before: it lifts off, or slips, at once.
    system = MechanicalSystem(
        lambda q, args: jnp.ones(2),
        lambda t, q, v, args: (1 - 0.2 * t) * args,
        lambda q, args: q[1:],
        1,
        tangents=lambda q, args: jnp.array([[1.0, 0.0]]),
        friction=0.5,
    )

    def final(push, mode, off):
        # Closed contacts may be off by what another simulation leaves.
        x0 = jnp.stack([0 * off, off]), jnp.stack([0 * off, off])
        options: Any = dict(solver=_of_parabolas, throw=False)
        sol = hj.simulate(system, 0.0, 0.7, x0, mode, push, **options)
        return sol.x1[0], (sol.mode1, sol.events)

    jacobians = both_jacobians(final)
    share = 0.7**2 / 2 - 0.2 * 0.7**3 / 6
    along = np.array([[share, 0.5 * share], [0, 0]])  # as friction follows the weight
    for push, slopes, mode in (
        ([0.3, 1.0], share * np.eye(2), ContactMode.LIFTING),
        ([6.0, -9.81], along, ContactMode.SLIPPING_FORWARD),
    ):
        starts = (ContactMode.STICKING, 0.0), (ContactMode.STICKING, -5e-4), (mode, 0.0)
        for start, off in starts:
            out = jacobians(jnp.array(push), jnp.array([start]), jnp.array(off))
            q, *found, (end, events) = out
            np.testing.assert_allclose(q, slopes @ push, atol=1e-12)
            for jacobian in found:
                np.testing.assert_allclose(jacobian, slopes, atol=1e-12)
            assert ContactMode.physical(end) == ContactMode.physical(mode)
            assert events.count == 0


def test_begin_where_another_simulation_ended():
    # A bead that slides in a bowl: coarse steps leave it off the surface.
    weight = jnp.array([0.0, -9.81])
    gap = lambda q, args: 1 - jnp.linalg.norm(q, keepdims=True)
    bowl = MechanicalSystem(
        lambda q, args: jnp.ones(2), lambda t, q, v, args: weight, gap, 1
    )
    x0 = jnp.array([0.8, -0.6]), jnp.zeros(2)
    mode = jnp.array([ContactMode.STICKING])
    steps: Any = dict(stepsize_controller=dfx.ConstantStepSize(), dt0=0.02)
    sol = hj.simulate(bowl, 0.0, 0.1, x0, mode, solver=dfx.Heun(), **steps)
    errors = lambda x: np.abs(jax.jvp(lambda q: gap(q, None)[0], x[:1], x[1:]))
    off = errors(sol.x1)
    assert off[0] > 1e-5 and off[1] > 1e-4
    x, mode = bowl.start(sol.t1, sol.x1, sol.mode1, None)
    assert mode[0] == ContactMode.STICKING
    # Both are closed to first order, the velocity as seen from where it was.
    np.testing.assert_array_less(errors(x), [off[0] ** 2 + 1e-15, 4 * off[0]])
