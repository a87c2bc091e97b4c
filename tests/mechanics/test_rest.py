"""Contacts that come to rest: impacts that accumulate, and what follows."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import PIDController
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem
from scipy.integrate import quad

from ..helpers import batch_jacobians, on_end


_C = ContactMode


def _default_speed(acceleration, atol, rounding):
    return np.sqrt(2 * acceleration * np.maximum(0.01 * atol, rounding))


def _draw(seed, ranges, n):
    low, high = np.array(ranges, float).T
    return np.random.default_rng(seed).uniform(low, high, (n, len(ranges)))


def _ball(e, surface=None, gravity=9.81, **kwargs):
    return MechanicalSystem(
        lambda q, args: jnp.ones_like(q),
        lambda t, q, v, args: -gravity * jnp.ones_like(q),
        lambda q, args: q,
        1,
        restitution=e,
        surface=surface,
        **kwargs,
    )


@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.thorough)]
)
def test_ball_on_a_moving_table(dtype):
    # The table has the acceleration b, and the ball the relative one g + b.
    end, atol = 6.0, 1e-8 if dtype == np.float64 else 1e-5
    options: dict[str, Any] = {"stepsize_controller": PIDController(atol, atol)}

    def ours(p):
        height, e, speed, bend, gravity = p
        table = lambda t, args: (speed * t + bend * t**2 / 2)[None]
        x0 = height[None], 0 * height[None]
        ball = _ball(e, table, gravity)
        sol = hj.simulate(ball, 0.0, end, x0, jnp.array([_C.FREE]), **options)
        log = sol.events
        rest = log.t[log.count - 1]
        value = jnp.stack([log.t[0], log.t[1], rest, sol.x1[0][0], sol.x1[1][0]])
        return value, (log.count, sol.mode1[0])

    def exact(p, count):
        height, e, speed, bend, gravity = p
        a = gravity + bend
        impact = jnp.sqrt(speed**2 + 2 * a * height)
        first = (impact - speed) / a
        after = lambda n: first + 2 * impact / a * e * (1 - e**n) / (1 - e)
        ends = speed * end + bend * end**2 / 2, speed + bend * end
        never = first + 2 * impact / a * e / (1 - e)
        return jnp.stack([first, after(1), after(count - 1), *ends]), never, a

    ranges = [(0.2, 1.5), (0.02, 0.8), (-1, 1), (-2, 2), (8, 11)]
    p = jnp.asarray(_draw(0, ranges, 48), dtype)
    value, forward, reverse, (count, mode) = batch_jacobians(ours)(p)
    assert (mode == _C.FORWARD).all() and len(np.unique(count)) > 10
    p = p.astype(float)
    each = jax.jacfwd(lambda p, n: (exact(p, n)[:2], exact(p, n)), has_aux=True)
    (slopes, through), (want, never, a) = jax.jit(jax.vmap(each))(p, count)
    tol, jacobian_tol = (1e-7, 2e-6) if dtype == np.float64 else (1e-3, 1e-1)
    np.testing.assert_allclose(value, want, rtol=0, atol=tol)
    size = 1 + np.abs(slopes).max(axis=2, keepdims=True)
    for got in (forward, reverse):
        np.testing.assert_allclose(got / size, slopes / size, atol=jacobian_tol)
        # At rest it moves with the table, whatever came before.
        np.testing.assert_allclose(got[:, 3:], slopes[:, 3:], rtol=1e-4, atol=tol)
    # So much too early it is at rest; and its derivative, by about as many times that
    # as there are bounces.
    early = never - np.asarray(value[:, 2], float)
    places = np.abs(p[:, 2:4]) @ [end, end**2 / 2]
    speed = _default_speed(a, atol, 8 * float(jnp.finfo(dtype).eps) * places)
    bound = 2 * speed / (a * (1 - p[:, 1]))
    assert (early > -tol).all() and (early < bound + tol).all()
    assert early.max() > bound.max() / 10
    if dtype == np.float64:
        np.testing.assert_allclose(forward[:, 2], through, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_sliding_on_down_a_slope():
    # Impulses have the sum of the weight: where it slides to does not depend on the
    # restitution, once it has come to rest in the normal direction.
    end = 3.0

    def ours(p):
        angle, mu, height, speed, e, less = p
        share = lambda q, v, args: (e / (1 + less * jnp.sum(v**2)))[None]
        slope = models.point_mass_on_slope(angle, friction=mu, restitution=share)
        down = jnp.stack([jnp.cos(angle), -jnp.sin(angle)])
        normal = jnp.stack([jnp.sin(angle), jnp.cos(angle)])
        x0 = height * normal, speed * down
        sol = hj.simulate(slope, 0.0, end, x0, jnp.array([_C.FREE]))
        q, v = sol.x1
        value = jnp.stack([down @ q, normal @ q, down @ v, normal @ v])
        return value, (sol.events.count, sol.mode1)

    def exact(p):
        angle, mu, height, speed, *_ = p
        along, press = 9.81 * jnp.sin(angle), 9.81 * jnp.cos(angle)
        a = along - mu * press
        s = speed * end + a * end**2 / 2 + mu * height
        return jnp.stack([s, 0 * s, speed + a * end, 0 * s])

    ranges = [(0.4, 0.8), (0.05, 0.3), (0.1, 0.5), (0.5, 2), (0.1, 0.75), (0, 0.02)]
    p = jnp.asarray(_draw(1, ranges, 24))
    each = jax.jacrev(lambda p: (lambda out: (out[0], out))(ours(p)), has_aux=True)
    got, (value, (count, mode)) = jax.jit(jax.vmap(each))(p)
    assert np.isin(mode, [_C.FORWARD, _C.BACKWARD]).all()
    assert len(np.unique(count)) > 5
    want, slopes = jax.jit(jax.vmap(lambda p: (exact(p), jax.jacfwd(exact)(p))))(p)
    np.testing.assert_allclose(value, want, atol=2e-7)
    np.testing.assert_allclose(got, slopes, atol=2e-6)


@pytest.mark.thorough
def test_thrown_off_the_paddle_after_a_rest():
    # It comes to rest while the paddle is low, rides on it, and is thrown where that
    # decelerates like a fall.
    end = 0.62

    def ours(p):
        e, amplitude, frequency, height = p
        juggler = models.paddle_juggler(e, amplitude, frequency)
        x0 = height[None], 0 * height[None]
        sol = hj.simulate(juggler, 0.0, end, x0, jnp.array([_C.FREE]))
        modes = sol.events.mode_after[:, 0]
        lifts = sol.events.t[jnp.argmax(modes == _C.LIFTING)]
        value = jnp.stack([lifts, sol.x1[0][0], sol.x1[1][0]])
        return value, modes

    def exact(p):
        e, amplitude, frequency, height = p
        w = 2 * jnp.pi * frequency
        lifts = (2 * jnp.pi + jnp.arcsin(9.81 / (amplitude * w**2))) / w
        more = end - lifts
        v = amplitude * w * jnp.cos(w * lifts)
        q = amplitude * jnp.sin(w * lifts) + v * more - 9.81 * more**2 / 2
        return jnp.stack([lifts, q, v - 9.81 * more])

    ranges = [(0.05, 0.3), (0.066, 0.072), (1.98, 2.02), (0.05, 0.1)]
    p = jnp.asarray(_draw(2, ranges, 16))
    each = jax.jacfwd(lambda p: (lambda out: (out[0], out))(ours(p)), has_aux=True)
    forward, (value, modes) = jax.jit(jax.vmap(each))(p)
    assert ((modes == _C.FORWARD).sum(axis=1) == 1).all()
    want, slopes = jax.jit(jax.vmap(lambda p: (exact(p), jax.jacfwd(exact)(p))))(p)
    np.testing.assert_allclose(value, want, atol=1e-6)
    np.testing.assert_allclose(forward, slopes, atol=1e-5)


def _housner(b, h, tilt):
    """When a block that was tilted stands still, if each landing leaves the share of
    the rate of Housner (1963). Its excursions are those of an inverted pendulum."""
    R, alpha = np.hypot(b, h), np.arctan2(b, h)
    p2, left = 9.81 * 3 / (4 * R), 1 - 1.5 * np.sin(alpha) ** 2

    def fall(top):
        rate = lambda y: np.sqrt(
            4 * p2 * np.sin(alpha - top + y**2 / 2) * np.sin(y**2 / 2)
        )
        root = np.sqrt(top)
        return quad(lambda y: 2 * y / rate(y), 0, root, epsrel=1e-11)[0], rate(root)

    total, rate = fall(tilt)
    while rate > 1e-10:
        rate = left * rate
        more = rate**2 / (2 * p2)
        # Low ones are parabolas.
        high = more > 1e-9
        top = alpha - np.arccos(np.cos(alpha) + more) if high else None
        total += 2 * (fall(top)[0] if high else rate / p2 / np.sin(alpha))
    return total


@pytest.mark.thorough
def test_bodies_on_two_corners():
    # A block that rocks: with e = 0 one corner lands as the other lifts off, ever
    # faster. And rods, which are low blocks, that fall: their ends bounce in turn, and
    # come to rest one after the other.
    def ours(p, mode):
        b, h, tilt, height, speed, mu, e = p
        up = b * jnp.sin(tilt) + h * jnp.cos(tilt)
        q = jnp.stack([0 * up, height + up, -tilt])
        v = jnp.stack([speed, 0 * up, 0 * up])
        block = models.rocking_block(b, h, friction=mu, restitution=e, rest_speed=6e-6)
        sol = hj.simulate(
            block, 0.0, 4.0, (q, v), mode, max_steps=512, max_events=128, throw=False
        )

        def energy(q, v):
            inertia = (b**2 + h**2) / 3
            return (v[0] ** 2 + v[1] ** 2 + inertia * v[2] ** 2) / 2 + 9.81 * q[1]

        log = sol.events
        gain = jax.vmap(energy)(*log.x_after) - jax.vmap(energy)(*log.x_before)
        there = jnp.arange(gain.size) < log.count
        gain = jnp.max(jnp.where(there, gain, -jnp.inf))
        closed = jnp.sum(log.mode_after != _C.FREE, axis=1)
        single = jnp.sum(there & (closed == 1))
        value = jnp.stack([log.t[log.count - 1], *sol.x1[0]])
        return value, (value, sol.result, sol.mode1, gain, single)

    n = 8
    ranges = [(0.5, 0.5), (0, 0), (0.05, 0.3), (0.1, 0.3), (-1, 1), (0, 0), (0, 0.6)]
    rods = _draw(3, ranges, n)
    rods[0, 6] = 0
    blocks = np.array([[0.1, 0.2, 0.1], [0.1, 0.22, 0.2], [0.12, 0.2, 0.15]])
    more = np.broadcast_to([0, 0, 1.0, 0], (3, 4))
    p = jnp.asarray(np.concatenate([np.concatenate([blocks, more], axis=1), rods]))
    mode = jnp.array([[_C.FREE, _C.STICKING]] * 3 + [[_C.FREE, _C.FREE]] * n)
    run = jax.jit(jax.vmap(jax.jacrev(ours, has_aux=True)))
    slopes, (value, result, mode, gain, single) = run(p, mode)
    assert (result == hj.RESULTS.successful).all() and (gain < 1e-12).all()
    assert (mode[:3] == _C.STICKING).all() and (mode[3:] == _C.FORWARD).all()
    assert (single > 0).all()

    def ends(p):
        b, h, tilt, _, speed, *_ = p
        # On the corner about which a block turns in the end it stands from the start.
        x = b * (jnp.cos(tilt) - 1) - h * jnp.sin(tilt)
        return jnp.stack([jnp.where(h > 0, x, 4 * speed), h, 0 * h])

    last, want = jax.jit(jax.vmap(lambda p: (ends(p), jax.jacfwd(ends)(p))))(p)
    np.testing.assert_allclose(value[:, 1:], last, atol=1e-7)
    got = slopes[:, 1:]
    np.testing.assert_allclose(got[:3, :, :3], want[:3, :, :3], atol=1e-6)
    # The angle, the height, the speed and the restitution.
    free = np.array([2, 3, 4, 6])
    want = want.at[3:, 0, 2].set(0)
    np.testing.assert_allclose(got[3:, :, free], want[3:, :, free], atol=1e-6)
    for k, point in enumerate(blocks):
        np.testing.assert_allclose(value[k, 0], _housner(*point), atol=2e-5)
        differences = [
            _housner(*(point + s)) - _housner(*(point - s)) for s in 1e-4 * np.eye(3)
        ]
        np.testing.assert_allclose(
            slopes[k, 0, :3], np.array(differences) / 2e-4, rtol=1e-3, atol=1e-3
        )


def test_what_does_not_come_to_rest():
    def ours(p):
        e, gravity, speed, limit = p
        ball = _ball(e, gravity=gravity, rest_speed=limit)
        x0 = jnp.full(1, 1e-7), -speed[None]
        sol = hj.simulate(ball, 0.0, 1.0, x0, jnp.array([0]), max_steps=64, throw=False)
        zeno = sol.result == hj.RESULTS.zeno
        return sol.x1[1][0], sol.mode1[0], zeno, sol.result == hj.RESULTS.successful

    default = 6e-6
    lanes = {
        "slow": (0.5, 9.81, 1e-7, default),
        "never": (0.5, 9.81, 1e-7, 0.0),
        "fast": (0.5, 9.81, 1.0, 2.0),
        "loses nothing": (1.0, 1e-6, 1e-6, default),
        "no weight": (0.5, 0.0, 1e-6, default),
        "pulled off": (0.5, -1e-8, 1e-6, default),
    }
    v, mode, zeno, okay = jax.jit(jax.vmap(ours))(jnp.array(list(lanes.values())))
    np.testing.assert_array_equal(zeno, [name == "never" for name in lanes])
    np.testing.assert_array_equal(okay, ~zeno)
    modes = [_C.FORWARD, _C.FREE, _C.FORWARD, _C.FREE, _C.FREE, _C.FREE]
    np.testing.assert_array_equal(mode, modes)
    np.testing.assert_allclose(v[4:], [0.5e-6, 0.51e-6], rtol=1e-2)


def _rod(p, limit):
    inertia, along, _, spin, friction, _, tilt = p
    body = models.rod(1.0, 0.5, inertia / 4, friction=friction, rest_speed=limit)
    return body, on_end(tilt, along, -spin), _C.FORWARD


def _bar_in_space(p, limit):
    inertia, along, across, spin, *friction, tilt = p
    body = models.body_on_plane(
        [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        inertia=jnp.stack([0.1 + 0 * inertia, inertia, inertia]),
        friction=jnp.stack(friction),
        rest_speed=limit,
    )
    half, none = tilt / 2, jnp.zeros_like(tilt)
    place = [none, none, jnp.sin(tilt), jnp.cos(half), none, -jnp.sin(half), none]
    speed = [along, across, -spin * jnp.cos(tilt), none, spin, 0.5 + none]
    return body, (jnp.stack(place), jnp.stack(speed)), _C.SLIDING


@pytest.mark.parametrize("build", [_rod, _bar_in_space])
def test_what_opens_slowly_as_another_lands(build):
    # A rod slides on one end, and the other one lands. That opens the first one a
    # little, which goes on sliding, and lands again; or it is taken for closed. Then,
    # and where a slide in space ends early beside another one, what is left out is of
    # second order, with its derivatives: friction has the same impulses.
    @jax.jit
    def run(p, dp, limit):
        def final(p):
            body, x0, slides = build(p, limit)
            sol = hj.simulate(
                body,
                *(0.0, 1.2, x0, jnp.array([slides, _C.FREE])),
                stepsize_controller=PIDController(1e-9, 1e-9),
                max_events=16,
                throw=False,
            )
            log = sol.events
            opens = jnp.any((log.mode_before[:, 0] == _C.FREE) & (log.event == 0))
            successful = sol.result == hj.RESULTS.successful
            return jnp.concatenate(sol.x1), (successful, opens)

        return jax.jvp(final, (p,), (dp,), has_aux=True)

    low = [1.0002, 1.5, 0.3, 0.2, 0.3, 0.2, 0.01]
    high = [1.001, 2.5, 0.8, 0.5, 0.6, 0.3, 0.03]
    rng = np.random.default_rng(0)
    for p in rng.uniform(low, high, (4, len(low))):
        dp = rng.uniform(-1, 1, len(low))
        *exact, (successful, opens) = run(p, dp, 1e-7)
        assert successful and opens
        for limit in (1e-3, 1e-2):
            *got, (successful, opens) = run(p, dp, limit)
            assert successful and not opens
            for a, b, size in zip(got, exact, (1, 100), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=size * limit**2)


def test_the_fourth_foot_is_held_by_three():
    # A body that stands on four feet is hit by a small mass. Where slides that this
    # would begin, as slow, end at once, it may leave three feet at rest: the fourth one
    # has opened, but goes nowhere. It is not free, for its gap would stay zero.
    def blow(feet, place, along, way, friction, speed):
        of_body = lambda axis, at: jnp.concatenate([axis, jnp.cross(at, axis)])
        none = jnp.zeros(3)
        of_foot = lambda axis: jax.vmap(
            lambda at: jnp.concatenate([of_body(axis, at), none])
        )(feet)
        of_mass = lambda axis: jnp.append(of_body(axis, place), -axis)[None]
        up, x, y = np.eye(3)[[2, 0, 1]]
        normals, *tangents = [
            jnp.concatenate([of_foot(a), of_mass(b)])
            for a, b in zip((up, x, y), along, strict=True)
        ]
        system = MechanicalSystem(
            lambda q, args: jnp.array(3 * [1.0] + 3 * [0.1] + 3 * [0.3]),
            lambda t, q, v, args: -9.81 * jnp.eye(9)[2],
            lambda q, args: normals @ q,
            5,
            normals=lambda q, args: normals,
            tangents=lambda q, args: jnp.stack(tangents, axis=1),
            friction=friction,
            rest_speed=1e-3,
        )
        v = jnp.append(jnp.zeros(6), speed * way / jnp.dot(along[0], way))
        stands = jnp.array(4 * [_C.STICKING] + [_C.FREE])
        touches = jnp.asarray(4, jnp.int32)
        (_, v), mode = system.jump(
            jnp.zeros(()), (jnp.zeros(9), v), stands, touches, None
        )
        return mode[:4], normals[:4] @ v

    rng, many = np.random.default_rng(0), 2000
    turn = np.arange(4) * np.pi / 2 + rng.uniform(-0.5, 0.5, (many, 4))
    arms = rng.uniform(0.1, 0.6, (many, 4, 1))
    feet = np.stack([np.cos(turn), np.sin(turn), -0.3 / arms[..., 0]], axis=2) * arms
    place = rng.uniform(-0.5, 0.5, (many, 3)) + np.array([0, 0, 0.5])
    along, _ = np.linalg.qr(rng.normal(size=(many, 3, 3)))
    way, friction = rng.normal(size=(many, 3)), rng.uniform(0.2, 0.6, many)
    speed = 10 ** rng.uniform(-4, -0.5, many)
    # All of them take minutes, and of the others it is not said of any.
    some = [91, 225, 651, 657, 856, 981, 1407, 1591, 1616, 1657, 1662, 1793, 1816]
    given = [each[some] for each in (feet, place, along, way, friction, speed)]
    mode, rates = jax.jit(jax.vmap(blow))(*given)
    rests = (mode != _C.FREE) & (mode != _C.LIFTING)
    fourth = (np.sum(rests, axis=1) == 3)[:, None] & ~rests
    assert np.sum(fourth) == len(some) and np.all(np.abs(rates[fourth]) < 1e-12)
    assert np.all(mode[fourth] == _C.LIFTING)
