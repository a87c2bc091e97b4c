"""Each transition of a contact, on a leg whose mass matrix depends on its posture.

The saltation matrices are those of Kong et al., Section V and Table II, typed from the
paper with its errata, from M, J and their derivatives alone.
"""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..helpers import error


_posture = jnp.array([0.1, 0.0, 0.15, 0.7, -0.5])
_speeds = jnp.array([0.4, -0.9, 0.3, -0.7, 0.8])


def _leg(p):
    return models.planar_monoped(
        torques=lambda t, q, v, args: args[0] + args[1] * t,
        friction=p["friction"],
        static_friction=p["static_friction"],
        restitution=p["restitution"],
        # Zero on the surface, but not its derivative away from it.
        stabilization=0.0,
        apex=True,
    )


# What is needed of the leg, without contact laws.
_bare: Any = models.planar_monoped(torques=lambda t, q, v, args: args)


def _rows(q):
    """The normal and the tangential Jacobian of the foot."""
    return jnp.concatenate([jax.jacfwd(_bare.gap)(q, None), _bare.tangents(q, None)])


def _grounded(q):
    return q.at[1].add(-_bare.gap(q, None)[0])


def _forces(q, v, u):
    """Of the leg without contact: f - C v."""
    lagrange = lambda q: _bare.mass_matrix(q, None) @ v
    coriolis = jax.jvp(lagrange, (q,), (v,))[1] - jax.grad(
        lambda q: v @ _bare.mass_matrix(q, None) @ v / 2
    )(q)
    return _bare.effort(0.0, q, v, u) - coriolis, coriolis


def _daggers(q, J):
    """The blocks of the inverse of (64): M†, J†ᵀ and Λ†."""
    d, k = q.shape[0], J.shape[0]
    M = _bare.mass_matrix(q, None)
    inverse = jnp.linalg.inv(jnp.block([[M, J.T], [J, jnp.zeros((k, k))]]))
    return inverse[:d, :d], inverse[:d, d:], inverse[d:, d:]


def _bias(rows, q, v):
    return jax.jvp(lambda q: rows(q) @ v, (q,), (v,))[1]


def _field(rows, q, v, u):
    """(66): the vector field under the constraints `rows`."""
    M_, JT_, _ = _daggers(q, rows(q))
    return jnp.concatenate([v, M_ @ _forces(q, v, u)[0] - JT_ @ _bias(rows, q, v)])


def _multipliers(q, v, u):
    """(67) of the sticking foot; its sign is that of a force on the foot."""
    _, JT_, L_ = _daggers(q, _rows(q))
    return -(JT_.T @ _forces(q, v, u)[0] - L_ @ _bias(_rows, q, v))


def _sliding(q, v, u, friction, direction):
    """The vector field while the foot slides, with (68), and its normal force."""
    M, (Jn, Jt) = _bare.mass_matrix(q, None), _rows(q)
    push = Jn - direction * friction * Jt
    bias = _bias(lambda q: _rows(q)[:1], q, v)[0]
    free = jnp.linalg.solve(M, _forces(q, v, u)[0])
    force = -(Jn @ free + bias) / (Jn @ jnp.linalg.solve(M, push))
    return jnp.concatenate([v, free + jnp.linalg.solve(M, push) * force]), force


def _plastic(rows, q, v, u):
    """(84), (85) with the normal row; (86), (87) with both."""
    J, Jn = rows(q), _rows(q)[0]
    M_, JT_, _ = _daggers(q, J)
    after = lambda q: v - _daggers(q, rows(q))[1] @ rows(q) @ v  # M† M v, by (65)
    turned = jax.jacfwd(after)(q)
    v_plus = after(q)
    jump = _forces(q, v, u)[1] - _forces(q, v_plus, u)[1]
    Z = M_ @ jump - JT_ @ _bias(rows, q, v_plus) - turned @ v
    d = q.shape[0]
    row = Jn / (Jn @ v)
    return jnp.block(
        [
            [jnp.eye(d) - jnp.outer(JT_ @ J @ v, row), jnp.zeros((d, d))],
            [jnp.outer(Z, row) + turned, jnp.eye(d) - JT_ @ J],
        ]
    )


def _elastic(e, q, v, u):
    """(91), (92)."""
    d = q.shape[0]
    normal = lambda q: _rows(q)[:1]
    reset = lambda q: jnp.eye(d) - (1 + e) * _daggers(q, normal(q))[1] @ normal(q)
    turned = jax.jacfwd(lambda q: reset(q) @ v)(q)
    v_plus, Jn = reset(q) @ v, normal(q)[0]
    M = _bare.mass_matrix(q, None)
    free, before = _forces(q, v, u)
    Z = jnp.linalg.solve(M, before - _forces(q, v_plus, u)[1]) - turned @ v
    Z = Z + (1 + e) * _daggers(q, normal(q))[1] @ normal(q) @ jnp.linalg.solve(M, free)
    Z = jnp.outer(Z, Jn / (Jn @ v))
    return jnp.block([[reset(q), jnp.zeros((d, d))], [Z + turned, reset(q)]])


def _identity_reset(before, after, guard, q, v, in_time=0.0):
    """(97), (100), for a guard whose partial derivative in time is `in_time`."""
    d = q.shape[0]
    gradient = jax.grad(lambda x: guard(x[:d], x[d:]))(jnp.concatenate([q, v]))
    rate = in_time + gradient @ before
    return jnp.eye(2 * d) + jnp.outer(after - before, gradient) / rate


def _cases():
    """By name: parameters, state, mode, event, torques and their rates, the mode after
    it, and the matrix of the paper."""
    q = _grounded(_posture)
    Jn, Jt = _rows(q)
    eye = np.eye(10)
    p = dict(friction=0.0, static_friction=0.0, restitution=0.0)
    cases = {}
    normal = lambda q: _rows(q)[:1]
    along = lambda v, n, t: (
        v
        + jnp.linalg.lstsq(  # with these contact speeds
            _rows(q), jnp.stack([n, t]) - _rows(q) @ v
        )[0]
    )

    F, B, S = ContactMode.FORWARD, ContactMode.BACKWARD, ContactMode.STICKING
    free, rising = ContactMode.FREE, ContactMode.RISING
    lifting = ContactMode.LIFTING
    falls = along(_speeds, -1.0, 0.4)
    zero = jnp.zeros(2)
    slope = jax.jacfwd(lambda u: _multipliers(q, falls, u))(zero)
    pressing = jnp.linalg.solve(slope, jnp.array([80.0, 0.0]))
    cases["plastic, sliding (84)"] = (
        p, falls, free, 0, pressing, zero, F, _plastic(normal, q, falls, pressing)
    )  # fmt: skip
    rough = dict(p, friction=3.0, static_friction=3.0)
    cases["plastic, sticking (86)"] = (
        rough, falls, free, 0, pressing, zero, S, _plastic(_rows, q, falls, pressing)
    )  # fmt: skip
    bouncy = dict(p, restitution=0.6)
    cases["elastic (91)"] = (
        bouncy, falls, free, 0, pressing, zero, rising,
        _elastic(0.6, q, falls, pressing),
    )  # fmt: skip
    top = along(_speeds, 0.0, 0.4)
    cases["apex (72)"] = (p, top, rising, 0, pressing, zero, free, eye)

    # Liftoff: torques at which the forces vanish.
    rests = along(_speeds, 0.0, 0.0)
    lets_go = jnp.linalg.solve(slope, jnp.array([-50.0, 0.0]))  # per second
    pulls = jnp.linalg.solve(slope, jnp.array([0.0, 30.0]))
    nothing = jnp.linalg.solve(slope, -_multipliers(q, rests, zero))
    # Nearby motions leave their friction cone a moment before; here, a very short one.
    glued = dict(p, static_friction=1e9)
    cases["liftoff from sticking (75)"] = (
        glued, rests, S, 0, nothing, lets_go, lifting, eye
    )  # fmt: skip
    slides = along(_speeds, 0.0, 0.4)
    some = dict(p, friction=0.3, static_friction=0.3)
    by_knee = lambda k: _sliding(q, slides, jnp.stack([0.0, k]), 0.3, 1)[1]
    knee = -by_knee(0.0) / jax.grad(by_knee)(0.0)
    u = jnp.stack([0.0, knee])
    cases["liftoff from sliding (76)"] = (
        some, slides, F, 0, u, lets_go, lifting, eye
    )  # fmt: skip

    # Slip: friction that is just exceeded.
    u = nothing + jnp.linalg.solve(slope, jnp.array([20.0, 8.0]))
    n, t = _multipliers(q, rests, u)
    limit = t / n
    equal = dict(p, friction=limit, static_friction=limit)
    back = ContactMode.SLIPPING_BACKWARD
    cases["slip, equal friction (95)"] = (
        equal, rests, S, 1, u, pulls, back, eye
    )  # fmt: skip
    less = dict(equal, friction=0.7 * limit)

    def cone(q, v):
        n, t = _multipliers(q, v, u)
        return limit * n - t

    sticks = _field(_rows, q, rests, u)
    slip = _sliding(q, rests, u, 0.7 * limit, -1)[0]
    cases["slip, less kinetic friction (97)"] = (
        less, rests, S, 1, u, pulls, back,
        _identity_reset(sticks, slip, cone, q, rests, -30.0),
    )  # fmt: skip

    # Stick, and reversal, where sliding backward stops.
    backward = lambda q, v: -_rows(q)[1] @ v
    more = dict(p, friction=2 * limit, static_friction=2 * limit)
    before = _sliding(q, rests, u, 2 * limit, -1)[0]
    cases["stick (100)"] = (
        more, rests, B, 2, u, zero, S,
        _identity_reset(before, sticks, backward, q, rests),
    )  # fmt: skip
    push = nothing + jnp.linalg.solve(slope, jnp.array([20.0, -8.0]))
    before = _sliding(q, rests, push, 0.7 * limit, -1)[0]
    after = _sliding(q, rests, push, 0.7 * limit, 1)[0]
    cases["reversal"] = (
        dict(p, friction=0.7 * limit, static_friction=0.7 * limit),
        rests, B, 2, push, zero, ContactMode.SLIPPING_FORWARD,
        _identity_reset(before, after, backward, q, rests),
    )  # fmt: skip
    return q, cases


def _stack(dicts):
    return jax.tree.map(
        lambda *a: jnp.stack([jnp.asarray(x, float) for x in a]), *dicts
    )


@pytest.fixture(scope="module")
def table():
    q, cases = jax.jit(_cases)()  # One by one, its operations take seconds.
    p, v, mode, event, u, du, after, matrix = zip(*cases.values(), strict=True)

    @jax.jit
    @jax.vmap
    def ours(p, v, mode, event, u, du):
        leg, args = _leg(p), (u, du)
        # An apex is above the ground.
        up = jnp.where(mode == ContactMode.RISING, 0.1, 0.0)
        x, m = (q.at[1].add(up), v), mode[None]
        matrix = hj.saltation_matrix(leg, 0.0, x, m, event, args)
        return matrix, x, *leg.jump(jnp.zeros(()), x, m, event, args)

    given = _stack(p), jnp.stack(v), jnp.array(mode), jnp.array(event)
    given = *given, jnp.stack(u), jnp.stack(du)
    return list(cases), given, ours(*given), jnp.array(after), jnp.stack(matrix)


def test_table_2(table):
    names, _, (got, _, _, got_mode), after, matrix = table
    np.testing.assert_array_equal(got_mode[:, 0], after, err_msg=str(names))
    for name, ours, papers in zip(names, got, matrix, strict=True):
        np.testing.assert_allclose(ours, papers, rtol=1e-9, atol=1e-9, err_msg=name)
    named = dict(zip(names, got, strict=True))
    # Table II: where the matrix is the identity, and whose diagonal blocks are equal.
    identity = {
        name for name, m in zip(names, got, strict=True) if np.allclose(m, np.eye(10))
    }
    assert identity == {
        "apex (72)",
        "liftoff from sticking (75)",
        "liftoff from sliding (76)",
        "slip, equal friction (95)",
    }
    equal = {
        name
        for name, m in named.items()
        if np.allclose(m[:5, :5], m[5:, 5:], atol=1e-8)
    }
    assert equal == identity | {"plastic, sliding (84)", "elastic (91)"}
    assert np.abs(got[:, :5, 5:]).max() < 1e-12


def _near(leg, args, x, mode, event, direction, h):
    """A state at about `h * direction` from `x`, on the side before the event, at
    which what is closed is closed."""
    q, v = x
    normal = (mode != ContactMode.FREE) & (mode != ContactMode.RISING)
    keep = jnp.stack([normal, mode == ContactMode.STICKING])

    def shifted(h):
        a, b = q + h * direction[:5], v + h * direction[5:]
        for _ in range(4):
            rows = jnp.where(keep[:, None], _rows(a), 0)
            gap = jnp.stack([leg.gap(a, None)[0], 0.0])
            a = a - jnp.linalg.pinv(rows) @ jnp.where(keep, gap, 0)
        rows = jnp.where(keep[:, None], _rows(a), 0)
        return a, b - jnp.linalg.pinv(rows) @ (rows @ b)

    guards = leg.guards(jnp.zeros(()), shifted(h), mode[None], args)
    return shifted(jnp.where(guards[event] > 0, h, -h))


@pytest.mark.thorough
def test_one_sided_differences(table):
    # The outcome of starts nearby, less than a moment before the event, flown back to
    # the time of the event by the law that holds after it.
    names, given, (matrices, at, reset, _), after, _ = table
    directions = jax.random.normal(jax.random.key(0), (4, 10))
    h, short = 1e-5, 2e-3

    def outcome(leg, args, x, mode, after):
        sol = hj.simulate(
            leg,
            0.0,
            short,
            x,
            mode[None],
            args=args,
            stepsize_controller=dfx.PIDController(rtol=1e-12, atol=1e-12),
            max_steps=64,
            max_events=8,
            throw=False,
        )

        def back(i, carry):  # Runge and Kutta's method
            t, y = carry
            step = -short / 32
            field = jax.jit(  # To trace it four times would take seconds.
                lambda t, y: jnp.concatenate(
                    leg.flow(t, (y[:5], y[5:]), after[None], args)
                )
            )
            k1 = field(t, y)
            k2 = field(t + step / 2, y + step / 2 * k1)
            k3 = field(t + step / 2, y + step / 2 * k2)
            k4 = field(t + step, y + step * k3)
            return t + step, y + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        y = jnp.concatenate(sol.x1)
        _, y = jax.lax.fori_loop(0, 32, back, (jnp.asarray(short), y))
        return y, jnp.stack([sol.events.event[0], sol.events.mode_after[0, 0]])

    @jax.jit
    @jax.vmap
    def differences(given, matrix, x, reset, after):
        p, _, mode, event, u, du = given
        leg, args = _leg(p), (u, du)
        here = jnp.concatenate(reset)

        def slope(direction, h):
            near = _near(leg, args, x, mode, event, direction, h)
            moved = (jnp.concatenate(near) - jnp.concatenate(x)) / h
            y, log = outcome(leg, args, near, mode, after)
            return (y - here) / h, matrix @ moved, log

        return jax.vmap(lambda d: jax.vmap(lambda h: slope(d, h))(h * sizes))(
            directions
        )

    sizes = jnp.array([1.0, 0.5])
    got, want, log = differences(given, matrices, at, reset, after)
    event = given[3]
    for k, name in enumerate(names):
        if name != "liftoff from sticking (75)":  # slips for a moment before
            assert (log[k, ..., 0] == event[k]).all(), name
            assert (log[k, ..., 1] == after[k]).all(), name
        # What is left is of second order in the distance.
        extrapolated, linear = (2 * a[k, :, 1] - a[k, :, 0] for a in (got, want))
        assert error(extrapolated, linear) < 1e-5, name


def test_what_lifts_off_is_pushed_back():
    # A rod is pulled up when one of its ends lands, and pushes down the other one,
    # which begins to lift off there. Hit in turn, both would come to rest in impacts
    # without end.
    def final(parameters):
        speed, force = parameters
        rod = MechanicalSystem(
            lambda q, args: jnp.array([1.0, 1 / 3]),
            lambda t, q, v, args: jnp.stack([force, 0 * force]),
            lambda q, args: jnp.stack([q[0] - q[1], q[0] + q[1]]),
            2,
        )
        sol = hj.simulate(
            rod,
            0.0,
            1.0,
            (jnp.zeros(2), jnp.stack([-speed / 2, -speed / 2])),
            jnp.array([ContactMode.LIFTING, ContactMode.FREE]),
            max_events=16,
            throw=False,
        )
        x = jnp.concatenate(sol.x1)
        return x[0] + x[2], (x, sol.result, sol.events.count)

    program = jax.jit(jax.value_and_grad(final, has_aux=True))
    for speed, force in ((0.5, 2.0), (1.0, 0.3), (3.0, 2.0)):
        (_, (x, result, count)), gradient = program(jnp.array([speed, force]))
        assert result == hj.RESULTS.successful and count == 1
        np.testing.assert_allclose(x, [force / 2, 0, force, 0], atol=1e-12)
        np.testing.assert_allclose(gradient, [0, 1.5], atol=1e-12)


def test_twins_slip_together():
    # Two feet at one place, which have drifted below ground and are raised again: one
    # slips, as far as it can beside one that sticks, and that one leaves its cone. They
    # took turns, as the cone is larger without the drift.
    g, mu, rate = 9.81, 0.5, 5.0
    block = MechanicalSystem(
        lambda q, args: jnp.eye(2),
        lambda t, q, v, pull: jnp.stack([pull, -g]),
        lambda q, args: jnp.stack([q[1], q[1]]),
        2,
        tangents=lambda q, args: jnp.array([[1.0, 0.0], [1.0, 0.0]]),
        friction=mu,
        stabilization=rate,
    )
    x = jnp.array([0.0, -4e-5]), jnp.array([0.0, 3.6e-4])
    press = g - 2 * rate * x[1][1] - rate**2 * x[0][1]
    assert press < g
    slipping = int(ContactMode.SLIPPING_FORWARD), int(ContactMode.SLIPPING_BACKWARD)
    t = jnp.zeros(())
    jump = jax.jit(lambda pull, mode, event: block.jump(t, x, mode, event, pull)[1])
    for side, mode in zip((1, -1), slipping, strict=True):
        for first in (0, 1):
            before = jnp.full((2,), mode).at[first].set(int(ContactMode.STICKING))
            event = first + (4 if side > 0 else 2)
            for share in (0.25, 0.75, 1.25):
                after = jump(side * mu * (press + share * (g - press)), before, event)
                np.testing.assert_array_equal(after, mode)
