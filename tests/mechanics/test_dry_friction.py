"""Dry friction of velocities."""

from typing import Any

import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import PIDController
from hybridjax import models
from hybridjax.mechanics import ContactMode, decoupled, MechanicalSystem

from ..helpers import slope_along


_C = ContactMode


def _closed_form(z, n):
    """Where a unit mass on a spring is, let go at rest, in half a period number `n`: a
    cosine about a point to which friction moves the centre."""
    k, force, x, t = z
    side, shift = 1 - 2 * (n % 2), force / k
    begins = side * (x - 2 * n * shift)
    holds, angle = side * begins <= shift, jnp.sqrt(k) * t - n * jnp.pi
    centre = side * shift
    return jnp.where(holds, begins, centre + (begins - centre) * jnp.cos(angle))


@pytest.mark.parametrize("dtype, tol", [(np.float64, 2e-7), (np.float32, 2e-3)])
def test_mass_on_a_spring(dtype, tol):
    # Those with much friction come to rest: ends of slides, and turns, move through
    # the steps from lane to lane.
    rng, n_lanes = np.random.default_rng(0), 40
    k, force = rng.uniform(2, 8, n_lanes), rng.uniform(0.3, 2.5, n_lanes)
    force[:3] = 0
    z = np.stack([k, force, rng.uniform(1, 2, n_lanes), rng.uniform(1, 6, n_lanes)], 1)

    @jax.jit
    @jax.vmap
    def run(z):
        def final(z):
            k, force, x, t1 = z
            system = MechanicalSystem(
                lambda q, args: jnp.ones_like(q),
                lambda t, q, v, args: -k * q,
                dry_friction=force[None],
            )
            x0 = x[None], jnp.zeros_like(x[None])
            sol = hj.simulate(system, jnp.zeros_like(t1), t1, x0)
            return sol.x1[0][0], sol

        (x, sol), slope = jax.value_and_grad(final, has_aux=True)(z)
        return x, sol.x1[1][0], sol.mode1[0], slope

    x, v, mode, slope = run(jnp.asarray(z, dtype))
    ends = np.ceil((z[:, 2] * k / np.maximum(force, 1e-9) - 1) / 2)
    n = np.minimum(z[:, 3] * np.sqrt(k) // np.pi, ends)
    rests = n == ends
    assert 10 < rests.sum() < 30 and n.max() >= 3
    np.testing.assert_array_equal(mode == _C.STICKING, rests)
    np.testing.assert_allclose(v[rests], 0, atol=tol)
    exact = jax.vmap(jax.value_and_grad(_closed_form))(z, n)
    np.testing.assert_allclose(x, exact[0], rtol=0, atol=tol)
    np.testing.assert_allclose(slope, exact[1], rtol=0, atol=10 * tol)


def _chain(at_random, d, rows, n):
    """Coupled masses on springs, driven, with a wall for each of `n` contacts."""
    rng = np.random.default_rng(at_random)
    mass = rng.normal(size=(d, d))
    mass = mass @ mass.T / d + np.eye(d)
    rows = rng.normal(size=(rows, n, d))
    q, v = 0.3 * rng.normal(size=d), rng.normal(size=d)
    gap = rng.uniform(0.05, 0.6, n) - rows[0] @ q
    drive, stiffness = 2 * rng.normal(size=d), rng.uniform(0.5, 3, d)
    return mass, rows, rng.uniform(0.1, 0.8, d), drive, stiffness, gap, q, v


def _end(chain, tol, **kwargs):
    mass, rows, force, drive, stiffness, gap, q, v = chain
    phase = np.arange(drive.size)
    n = gap.size
    tangents = rows[1] if rows.shape[0] == 2 else jnp.swapaxes(rows[1:], 0, 1)
    system = MechanicalSystem(
        lambda q, args: mass,
        lambda t, q, v, args: drive * jnp.sin((1 + phase) * t + phase) - stiffness * q,
        lambda q, args: rows[0] @ q + gap,
        n,
        tangents=lambda q, args: tangents,
        friction=0.5,
        restitution=np.linspace(0, 0.5, n),
        dry_friction=force,
        **kwargs,
    )
    controller = PIDController(tol, tol)
    sol = hj.simulate(
        *(system, 0.0, 2.0, (q, v)), stepsize_controller=controller, max_events=64
    )
    return jnp.concatenate(sol.x1), sol.events.event


@pytest.mark.parametrize(
    "rows, n, d, kwargs, tol",
    [
        # Few of the walls are touched at once.
        pytest.param(2, 3, 3, dict(most_closed=2), 1e-8, id="plane"),
        # Slides end at a small speed, which changes differences.
        pytest.param(
            *(3, 1, 5, dict(rest_speed=1e-6), 1e-6),
            id="space",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_against_differences(rows, n, d, kwargs, tol):
    @jax.jit
    def run(chain, change, tol):
        end = lambda chain: _end(chain, tol, **kwargs)
        return jax.jvp(end, (chain,), (change,), has_aux=True)

    hits = stops = 0
    for at_random in range(6):
        chain, rng = _chain(at_random, d, rows, n), np.random.default_rng(at_random)
        moves = tuple(0.1 * rng.normal(size=a.shape) for a in chain[2:])
        change = tuple(np.zeros_like(a) for a in chain[:2]) + moves
        x, moved, events = run(chain, change, 1e-11)
        differences = slope_along(
            lambda z, change=change: run(z, change, 1e-11)[0], chain, change, 1e-5
        )
        size = np.abs(moved).max()
        np.testing.assert_allclose(moved, differences, rtol=0, atol=tol * size)
        # As users have it.
        x_default, moved_default, _ = run(chain, change, 1e-8)
        np.testing.assert_allclose(x_default, x, rtol=0, atol=2e-8)
        np.testing.assert_allclose(moved_default, moved, rtol=0, atol=2e-7 * size)
        of_wall = np.asarray(events)[events >= 0] % (n + d) < n
        hits, stops = hits + of_wall.sum(), stops + (~of_wall).sum()
    assert hits > 5 and stops > 25


def test_in_space():
    # Of a body that slides on one foot: the torques are efforts like any other, one of
    # a given size, and one that keeps a rate at zero.
    feet = np.array([[0.3, 0.0, -0.1], [-0.2, 0.2, -0.1], [-0.1, -0.3, -0.1]])
    torque = np.array([0, 0, 0, 0, 0.3, 20])
    dry = models.body_on_plane(feet, friction=0.5, dry_friction=torque)
    plain = models.body_on_plane(feet, friction=0.5)
    mode = np.array([_C.SLIDING, _C.FREE, _C.FREE, _C.SLIDING, _C.STICKING])

    @jax.jit
    def run(x, change):
        def rates(x):
            press, friction = dry.contact_forces(0.0, x, mode)
            own = jnp.pad(friction[3:, 0], (4, 0))
            effort = lambda *at: plain.effort(*at) + own
            pushed = eqx.tree_at(lambda system: system.effort, plain, effort)
            moves = [
                system.flow(jnp.zeros(()), x, mode[: system.n_contacts], None)[1]
                for system in (dry, pushed)
            ]
            return moves, press[3:], friction[3:]

        return jax.jvp(rates, (x,), (change,))

    rng = np.random.default_rng(0)
    turned = 1 - np.eye(6)[5]
    for _ in range(8):
        tilt = rng.uniform(-1, 1)
        q = np.array([0, 0, 0.1, np.cos(tilt), 0, 0, np.sin(tilt)])
        x, change = ((q, turned * rng.normal(size=6)) for q in (q, rng.normal(size=7)))
        (moves, press, friction), (moved, pressed, rubbed) = run(x, change)
        np.testing.assert_allclose(press, torque[4:], rtol=1e-13)
        np.testing.assert_allclose(friction[0, 0], -0.3 * np.sign(x[1][4]), rtol=1e-13)
        assert abs(friction[1, 0]) > 1e-3 and not friction[:, 1].any()
        np.testing.assert_allclose(moves[0], moves[1], atol=1e-11)
        np.testing.assert_allclose(moves[0][5], 0, atol=1e-11)
        for change in (pressed, rubbed[0], moved[0] - moved[1], moved[0][5]):
            np.testing.assert_allclose(change, 0, atol=1e-10)


def _arm(**kwargs):
    friction: Any = dict(dry_friction=np.array([0.5, 0.0, 2.0]))
    mass = lambda q, args: jnp.ones_like(q)
    return MechanicalSystem(mass, lambda t, q, v, args: args, **friction | kwargs)


_STILL = jnp.zeros(3), jnp.zeros(3)


def test_what_it_holds():
    # Of three velocities two have some; what has none moves.
    args = jnp.array([0.4, 1.0, -3.0])
    sol = hj.simulate(_arm(), 0.0, 1.0, _STILL, args=args)
    assert sol.mode1.tolist() == [_C.STICKING, _C.SLIPPING_BACKWARD]
    np.testing.assert_allclose(sol.x1[0], [0, 0.5, -0.5], atol=1e-8)
    force, friction = _arm().contact_forces(1.0, sol.x1, sol.mode1, args)
    np.testing.assert_allclose(force, [0.5, 2], atol=1e-12)
    np.testing.assert_allclose(friction, [-0.4, 2], atol=1e-12)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(dry_friction=1.0), "`dry_friction` must be a vector"),
        (dict(dry_friction=np.ones(2)), r"`dry_friction` must .* \(3,\)"),
        (dict(dry_friction=-np.ones(3)), "`dry_friction` must be finite and not neg"),
        (dict(dry_friction=np.zeros(3)), "`n_contacts` is 0, and there is no `dry_fr"),
        (dict(gap=lambda q, args: q, n_contacts=2), r"`gap` must return .* \(2,\)"),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        hj.simulate(_arm(**kwargs), 0.0, 1.0, _STILL, args=jnp.zeros(3))


def test_errors_of_others():
    free = np.array([_C.STICKING, _C.FREE])
    with pytest.raises(ValueError, match="contact 1 is open, but it is dry friction"):
        hj.simulate(_arm(), 0.0, 1.0, _STILL, free, args=jnp.zeros(3))
    with pytest.raises(ValueError, match="must have no `dry_friction`"):
        decoupled(_arm(), _STILL[0], jnp.zeros(3))
