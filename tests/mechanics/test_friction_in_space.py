"""Contacts with two tangential directions: docs/concepts/friction.md."""

from typing import Any

import diffrax
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax._systems.rest import at_tolerance
from hybridjax.mechanics import ContactMode
from hybridjax.models import body_on_plane
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from ..helpers import slope_along


_g = 9.81
_upright = np.array([1.0, 0.0, 0.0, 0.0])


def error(got, expected):
    """The largest error, in units of the largest number, or of one."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape and np.all(np.isfinite(got))
    return np.max(np.abs(got - expected)) / max(1.0, np.max(np.abs(expected)))


#
# One contact: a ball, or a puck (a ball of no radius), on a slope, that is pulled. One
# program for all that follows.
#

# What can be varied; the radius is also that of the moments of inertia, 0.4 m r^2.
_names = (
    *("height", "vx", "vy", "vz", "wx", "wy", "wz", "friction", "static"),
    *("restitution", "slope", "radius", "pull_x", "pull_y", "across"),
)


def _values(**given):
    values = dict.fromkeys(_names, 0.0) | {"static": 1.0, "across": 1.0} | given
    return np.array([values[name] for name in _names])


class _Pulled(eqx.Module):
    """The effort of a body, and a force that grows and turns."""

    effort: eqx.Module
    pull: jax.Array

    def __call__(self, t, q, v, args):
        force = self.pull * jnp.stack([t, t**2])
        return self.effort(t, q, v, args).at[:2].add(force)  # pyright: ignore


class _Elliptic(eqx.Module):
    """Tangents of unequal length: the friction cone is an ellipse."""

    tangents: eqx.Module
    across: jax.Array

    def __call__(self, q, args):
        return self.tangents(q, args).at[:, 1].multiply(self.across)  # pyright: ignore


def _system(p, dtype):
    p = dict(zip(_names, p, strict=True))
    inertia = 0.4 * jnp.maximum(p["radius"], 0.01) ** 2
    body = body_on_plane(
        radius=p["radius"],
        inertia=jnp.broadcast_to(inertia, (3,)),
        slope=p["slope"],
        friction=p["friction"],
        static_friction=p["static"] * p["friction"],
        restitution=p["restitution"],
    )
    pull = jnp.stack([p["pull_x"], p["pull_y"]])
    body = eqx.tree_at(lambda b: b.effort, body, _Pulled(body.effort, pull))  # pyright: ignore
    body = eqx.tree_at(
        lambda b: b.tangents,
        body,
        _Elliptic(body.tangents, p["across"]),  # pyright: ignore
    )
    q = jnp.stack([0 * p["vx"], 0 * p["vx"], p["radius"] + p["height"]])
    v = jnp.stack([p[name] for name in ("vx", "vy", "vz", "wx", "wy", "wz")])
    return body, (jnp.concatenate([q, jnp.asarray(_upright, dtype)]), v)


def _simulated(p, t1, tol):
    p = jnp.asarray(p)
    body, x0 = _system(p, p.dtype)
    return hj.simulate(
        body,
        0.0,
        t1,
        x0,
        stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol),
        max_events=12,
        throw=False,
    )


def _outcome(p, t1, tol):
    """Final state, times of the events, and what is discrete."""
    sol = _simulated(p, t1, tol)
    log = sol.events
    times = jnp.where(jnp.isfinite(log.t), log.t, 0)
    return (jnp.concatenate(sol.x1), times), (log.mode_after, log.count, sol.result)


@jax.jit
def _with_tangent(p, dp, t1, tol):
    """The outcome, and its derivative in one direction."""
    fn = lambda p: _outcome(p, t1, tol)
    return jax.jvp(fn, (p,), (dp,), has_aux=True)


_moves = {
    # by name: what is given, which of it is varied, until when, and the modes
    "across the slope": (
        dict(vx=1.0, vy=2.0, friction=0.5, slope=0.2),
        ["vx", "vy", "friction", "slope", "across"],
        1.0,
        [ContactMode.STICKING],
    ),
    "an elliptic cone": (
        dict(vx=1.0, vy=2.0, friction=0.5, slope=0.2, across=0.6),
        ["vx", "vy", "friction", "slope", "across"],
        1.5,
        [ContactMode.STICKING],
    ),
    "a ball with spin": (
        dict(height=0.2, vx=1.0, vy=0.5, vz=-1.0, wx=20.0, wy=-10.0, wz=5.0)
        | dict(friction=0.3, radius=0.1),
        ["height", "vx", "vy", "vz", "wx", "wy", "wz", "friction", "radius"],
        1.0,
        [ContactMode.SLIDING, ContactMode.STICKING],
    ),
    "a ball that rolls at once": (
        dict(height=0.2, vx=0.1, vy=0.1, friction=1.5, radius=0.1),
        ["height", "vx", "vy", "vz", "wx", "wy", "wz", "friction", "radius"],
        0.5,
        [ContactMode.STICKING],
    ),
    "a ball that bounces": (
        dict(height=0.2, vx=1.0, vy=0.5, vz=-1.0, wx=20.0, wy=-10.0, wz=5.0)
        | dict(friction=0.3, radius=0.1, restitution=0.5),
        ["height", "vx", "vy", "vz", "wx", "wy", "friction", "radius", "restitution"],
        0.545,
        [ContactMode.FREE] * 4,
    ),
    "rolling downhill": (
        dict(friction=0.3, slope=0.2, radius=0.1),
        ["friction", "slope", "radius"],
        1.0,
        [],
    ),
    "sliding downhill": (
        dict(friction=0.3, slope=1.0, radius=0.1),
        ["friction", "slope", "radius"],
        1.0,
        [ContactMode.SLIDING],
    ),
    "pulled": (
        dict(friction=0.3, pull_x=3.0, pull_y=2.0),
        ["friction", "pull_x", "pull_y", "across"],
        2.0,
        [ContactMode.SLIPPING, ContactMode.SLIDING],
    ),
    "pulled, with static friction": (
        dict(friction=0.3, pull_x=3.0, pull_y=2.0, static=1.3),
        ["friction", "pull_x", "pull_y", "static", "across"],
        2.0,
        [ContactMode.SLIPPING, ContactMode.SLIDING],
    ),
    "stopped, and pulled": (
        dict(friction=0.3, pull_x=3.0, pull_y=2.0, vx=-0.3, vy=0.8),
        ["friction", "pull_x", "pull_y", "vx", "vy", "across"],
        2.0,
        [ContactMode.STICKING, ContactMode.SLIPPING, ContactMode.SLIDING],
    ),
}


def _direction(name):
    varied = _moves[name][1]
    pushes = np.random.default_rng(len(name)).uniform(0.3, 1, len(varied))
    dp = np.zeros(len(_names))
    dp[[_names.index(v) for v in varied]] = pushes
    return dp


@pytest.mark.parametrize("name", _moves)
def test_derivatives(name):
    given, _, t1, modes = _moves[name]
    p, dp = _values(**given), _direction(name)
    (x, _), (dx, dt), (after, count, result) = _with_tangent(p, dp, t1, 1e-10)
    assert result == hj.RESULTS.successful and count == len(modes)
    assert after[:count, 0].tolist() == modes

    h = 1e-5
    (up, t_up), _, (_, _, ended) = _with_tangent(p + h * dp, dp, t1, 1e-10)
    (down, t_down), _, _ = _with_tangent(p - h * dp, dp, t1, 1e-10)
    assert ended == hj.RESULTS.successful
    assert error(dx, (up - down) / (2 * h)) < 1e-6
    # (The end of a departure is where a threshold is.)
    assert error(dt, (t_up - t_down) / (2 * h)) < 1e-5

    # By default.
    (x_default, _), (dx_default, _), _ = _with_tangent(p, dp, t1, 1e-8)
    assert error(x_default, x) < 1e-6
    assert error(dx_default, dx) < 1e-5


def _puck(p, t1):
    """By SciPy: position and velocity of a puck."""
    p = dict(zip(_names, p, strict=True))
    load = _g * np.cos(p["slope"])
    scale = np.array([1.0, p["across"]])
    kinetic, static = p["friction"] * load, p["static"] * p["friction"] * load

    def pull(t):
        force = [_g * np.sin(p["slope"]) + p["pull_x"] * t, p["pull_y"] * t**2]
        return np.array(force)

    def slide(t, y):
        slip = scale * y[2:]
        return [*y[2:], *pull(t) - kinetic * scale * slip / np.linalg.norm(slip)]

    def ends(t, y):
        return np.linalg.norm(scale * y[2:]) - 1e-9

    ends.terminal, ends.direction = True, -1  # pyright: ignore
    options: Any = dict(method="Radau", rtol=1e-10, atol=1e-12)
    y, begin = np.array([0.0, 0.0, p["vx"], p["vy"]]), 0.0
    if y[2:].any():
        out = solve_ivp(slide, (0.0, t1), y, events=ends, **options)
        y, begin = out.y[:, -1], out.t[-1]
    excess = lambda t: np.linalg.norm(pull(t) / scale) - static
    if begin < t1 and excess(t1) > 0:
        begin = brentq(excess, begin, t1)
        # It begins along the acceleration that it has.
        y[2:] = 1e-8 * pull(begin) / np.linalg.norm(pull(begin))
        y = solve_ivp(slide, (begin, t1), y, **options).y[:, -1]
    elif begin < t1:
        y[2:] = 0
    return y


_pucks = ["across the slope", "an elliptic cone"]
_pucks += ["pulled", "pulled, with static friction", "stopped, and pulled"]


@pytest.mark.parametrize("name", _pucks)
def test_pucks(name):
    p, t1 = _values(**_moves[name][0]), _moves[name][2]
    (x, _), _ = _with_tangent(p, np.zeros_like(p), t1, 1e-10)[0::2]
    assert error(x[jnp.array([0, 1, 7, 8])], _puck(p, t1)) < 1e-6


def test_time_of_the_stop():
    # With a drive c downhill and friction k, k |s| + c s_x falls at the rate k^2 - c^2.
    def time(p):
        p = dict(zip(_names, p, strict=True))
        k = p["friction"] * _g * jnp.cos(p["slope"])
        c = _g * jnp.sin(p["slope"])
        speed = jnp.hypot(p["vx"], p["vy"])
        return (k * speed + c * p["vx"]) / (k**2 - c**2)

    p, dp = _values(**_moves["across the slope"][0]), _direction("across the slope")
    dp[_names.index("across")] = 0
    (_, t), (_, dt), _ = _with_tangent(p, dp, 1.0, 1e-10)
    exact, d_exact = jax.jvp(time, (jnp.asarray(p),), (jnp.asarray(dp),))
    assert abs(t[0] - exact) < 1e-6 and abs(dt[0] - d_exact) < 1e-6


def _ball(p, t1):
    """A ball that falls, slides and rolls on level ground, in closed form: the final
    position along the ground, and the velocity."""
    p = dict(zip(_names, p, strict=True))
    fall = jnp.sqrt(p["vz"] ** 2 + 2 * _g * p["height"])
    landing = (p["vz"] + fall) / _g
    v, r, mu = jnp.stack([p["vx"], p["vy"]]), p["radius"], p["friction"]
    slip = v + r * jnp.stack([-p["wy"], p["wx"]])
    u = slip / jnp.linalg.norm(slip)
    # The slip is stopped 3.5 times as easily as the ball.
    impulse = jnp.minimum(mu * fall, jnp.linalg.norm(slip) / 3.5)
    after = v - impulse * u
    slides = (jnp.linalg.norm(slip) - 3.5 * impulse) / (3.5 * mu * _g)
    rolling = after - mu * _g * slides * u
    place = v * landing + after * slides - mu * _g * slides**2 / 2 * u
    return jnp.concatenate([place + rolling * (t1 - landing - slides), rolling])


@pytest.mark.parametrize("name", ["a ball with spin", "a ball that rolls at once"])
def test_balls(name):
    p, dp, t1 = _values(**_moves[name][0]), _direction(name), _moves[name][2]
    (x, _), (dx, _), _ = _with_tangent(p, dp, t1, 1e-10)
    exact = lambda p: _ball(p, t1)
    value, slope = jax.jvp(exact, (jnp.asarray(p),), (jnp.asarray(dp),))
    along = jnp.array([0, 1, 7, 8])
    assert error(x[along], value) < 1e-8
    assert error(dx[along], slope) < 1e-6


@pytest.mark.parametrize("name", ["rolling downhill", "sliding downhill"])
def test_downhill(name):
    # Up to the friction angle, and beyond: tan(slope) = 3.5 friction for a ball.
    p, dp, t1 = _values(**_moves[name][0]), _direction(name), _moves[name][2]

    def exact(p):
        p = dict(zip(_names, p, strict=True))
        sin, cos = jnp.sin(p["slope"]), jnp.cos(p["slope"])
        rolls = name == "rolling downhill"
        return _g * t1**2 / 2 * (sin / 1.4 if rolls else sin - p["friction"] * cos)

    (x, _), (dx, _), _ = _with_tangent(p, dp, t1, 1e-10)
    value, slope = jax.jvp(exact, (jnp.asarray(p),), (jnp.asarray(dp),))
    assert abs(x[0] - value) < 1e-8 and abs(dx[0] - slope) < 1e-6


#
# Reverse mode, other dtypes, batches
#


def test_reverse_mode():
    # Of what contacts add to a simulation: flow, guards, and jump, where the direction
    # of slip is found by Newton's method. (On a slope: without a force it has none.)
    p = jnp.asarray(_values(**_moves["a ball with spin"][0], slope=1.0))
    slipping = jnp.array([int(ContactMode.SLIPPING)])
    free = jnp.array([int(ContactMode.FREE)])

    def fn(p):
        body, (q, v) = _system(p, p.dtype)
        q = q.at[2].add(-p[0])
        rest = v.at[jnp.array([0, 1, 2])].set(jnp.stack([-0.1 * p[5], 0.1 * p[4], 0]))
        rest = (q, rest.at[:2].multiply(-1))
        (q_after, v_after), _ = body.jump(0.0, (q, v), free, 0, None)
        flow = body.flow(0.0, rest, slipping, None)
        guards = body.guards(0.0, rest, slipping, None)
        return jnp.concatenate([q_after, v_after, *flow, guards])

    def both(p, key):
        dp = jax.random.normal(key, p.shape)
        out, pushed = jax.jvp(fn, (p,), (dp,))
        cts = jax.random.normal(key, out.shape)
        (pulled,) = jax.vjp(fn, p)[1](cts)
        return cts @ pushed, pulled @ dp

    pushed, pulled = jax.jit(both)(p, jax.random.key(0))
    assert abs(pushed - pulled) < 1e-10 * (1 + abs(pushed))


@pytest.mark.thorough
def test_gradients():
    loss = lambda p, t1: jnp.sum(_outcome(p, t1, 1e-10)[0][0] ** 2)
    gradient = jax.jit(jax.grad(loss))
    for name, (given, _, t1, _) in _moves.items():
        p, dp = jnp.asarray(_values(**given)), jnp.asarray(_direction(name))
        (x, _), (dx, _), _ = _with_tangent(p, dp, t1, 1e-10)
        assert error(gradient(p, t1) @ dp, 2 * x @ dx) < 1e-7


@pytest.mark.thorough
def test_float32_in_batches():
    names = [name for name in _moves if _moves[name][2] == 1.0]
    ps = np.stack([_values(**_moves[name][0]) for name in names])
    fn = jax.jit(jax.vmap(lambda p: jnp.concatenate(_simulated(p, 1.0, 1e-5).x1)))
    xs = fn(jnp.asarray(ps, jnp.float32))
    assert xs.dtype == jnp.float32
    for p, x in zip(ps, xs, strict=True):
        (exact, _), _ = _with_tangent(p, np.zeros_like(p), 1.0, 1e-10)[0::2]
        assert error(x, exact) < 1e-3


def test_rest_speed():
    # A slide is at its end where it is as slow as that.
    x0 = lambda speed: (jnp.array([0, 0, 0, *_upright]), jnp.zeros(6).at[1].set(speed))
    body = body_on_plane(friction=0.5, rest_speed=1e-3)
    mode = jnp.array([int(ContactMode.SLIDING)])
    guards = jax.jit(lambda speed: body.guards(jnp.zeros(()), x0(speed), mode, None))
    before, after = guards(1.1e-3), guards(0.9e-3)
    assert before.min() > 0 and after.min() < 0


def test_the_speed_of_rest_changes_with_forces():
    # By default it is that of a short slide, with the accelerations that there are.
    body = at_tolerance(body_on_plane(friction=0.5), 1e-2)
    pull = jnp.array([30.0, 1.0])
    body = eqx.tree_at(lambda b: b.effort, body, _Pulled(body.effort, pull))
    x = jnp.array([0, 0, 0, *_upright]), jnp.zeros(6).at[1].set(0.1)
    modes = jnp.array([[int(ContactMode.SLIDING)], [int(ContactMode.SLIPPING)]])
    guards = lambda t: jax.vmap(lambda mode: body.guards(t, x, mode, None))(modes)
    rates = jax.jit(jax.jacfwd(guards))(2.0)
    expected = slope_along(jax.jit(guards), 2.0, 1.0, 1e-3)
    np.testing.assert_allclose(rates, expected, rtol=0, atol=1e-9)
    # At the end of a slide, and where it has begun.
    assert abs(rates[0, 1]) > 1e-3 and abs(rates[1, 2]) > 4e-3


def test_slows_down_before_it_slides():
    # What drives it is at the edge of the cone, and falls: it sticks again.
    body = body_on_plane(friction=0.5, rest_speed=1e-3)
    mode = jnp.array([int(ContactMode.SLIPPING)])
    x = jnp.array([0.0, 0.0, 0.0, *_upright]), jnp.array([6e-5, 8e-5, *[0.0] * 4])

    @jax.jit
    def after(share):
        pull = share * 0.5 * _g * jnp.array([0.6, 0.8])
        effort = _Pulled(body.effort, pull)  # pyright: ignore
        pulled = eqx.tree_at(lambda b: b.effort, body, effort)
        return pulled.jump(jnp.ones(()), x, mode, 1, None)

    for share in (1 - 1e-6, 1 - 1e-9, 1 - 1e-11, 1.0):
        (q, v), now = after(share)
        assert now == ContactMode.STICKING
        assert np.max(np.abs(v)) < 1e-15 and np.max(np.abs(q - x[0])) < 1e-15


def test_slows_down_beside_a_foot_that_sticks():
    # It turns about that foot, if its pull can turn it: then it has not stopped.
    points, slips = [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], int(ContactMode.SLIPPING)
    body = body_on_plane(points, friction=[0.9, 0.3], rest_speed=1e-2)
    mode = jnp.array([int(ContactMode.STICKING), slips])
    turning = jnp.array([0.0, 1.0, 0.0, 0.0, 0.0, 1.0])

    @jax.jit
    def watched(share, speed):
        pull = share * 0.3 * _g / 2 * turning
        pulled = lambda *at: body.effort(*at) + pull
        pulled = eqx.tree_at(lambda b: b.effort, body, pulled)
        x = jnp.array([0.0, 0.0, 0.0, *_upright]), speed * turning
        before = pulled.guards(jnp.ones(()), x, mode, None)
        (_, v), after = pulled.jump(jnp.ones(()), x, mode, 3, None)
        still = jnp.zeros(7).at[3].set(1), v
        return before[3], v, after, pulled.guards(jnp.ones(()), still, after, None)[3]

    for speed in (0.0, 1e-3):
        for over in (1e-8, 1e-7, 1e-6, 1e-4):
            before, v, after, then = watched(1 + over, speed)
            assert before > 0 and then > 0 and after[1] == slips
            before, v, after, then = watched(1 - over, speed)
            assert then > 0 and after[1] == ContactMode.STICKING
            assert jnp.max(jnp.abs(v)) < 1e-15
    assert watched(1 - 1e-3, 0.0)[0] < -1e-3


#
# Several contacts
#

_feet = np.array([[i, j, -1.0] for i in (-1, 1) for j in (-1, 1)])


@jax.jit
def _on_feet(points, inertia, friction, x0, t1):
    body = body_on_plane(points, inertia=inertia, friction=friction)
    sol = hj.simulate(body, 0.0, t1, x0, max_events=128, throw=False)
    return sol.x1, sol.mode1, sol.result, sol.events


def test_after_the_end_of_a_slide():
    # A foot stops, while the others are nearly as slow, and slide in other directions
    # for it. Whatever follows: none of them is where it is not watched any more.
    eps, many, rng = 1e-2, 100, np.random.default_rng(0)

    @jax.jit
    @jax.vmap
    def after(points, friction, v, mode):
        body = body_on_plane(
            points,
            inertia=[0.05, 0.07, 0.1],
            friction=friction,
            rest_speed=eps,
            slope=0.1,
        )
        q = jnp.array([0.0, 0.0, 0.2, *_upright])
        stop = jnp.asarray(4)
        (q, v), mode = body.jump(jnp.zeros(()), (q, v), mode, stop, None)
        return v, mode, body.guards(jnp.zeros(()), (q, v), mode, None)

    angles = (np.arange(4) + rng.uniform(-0.3, 0.3, (many, 4))) * np.pi / 2
    arms = rng.uniform(0.2, 0.45, (many, 4, 1)) * np.stack(
        [np.cos(angles), np.sin(angles)], axis=2
    )
    points = np.concatenate([arms, np.full((many, 4, 1), -0.2)], axis=2)
    friction = rng.uniform(0.1, 0.5, (many, 4))
    # It turns about a point near the first foot, which has the speed of the end.
    turn = eps * rng.uniform(2, 20, many) * rng.choice([-1, 1], many)
    way = rng.uniform(0, 2 * np.pi, many)
    v = np.zeros((many, 6))
    v[:, 0] = eps * np.cos(way) + turn * arms[:, 0, 1]
    v[:, 1] = eps * np.sin(way) - turn * arms[:, 0, 0]
    v[:, 5] = turn

    slides, slips = int(ContactMode.SLIDING), int(ContactMode.SLIPPING)
    mode = jnp.full((many, 4), slides)
    v1, mode1, guards = after(points, friction, v, mode)
    # (One that friction cannot hold goes on as it does, and may stop right after.)
    stops = mode1[:, 0] != slips
    assert 0.2 < jnp.mean(stops) < 0.8 and jnp.all(guards[stops] > -1e-9)

    # Or it had just begun: then it is at rest.
    v1, mode1, guards = after(points, friction, v, mode.at[:, 0].set(slips))
    assert jnp.all(guards > -1e-9)
    np.testing.assert_allclose(
        v1[:, :2] + v1[:, 5:] * arms[:, 0] @ np.array([[0, 1], [-1, 0]]), 0, atol=1e-15
    )


@pytest.mark.thorough
def test_a_spinning_ring():
    # Four points on a ring, each with a quarter of the weight.
    a, mu, inertia = 0.2, 0.4, 0.04
    points = a * _feet * np.array([1, 1, 0]) / np.sqrt(2)
    v = np.array([1.0, 0.5, 0.0, 0.0, 0.0, 8.0])
    x0 = (np.concatenate([np.zeros(3), _upright]), v)
    args = points, np.array([0.02, 0.02, inertia]), mu
    x1, mode, result, log = _on_feet(*args, x0, 1.0)
    assert result == hj.RESULTS.successful
    assert mode.tolist() == [ContactMode.STICKING] * 4

    def slide(t, y):
        (_, _, angle), v, w = y[:3], y[3:5], y[5]
        turn = np.array(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
        arms = points[:, :2] @ turn.T
        slips = v + w * np.stack([-arms[:, 1], arms[:, 0]], axis=1)
        # Smoothed a little, as one point stops before the others.
        sizes = np.sqrt(np.sum(slips**2, axis=1) + 1e-14)
        forces = -mu * _g / 4 * slips / sizes[:, None]
        moment = np.sum(arms[:, 0] * forces[:, 1] - arms[:, 1] * forces[:, 0])
        return [*v, w, *forces.sum(axis=0), moment / inertia]

    y0 = [0.0, 0.0, 0.0, v[0], v[1], v[5]]
    out = solve_ivp(slide, (0, 0.8), y0, method="Radau", rtol=1e-9, atol=1e-11)
    assert np.max(np.abs(out.y[3:, -1])) < 1e-6
    (q, _), angle = x1, out.y[2, -1]
    assert error(q[:2], out.y[:2, -1]) < 1e-6
    half = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
    assert error(q[3:], half) < 1e-6
    # Its last motions are a translation and a turn together.
    count = int(log.count)
    assert log.t[count - 1] - log.t[0] < 0.1 * log.t[0]


def test_a_box_comes_to_rest():
    sides = np.array([0.1, 0.15, 0.2])
    inertia = (np.sum(sides**2) - sides**2) / 3
    mass = np.array([1.0, 1.0, 1.0, *inertia])
    energy = lambda x: (mass * x[1] ** 2).sum(-1) / 2 + _g * x[0][..., 2]
    thrown = [[0.5, 0.2, 0.0, 0.5, -0.5, 1.0], [-0.3, 0.4, 0.0, 0.3, 0.4, -2.0]]
    for v in thrown:
        x0 = (np.array([0.0, 0.0, 0.25, *_upright]), np.array(v))
        x1, mode, result, log = _on_feet(sides * _feet, inertia, 0.4, x0, 2.0)
        assert result == hj.RESULTS.successful
        assert mode.tolist() == [ContactMode.STICKING] * 4
        q, v1 = x1
        assert abs(q[2] - sides[2]) < 1e-9 and jnp.max(jnp.abs(v1)) < 1e-9
        count = int(log.count)
        slid = {int(ContactMode.SLIDING), int(ContactMode.STICKING)}
        assert slid <= set(np.unique(log.mode_after[:count]))
        states = [jax.tree.map(np.asarray, x) for x in (log.x_before, log.x_after)]
        both = np.stack([energy(x)[:count] for x in states], axis=1)
        course = np.concatenate([[energy(x0)], both.ravel()])
        assert np.max(np.diff(course)) < 1e-7


def test_derivatives_of_four_feet():
    # All of them begin to slip; or they slide, with directions of their own; or they
    # turn about one of them, that begins to slip, or sticks. How the weight is shared
    # is not determined, and matters.
    points = np.array([[0.3, 0.2], [-0.2, 0.3], [-0.25, -0.3], [0.2, -0.35]])
    points = np.concatenate([points, np.full((4, 1), -0.2)], axis=1)
    friction, inertia = np.array([0.2, 0.4, 0.3, 0.25]), [0.05, 0.07, 0.1]
    given: Any = dict(friction=friction, inertia=inertia, stabilization=0.0)
    # What slips from rest here is slow, with the velocities of the differences, too.
    still = body_on_plane(points, **given, rest_speed=100.0)
    q, turn = jnp.array([0.0, 0.0, 0.2, *_upright]), 5.0

    @jax.jit
    def acceleration(mode, z, dz):
        def flow(z):
            pushed = lambda *at: still.effort(*at) + z[:6]
            body = eqx.tree_at(lambda b: b.effort, still, pushed)
            return body.flow(jnp.zeros(()), (q, z[6:]), mode, None)[1]

        return jax.jvp(flow, (z,), (dz,))

    about = np.array([*np.cross(points[0], [0.0, 0.0, turn]), 0.0, 0.0, turn])
    onward = about + np.array([1.0, 0.5, 0.0, 0.0, 0.0, 0.0])
    slips, slides = int(ContactMode.SLIPPING), int(ContactMode.SLIDING)
    kinds = {
        (slips,) * 4: (np.zeros(6), 0.0),
        (slides,) * 4: (onward, 1.0),
        (slips, *(slides,) * 3): (about, 1.0),
        (int(ContactMode.STICKING), *(slides,) * 3): (about, 1.0),
    }
    push, rng, h = [7.0, 2.0, 0.0, 0.03, -0.02, 2.5], np.random.default_rng(0), 1e-2
    for mode, (v, moves) in kinds.items():
        z, flat = np.array([*push, *v]), np.array([1, 1, 0, 0, 0, 1])
        for _ in range(2):
            dz = rng.uniform(-1, 1, 12) * np.concatenate([np.ones(6), moves * flat])
            value = lambda z, mode=mode, dz=dz: acceleration(jnp.array(mode), z, dz)[0]
            _, got = acceleration(jnp.array(mode), z, dz)
            assert error(got, slope_along(value, z, dz, h)) < 1e-5


@pytest.mark.thorough
def test_derivatives_of_a_box_at_rest():
    # It lands on a corner, tips over an edge, on which two feet land together, slides,
    # and stops: in 4 events, or in 9 or 28, as it goes to and fro between its corners.
    sides = np.array([0.15, 0.1, 0.05])
    inertia = (np.sum(sides**2) - sides**2) / 3
    body = body_on_plane(sides * _feet, inertia=inertia, friction=0.4)
    tilted = np.concatenate([[np.cos(0.15)], np.sin(0.15) * np.array([0.6, 0.8, 0])])

    def final(throw, tol):
        q0 = np.concatenate([[0.0, 0.0, 0.25], tilted])
        v0 = (
            jnp.array([0.0, 0.0, 0.0, 1.0, -1.5, 0.0])
            .at[np.array([0, 1, 5])]
            .set(throw)
        )
        controller = diffrax.PIDController(rtol=tol, atol=tol)
        options: Any = dict(max_events=64, throw=False, stepsize_controller=controller)
        sol = hj.simulate(body, 0.0, 2.0, (q0, v0), **options)
        return jnp.concatenate(sol.x1), (sol.mode1, sol.result, sol.events.count)

    push = jnp.array([1.0, 0.5, 0.7])
    run = jax.jit(
        lambda z, tol: jax.jvp(lambda z: final(z, tol), (z,), (push,), has_aux=True)
    )
    counts, h = set(), 1e-4
    for throw in ([1.0, 0.3, 2.0], [1.5, 0.0, 4.0], [0.5, -0.5, 6.0], [1.9, 0.7, 1.8]):
        x, dx, (mode, result, count) = run(jnp.array(throw), 1e-10)
        assert result == hj.RESULTS.successful
        assert mode.tolist() == [ContactMode.STICKING] * 4
        up, down = (run(jnp.array(throw) + side * push, 1e-10)[0] for side in (h, -h))
        assert error(dx, (up - down) / (2 * h)) < 1e-5
        _, dx_default, _ = run(jnp.array(throw), 1e-8)
        assert error(dx_default, dx) < 1e-6
        counts.add(int(count))
    assert min(counts) <= 4 and max(counts) > 20


#
# Errors
#


@pytest.mark.parametrize("mode", [ContactMode.FORWARD, ContactMode.SLIPPING_BACKWARD])
def test_planar_modes(mode):
    body = body_on_plane(friction=0.5)
    x0 = (jnp.array([0.0, 0.0, 0.0, *_upright]), jnp.array([1.0, 0, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="SLIDING.*FORWARD"):
        hj.simulate(body, 0.0, 1.0, x0, jnp.array([int(mode)]))


def test_shape_of_tangents():
    body = body_on_plane(friction=0.5)
    body = eqx.tree_at(lambda b: b.tangents, body, lambda q, args: jnp.ones((1, 3, 6)))
    x0 = (jnp.array([0.0, 0.0, 0.0, *_upright]), jnp.zeros(6))
    with pytest.raises(ValueError, match=r"tangents.*\(1, 6\) or \(1, 2, 6\)"):
        hj.simulate(body, 0.0, 1.0, x0)
