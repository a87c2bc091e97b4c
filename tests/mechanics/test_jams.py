"""Contacts that cannot do what they do: sliding, they jam (Painlevé's paradox), or
sticking, they are at a dead centre."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem
from scipy.integrate import solve_ivp

from ..helpers import error, on_end, slope_along


# A solver of few stages, which compiles faster.
_OPTIONS: dict[str, Any] = dict(solver=dfx.Bosh3(), max_events=8, throw=False)


#
# A rod that slides on its left end, pressed to the ground by its friction
#


def _stuck(p):
    """Where an impulse ends the slip; and that impulse: across the ground, along it."""
    tilt, speed, _ = p
    sin, cos, inertia = 0.5 * jnp.sin(tilt), 0.5 * jnp.cos(tilt), 1 / 12
    # At the left end, across and along the ground, by forces across and along it.
    across, both = 1 + cos**2 / inertia, -sin * cos / inertia
    along = 1 + sin**2 / inertia
    size = -speed / (across * along - both**2)
    impulse = jnp.stack([-both * size, across * size])
    turn = (sin * impulse[1] - cos * impulse[0]) / inertia
    q, v = on_end(*p)
    return (q, v + jnp.stack([impulse[1], impulse[0], turn])), impulse


def test_sliding_that_jams():
    # There are no forces: an impulse in the same instant ends the slip.
    friction, direction = 1.5, jnp.array([0.3, 0.7, -0.4])
    rod, t = models.rod(friction=friction), jnp.asarray(0.0)
    slides, jammed = (
        jnp.array([mode, ContactMode.FREE])
        for mode in (ContactMode.BACKWARD, ContactMode.JAMMED)
    )
    tilt = jnp.array([0.95, 1.0, 1.1, 1.2, 1.25])
    speed, rate = jnp.array([[-3, -0.01, -1, -2, -0.5], [0, 0.5, -1, 0.8, 0.1]])
    p = jnp.stack([tilt, speed, rate], axis=1)
    _, (across, along) = jax.vmap(_stuck, out_axes=(0, 1))(p)
    assert (jnp.abs(along) < friction * across).all()
    _, mode = jax.vmap(lambda p: rod.start(t, on_end(*p), slides, None))(p)
    np.testing.assert_array_equal(mode, jnp.tile(jammed, (5, 1)))
    guards = jax.vmap(lambda p: rod.guards(t, on_end(*p), jammed, None))(p)
    fires = np.arange(8) == 6
    np.testing.assert_array_equal(guards <= 0, np.tile(fires, (5, 1)))

    def jump(p):
        return rod.jump(t, on_end(*p), jammed, jnp.asarray(6), None)

    moved = lambda fn: jax.vmap(lambda p: jax.jvp(fn, (p,), (direction,), has_aux=True))
    x, dx, mode = jax.jit(moved(jump))(p)
    expected, slopes, _ = moved(_stuck)(p)
    assert (mode[:, 0] == ContactMode.STICKING).all()
    for got, want in ((x, expected), (dx, slopes)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, want
        )


def test_flow_that_jams():
    # Where the rod's friction pushes it down as hard as its force lifts it, what else
    # presses it down vanishes, too, as the forces turn it.
    friction, slides = 1.5, jnp.array([ContactMode.BACKWARD, ContactMode.FREE])
    rod, tilts = models.rod(friction=friction), np.linspace(0.5, 1, 100001)
    pushed = 1 + 3 * np.cos(tilts) ** 2 - 3 * friction * np.sin(tilts) * np.cos(tilts)
    jam = tilts[np.argmin(np.abs(pushed))]

    def final(p):
        x0, tight = on_end(*p), dfx.PIDController(rtol=1e-8, atol=1e-8)
        end = dict(mode0=slides, stepsize_controller=tight)
        sol = hj.simulate(rod, 0.0, 0.1, x0, **end, **_OPTIONS)
        return jnp.concatenate(sol.x1), sol

    @jax.jit
    @jax.vmap
    def run(p):
        x1, dx1, sol = jax.jvp(final, (p,), (direction,), has_aux=True)
        log = sol.events
        (q, v), (_, landed) = jax.tree.map(lambda a: a[0], (log.x_before, log.x_after))
        slip = v[0] + 0.5 * jnp.sin(q[2]) * v[2]
        (_, after), impulse = _stuck(jnp.stack([q[2], slip, v[2]]))
        off = jnp.abs(landed - after)
        return x1, dx1, (sol.result, log.event[0], q[2], impulse, off)

    tilt = jnp.array([0.878, 0.883, 0.852, 0.871, 0.86])
    speed, rate = jnp.array(
        [[-9.3, -17.1, -18.8, -9.3, -7.4], [-2.7, -1.1, 1.8, -3.4, -2.6]]
    )
    p, direction = jnp.stack([tilt, speed, rate], 1), jnp.array([0.3, 0.7, -0.4])
    _, got, (result, event, where, impulse, off) = run(p)
    across, along = impulse.T
    assert bool((result == hj.RESULTS.successful).all())
    np.testing.assert_array_equal(event, 6)
    np.testing.assert_allclose(where, jam, rtol=0, atol=1e-5)
    assert (off < 1e-5).all() and (jnp.abs(along) < 1.0001 * friction * across).all()
    along_all = jnp.tile(direction, (5, 1))
    slope = slope_along(lambda p: run(p)[0], p, along_all, 1e-5)
    assert error(got, slope) < 1e-5


#
# An arm of two links at a hinge, whose tip is on the ground
#

_HEIGHT, _FRICTION = 0.5, 0.5


def _places(q):
    """Of elbow and tip, where the masses are, from the hinge."""
    x, z = jnp.cumsum(jnp.cos(q)), jnp.cumsum(jnp.sin(q))
    return jnp.concatenate([x, z])


def _arm() -> MechanicalSystem:
    def energy(q, v, args):
        places, speeds = jax.jvp(_places, (q,), (v,))
        return speeds @ speeds / 2 - 9.81 * jnp.sum(places[2:])

    heights = lambda q, args: _HEIGHT + _places(q)[:1:-1]
    return MechanicalSystem.from_lagrangian(
        energy,
        heights,
        2,
        tangents=lambda q, args: jax.jacfwd(_places)(q)[1::-1],
        friction=_FRICTION,
    )


def _on_ground(p):
    """With the tip on the ground, by the first angle and its rate."""
    a, rate = p
    b = jnp.arcsin(-_HEIGHT - jnp.sin(a))
    v = jnp.stack([rate, -rate * jnp.cos(a) / jnp.cos(b)])
    return jnp.stack([a, b]), v


@jax.jit
def _accelerations(q, v, sign):
    """Of the angles, where the tip stays on the ground and rubs: by the equations of
    motion of two point masses."""
    J = jax.jacfwd(_places)(q)
    turning = jax.jvp(lambda q: jax.jvp(_places, (q,), (v,))[1], (q,), (v,))[1]
    weight = jnp.array([0.0, 0.0, -9.81, -9.81])
    across, along = J[3], J[1]
    matrix = jnp.block(
        [
            [J.T @ J, (-across + sign * _FRICTION * along)[:, None]],
            [across[None], jnp.zeros((1, 1))],
        ]
    )
    right = jnp.concatenate([J.T @ (weight - turning), -turning[3:]])
    return jnp.linalg.solve(matrix, right)[:2]


def _reference(p, t1):
    """The final state, and the time at which the tip turns round."""
    slip = lambda t, y: -np.sin(y[:2]) @ y[2:]
    slip.terminal = True

    def run(y, t, sign, events):
        rates = lambda t, y: np.concatenate([y[2:], _accelerations(y[:2], y[2:], sign)])
        options: dict[str, Any] = dict(rtol=1e-10, atol=1e-11, events=events)
        return solve_ivp(rates, (t, t1), y, "DOP853", **options)

    y = np.concatenate(_on_ground(p))
    sign = np.sign(slip(0.0, y))
    first = run(y, 0.0, sign, slip)
    return run(first.y[:, -1], first.t[-1], -sign, None).y[:, -1], first.t[-1]


def test_dead_centre():
    # The arm passes through the line on which its tip is farthest away. There the tip
    # has no slip, but it cannot stick, whatever its friction is: it turns round.
    t1 = 0.16
    starts = jnp.array([[-0.1, -1.0], [-0.2, -0.5], [-0.4, 2.5]])

    def final(p):
        sol = hj.simulate(_arm(), 0.0, t1, _on_ground(p), **_OPTIONS)
        return jnp.concatenate(sol.x1), sol

    direction = jnp.array([0.6, -0.8])
    along = lambda p: jax.jvp(final, (p,), (direction,), has_aux=True)
    ends, slopes, sol = jax.jit(jax.vmap(along))(starts)
    assert (sol.result == hj.RESULTS.successful).all()
    for k, p in enumerate(starts):
        end, turn = _reference(p, t1)
        np.testing.assert_allclose(sol.events.t[k, 0], turn, atol=1e-7)
        np.testing.assert_allclose(ends[k], end, atol=1e-6)
        expected = slope_along(lambda p: _reference(p, t1)[0], p, direction, 1e-4)
        assert error(slopes[k], expected) < 1e-5
