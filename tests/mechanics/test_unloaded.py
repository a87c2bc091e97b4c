"""Contacts that touch without a load of their own: others hold them, or press them."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode, MechanicalSystem
from scipy.integrate import trapezoid
from scipy.optimize import brentq

from ..helpers import plank_on_feet


_F, _g, _inertia, _t1 = ContactMode.FORWARD, 9.81, 0.4, 4.0


def _plank(load):
    return plank_on_feet(np.array([-1.0, 0.0, 1.0]), _inertia, _g, load)


def test_a_foot_of_three_has_no_load():
    # Of least size are forces of which one would pull, where the load is beyond 2/3. It
    # has none then, and is held by the others, whatever errors of theirs are removed.
    plank = _plank(lambda t, args: args)
    jump = lambda load, event, mode: plank.jump(
        jnp.zeros(()), (jnp.zeros(2), jnp.zeros(2)), mode, event, load
    )
    _, mode = jax.jit(jump)(jnp.asarray(0.67), 0, jnp.full(3, int(_F)))
    np.testing.assert_array_equal(mode, [ContactMode.LIFTING, _F, _F])

    @jax.jit
    def watched(error, load, mode):
        x = jnp.stack([error, 0.3 * error]), jnp.stack([0.2 * error, error])
        return plank.guards(jnp.zeros(()), x, mode, load)[0]

    for error in (-1e-4, -1e-9, 0.0, 1e-9, 1e-4):
        assert watched(error, jnp.asarray(0.8), mode) > abs(error)
        # But it is let go where it is held by none, and would sink.
        alone = mode.at[2].set(int(ContactMode.FREE))
        assert watched(error, jnp.asarray(-0.5), alone) < -1


def test_what_is_let_go_has_left():
    # It rises by no more than errors. Where it is not held any more, it would have to
    # pull a little, to have none: it is free from there on.
    plank = plank_on_feet(np.array([-1.0, 0.0]), 100.0, _g, lambda t, args: args)
    mode = jnp.array([ContactMode.LIFTING, _F])
    at = jnp.zeros(()), (jnp.zeros(2), jnp.array([0.0, -5e-10])), mode
    watched = jax.jit(lambda load: plank.guards(*at, load)[0])
    after = jax.jit(lambda load: plank.jump(*at, jnp.asarray(0), load)[1])
    to_the_last_digit: Any = dict(xtol=1e-30, rtol=1e-15)
    load: Any = brentq(watched, -1e-3, 1e-3, **to_the_last_digit)
    for ulp in range(-64, 65, 8):
        near = load * (1 + ulp * np.finfo(float).eps)
        assert after(near)[0] == ContactMode.FREE
    assert after(-1e-3)[0] == _F and watched(1e-3) > 1e-5


def test_a_load_walks_over_three_feet():
    # To and fro, so that each end is without a load at times, and is let go when that
    # is on the other side; and then off the plank, which tips about its end.
    def place(z, t):
        swing, off = z
        return swing * jnp.sin(jnp.pi * t) + off * (t / _t1) ** 8

    def final(z):
        plank = _plank(lambda t, args: place(z, t))
        x0, mode = (jnp.zeros(2), jnp.zeros(2)), jnp.full(3, int(_F))
        sol = hj.simulate(plank, 0.0, _t1, x0, mode, max_events=32, throw=False)
        return sol.x1[0][1], (sol.result == hj.RESULTS.successful, sol.events)

    z = np.random.default_rng(0).uniform([0.7, 1.3], [0.95, 1.7], (24, 2))
    each = jax.value_and_grad(final, has_aux=True)
    (angle, (successful, log)), slopes = jax.jit(jax.vmap(each))(jnp.asarray(z))
    assert successful.all()
    unloaded = (log.mode_after == ContactMode.LIFTING) & (log.mode_before == _F)
    returns = (log.mode_after == _F) & (log.mode_before == ContactMode.LIFTING)
    assert (unloaded.any(axis=1) & returns.any(axis=1))[:, [0, 2]].all()

    # What turns it, and its derivatives, from when the load is beyond the end.
    lever = jax.jit(jax.vmap(jax.value_and_grad(place), (None, 0)))
    t = np.linspace(3.5, _t1, 4001)
    for z_k, angle_k, slope in zip(z, angle, slopes, strict=True):
        p, dp = map(np.asarray, lever(z_k, t))
        turn = -_g / (1 + _inertia) * np.where(p > 1, _t1 - t, 0)
        np.testing.assert_allclose(angle_k, trapezoid(turn * (p - 1), t), atol=1e-6)
        np.testing.assert_allclose(slope, trapezoid(turn * dp.T, t), atol=1e-3)


def test_what_lifts_off_is_pressed_back_by_another_that_stops():
    # Friction of the first, along the first coordinate, raises the second one. When it
    # stops, that would sink: it is closed in that event, and does not begin to fall.
    inverse = np.eye(4)
    inverse[0, 3] = inverse[3, 0] = -0.5
    mass, tangents = np.linalg.inv(inverse), np.eye(4)[[0, 2]]
    system = MechanicalSystem(
        lambda q, args: jnp.asarray(mass),
        lambda t, q, v, args: jnp.array([0.0, -_g, 0.0, -1.0]),
        lambda q, args: q[jnp.array([1, 3])],
        2,
        tangents=lambda q, args: jnp.asarray(tangents),
        friction=np.array([0.5, 0.0]),
    )
    at = jnp.zeros(()), (jnp.zeros(4), jnp.zeros(4))
    mode = jnp.array([_F, ContactMode.LIFTING])
    raised = jax.jit(lambda mode: system.flow(*at, mode, None)[1][3])
    assert raised(mode) > 1
    _, after = jax.jit(lambda m: system.jump(*at, m, jnp.asarray(2), None))(mode)
    np.testing.assert_array_equal(after, [ContactMode.STICKING, _F])


def test_links_that_meet_lift_off_together():
    # They share one point, and what it carries, up to rounding, until that is gone.
    share = np.array([0.3, 0.7, 1.1])

    def gap(q, args):
        turned = share * q[1]
        return q[0] * (jnp.cos(turned) ** 2 + jnp.sin(turned) ** 2)

    def final(rate):
        pulled = MechanicalSystem(
            lambda q, args: jnp.array([1.0, 0.3]),
            lambda t, q, v, args: jnp.stack([rate * t - _g, jnp.sin(3 * q[1])]),
            gap,
            3,
        )
        x0 = jnp.array([0.0, 0.4]), jnp.array([0.0, 5.0])
        mode = jnp.full(3, int(_F))
        sol = hj.simulate(pulled, 0.0, 2.0, x0, mode, throw=False)
        return sol.x1[0][0], (sol.result == hj.RESULTS.successful, sol.events.count)

    rates = jnp.linspace(6.0, 20.0, 24)
    each = jax.value_and_grad(final, has_aux=True)
    (z, (successful, events)), slope = jax.jit(jax.vmap(each))(rates)
    assert successful.all()
    late = 2 - _g / rates
    np.testing.assert_allclose(z, rates * late**3 / 6, atol=1e-6)
    by_rate = late**3 / 6 + _g * late**2 / 2 / rates
    np.testing.assert_allclose(slope, by_rate, atol=1e-6)


def test_what_another_presses_is_hardly_opened():
    # A light body that would rise is pressed to the floor by a heavy one. A third one,
    # from below, kicks them: with less than the speed of a last bounce they stay. If
    # they have just begun to rise, slower than that, they are pressed back.
    @jax.jit
    def after(speed, weight, rises, mode):
        mass = jnp.array([1.0, 5.0, 0.5])
        stack = MechanicalSystem(
            lambda q, args: mass,
            lambda t, q, v, args: jnp.stack([3.0, -weight, 0.0]),
            lambda q, args: jnp.stack([q[0], q[1] - q[0], q[0] - q[2]]),
            3,
            rest_speed=1e-3,
        )
        x = jnp.zeros(3), jnp.stack([rises, rises, rises + speed])
        (_, v), mode = stack.jump(jnp.zeros(()), x, mode, jnp.asarray(2), None)
        return v, mode

    for speed, weight, stays in (
        (5e-3, 50.0, True),
        (1e-2, 50.0, True),
        (2e-2, 50.0, False),
        # Not pressed: the heavy one is pulled up, too.
        (5e-3, -1.0, False),
    ):
        together = 0.5 / 6.5 * speed
        for rises, first in ((0.0, _F), (1e-5, ContactMode.FREE)):
            v, mode = after(speed, weight, rises, jnp.array([first, _F, 0]))
            expected = 0 if stays else together + rises
            np.testing.assert_allclose(v, expected, atol=1e-15)
            assert (mode[0] == _F) == stays
