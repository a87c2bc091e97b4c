"""Bilateral constraints: alone, with events that change them, and with contacts."""

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import (
    consistent_state,
    ContactMode,
    decoupled,
    IndexOne,
    MechanicalSystem,
    Multibody,
    Penalty,
)
from scipy.integrate import solve_ivp

from ..helpers import both_jacobians, error, value_and_jacobian


def _control(tol):
    return dfx.PIDController(rtol=tol, atol=tol)


#
# The five-bar mechanism
#


def _five_bar_reference():
    """The nine impacts, by SciPy and the block system (34) in NumPy."""
    ends = np.array([[2.5, 0.75, 0.0], [0.75, 3.0, 0.75], [0.0, 0.75, 2.5]]) / 3
    M = np.kron(ends, np.eye(2))
    A, B = np.array([-0.5, 0.0]), np.array([0.5, 0.0])
    weight = 9.81 * np.array([0, 1.25, 0, 1.5, 0, 1.25])

    def jacobian(q):
        p = np.vstack([A, q.reshape(3, 2), B])
        d = 2 * (p[1:] - p[:-1])
        G = np.zeros((4, 10))
        for i in range(4):
            G[i, 2 * i : 2 * i + 4] = [*-d[i], *d[i]]
        return G[:, 2:8]

    def rates(t, x):
        q, v = x[:6], x[6:]
        F = -weight
        for i, length in enumerate(np.sqrt([5, 4.25])):
            r = q[2 * i : 2 * i + 2] - B
            distance = np.linalg.norm(r)
            pull = np.zeros(6)
            pull[2 * i : 2 * i + 2] = -100 * (distance - length) / distance * r
            F = F + pull
        G = jacobian(q)
        block = np.block([[M, G.T], [G, np.zeros((4, 4))]])
        right = np.append(F, -jacobian_rate(v) @ v)
        return np.append(v, np.linalg.solve(block, right)[:6])

    def jacobian_rate(v):
        # The Jacobian is affine in q.
        return jacobian(v) - jacobian(np.zeros(6))

    lands = lambda t, x: x[3] + 2.35
    lands.terminal, lands.direction = True, -1
    t, x, times = 0.0, np.array([-1.5, -1, 0, -2, 1.5, -1] + 6 * [0.0]), []
    while t < 5:
        leg = solve_ivp(
            rates, (t, 5.0), x, "DOP853", events=lands, rtol=1e-12, atol=1e-12
        )
        t, x = leg.t[-1], leg.y[:, -1]
        if leg.status == 1:
            times.append(t)
            G, dof, dep = jacobian(x[:6]), [2, 3], [0, 1, 4, 5]
            x[9] *= -1
            v_dep = np.linalg.solve(G[:, dep], -G[:, dof] @ x[[8, 9]])
            x[[6, 7, 10, 11]] = v_dep
    return np.array(times), x


@pytest.mark.parametrize(
    "formulation, bounds",
    [
        (IndexOne(), (1e-9, 1e-9)),
        pytest.param(Penalty(1e5), (1e-6, 1e-5), marks=pytest.mark.thorough),
    ],
)
def test_five_bar(formulation, bounds):
    system = models.five_bar(formulation=formulation)
    sol = hj.simulate(
        system,
        0.0,
        5.0,
        models.five_bar_start(),
        "moving",
        solver=dfx.Dopri8(),
        stepsize_controller=_control(1e-11),
        saveat=dfx.SaveAt(ts=jnp.linspace(0, 5, 1001)),
    )
    assert sol.events.count == 9
    body = system.vector_fields[0]
    residuals = jax.vmap(body.residuals)(sol.ts, sol.xs)
    for residual, bound in zip(residuals, bounds, strict=True):
        assert jnp.max(jnp.abs(residual)) < bound
    # Where they are located, the ground is there.
    heights = sol.events.x_before[0][:9, 3]
    assert jnp.max(jnp.abs(heights + 2.35)) < 1e-9
    times, final = _five_bar_reference()
    assert len(times) == 9
    exact = isinstance(formulation, IndexOne)
    # The penalty formulation is another system: it is off by what it violates.
    close = 1e-9 if exact else 1e-6
    np.testing.assert_allclose(sol.events.t[:9], times, rtol=0, atol=close)
    np.testing.assert_allclose(np.concatenate(sol.x1), final, atol=50 * close)


#
# Events that change the constraints
#


def _swing(length):
    feet = -length * jnp.array([np.cos(0.3), np.sin(0.3)])
    return jnp.append(jnp.zeros(2), feet), jnp.zeros(4)


def test_constraints_that_change():
    # Feet that reach the rail stay there. From flight, one constraint becomes two; the
    # hands on the bar are two more, and are freed in the instant in which the feet are
    # caught: three become two.
    def outcome(z):
        length, more, rail, release = z
        # By the mass alone nothing changes but rounding, which takes the tangent of it
        # many small steps: with the mass, the length changes.
        length, mass = length + more, 2.0 + more
        system = models.acrobat(length, mass, rail, release=release)
        sol = hj.simulate(
            system,
            0.0,
            1.5,
            _swing(length),
            "swinging",
            stepsize_controller=_control(1e-12),
            max_events=3,
            throw=False,
        )
        log = sol.events
        k = log.count - 1
        sliding = system.vector_fields[2]
        before, after = (
            jtu.tree_map(lambda a: a[k], x) for x in (log.x_before, log.x_after)
        )
        impulse = sliding.impulse(log.t[k], before)
        # The new constraints, on the state right after the event, and at the end.
        residuals = [
            *sliding.residuals(log.t[k], after),
            *sliding.residuals(sol.t1, sol.x1),
        ]
        return jnp.concatenate(residuals), (log, before, after, impulse)

    # Forward only, which takes half as long to compile: backward is as elsewhere.
    run = jax.jit(lambda z, e: jax.jvp(outcome, (z,), (e,), has_aux=True))
    for rail, release, events in [(-1.6, 0.6, [0, 1]), (-0.8, 0.6, [2])]:
        z = jnp.array([1.0, 0.0, rail, release])
        columns = [run(z, e) for e in np.eye(4)]
        value, _, (log, before, after, impulse) = columns[0]
        forward = jnp.stack([column for _, column, _ in columns], axis=-1)
        np.testing.assert_array_equal(log.event[: log.count], events)
        # (53), (58b), (60b): the state and its sensitivities satisfy them.
        assert jnp.max(jnp.abs(value)) < 1e-10
        assert jnp.max(jnp.abs(forward[:4])) < 1e-10
        assert jnp.max(jnp.abs(forward)) < 1e-9
        # (54): the momentum changes by the impulse along the constraints.
        q, v = before
        M = 2.0 * np.kron([[2, 1], [1, 2]], np.eye(2)) / 6
        rod = 2 * np.append(q[:2] - q[2:], q[2:] - q[:2])
        G = np.stack([rod, [0, 0, -0.3 * q[2], 1]])
        np.testing.assert_allclose(M @ (after[1] - v), -G.T @ impulse, atol=1e-9)
        np.testing.assert_array_equal(after[0], q)
        assert after[1] @ M @ after[1] < v @ M @ v - 1
        assert jnp.max(jnp.abs(impulse)) > 0.1


@pytest.mark.thorough
def test_a_hand_that_is_pinned_where_it_gets():
    # A rod swings on one hand. Where the other hand comes up to a rail it is pinned,
    # and the first one is freed: the angular momentum about the hand that is pinned
    # stays, so that the rate is halved, and reversed. The place is a part of the state.
    height = -0.3

    def of_points(z):
        length, angle, rate = z
        M = np.kron([[2.0, 1.0], [1.0, 2.0]], np.eye(2)) / 6

        def hanging(hand):
            return Multibody(
                lambda q, args: jnp.asarray(M),
                lambda t, q, v, args: -9.81 / 2 * jnp.array([0.0, 1.0, 0.0, 1.0]),
                lambda t, q, place: jnp.append(
                    q[2 * hand : 2 * hand + 2] - place,
                    jnp.sum((q[2:] - q[:2]) ** 2) - length**2,
                ),
            )

        def field(body):
            return lambda t, x, args: (*body(t, x[:2], x[2]), jnp.zeros(2))

        first, second = hanging(0), hanging(1)

        def catch(t, x, args):
            place = x[0][2:]
            return *second.plastic_impact(t, x[:2], place), place

        reach = hj.Transition("1", "2", lambda t, x, args: height - x[0][3], catch)
        system = hj.HybridAutomaton({"1": field(first), "2": field(second)}, [reach])
        away = length * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        turning = rate * jnp.stack([-away[1], away[0]])
        zero = jnp.zeros(2)
        x0 = jnp.append(zero, away), jnp.append(zero, turning), zero
        sol = hj.simulate(
            system, 0.0, 1.2, x0, "1", stepsize_controller=_control(1e-10), max_events=2
        )
        return jnp.concatenate([*sol.x1, sol.events.t[:1]]), sol.events.count

    def of_angle(z):
        length, angle, rate = z
        field = lambda t, x, args: jnp.stack([x[1], -14.715 / length * jnp.cos(x[0])])
        catch = lambda t, x, args: jnp.stack([x[0] + jnp.pi, -x[1] / 2])
        reach = lambda t, x, args: height - length * jnp.sin(x[0])
        sol = hj.simulate(
            hj.HybridAutomaton(
                {"1": field, "2": field}, [hj.Transition("1", "2", reach, catch)]
            ),
            0.0,
            1.2,
            jnp.stack([angle, rate]),
            "1",
            stepsize_controller=_control(1e-10),
            max_events=2,
        )
        direction = lambda a: length * jnp.stack([jnp.cos(a), jnp.sin(a)])
        turned = lambda a: length * jnp.stack([-jnp.sin(a), jnp.cos(a)])
        place = direction(sol.events.x_before[0, 0])
        angle, rate = sol.x1
        x1 = [place + direction(angle), place, rate * turned(angle), jnp.zeros(2)]
        return jnp.concatenate([*x1, place, sol.events.t[:1]])

    jacobians, exact = both_jacobians(of_points), value_and_jacobian(of_angle)
    for z in [[1.0, -2.5, 3.5], [0.8, -2.4, 4.0], [1.2, -2.6, 3.0]]:
        value, forward, reverse, count = jacobians(jnp.array(z))
        assert count == 1
        expected, jacobian = exact(jnp.array(z))
        assert error(value, expected) < 1e-8
        assert error(forward, jacobian) < 1e-7
        assert error(reverse, jacobian) < 1e-7


@pytest.mark.thorough
def test_only_accelerations_change():
    # Where the hands let go, the state stays, and its sensitivities change by (28). The
    # force on the bar ends; the force along the rod does not end, it jumps.
    system = models.acrobat()

    @jax.jit
    def run(length):
        sol = hj.simulate(
            models.acrobat(length), 0.0, 0.7, _swing(length), "swinging", max_events=2
        )
        return sol.events, sol.result

    log, _ = run(1.0)
    assert log.count == 1
    for a, b in zip(log.x_before, log.x_after, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    x = jtu.tree_map(lambda a: a[0], log.x_after)
    swinging, flying, _ = system.vector_fields
    held, free = swinging.multipliers(0.0, x), flying.multipliers(0.0, x)
    assert held.shape == (3,) and free.shape == (1,)
    # M times the accelerations of the ends of a free rod, which turn about its centre,
    # is that along the rod: 2 lam L = m w² L / 12.
    q, v = x
    w = (v[3] * q[2] - v[2] * q[3]) / (q[2:] @ q[2:])
    np.testing.assert_allclose(free, 2.0 * w**2 / 24, rtol=1e-7)
    assert abs(held[0] - free[0]) > 0.1


#
# Multipliers
#


def _pendulum(length, mass=1.3, formulation=None, copies=1, pivot=None):
    """A mass on a stick, in Cartesian coordinates; its pivot may move."""
    pivot = (lambda t: jnp.zeros(2)) if pivot is None else pivot
    return Multibody(
        lambda q, args: mass * jnp.ones(2),
        lambda t, q, v, args: jnp.array([0.0, -9.81 * mass]),
        lambda t, q, args: jnp.repeat(jnp.sum((q - pivot(t)) ** 2) - length**2, copies),
        IndexOne() if formulation is None else formulation,
    )


def _at_angle(length, angle, rate):
    away = jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
    return length * away, length * rate * jnp.stack([-away[1], away[0]])


@jax.jit
def _swung(length, angle, rate, t1, drive=0.0):
    """The same in the angle: that of the end, and its rate."""
    field = lambda t, y, _: jnp.stack(
        [y[1], -(9.81 + drive * jnp.sin(3 * t)) / length * jnp.sin(y[0])]
    )
    return dfx.diffeqsolve(
        dfx.ODETerm(field),  # pyright: ignore
        dfx.Dopri8(),
        0.0,
        t1,
        None,
        jnp.stack([angle, rate]),
        stepsize_controller=_control(1e-12),
        adjoint=dfx.ForwardMode(),
    ).ys[-1]  # pyright: ignore


@value_and_jacobian
def _swung_and_pulled(z):
    """Its end, the velocity of that, and the sum of the multipliers, at time 2."""
    length, angle, rate, start = z
    angle, rate = _swung(length, angle, rate * start / length, 2.0)
    pull = 1.3 * (9.81 * jnp.cos(angle) + length * rate**2)
    total = pull / (2 * length)
    return jnp.concatenate([*_at_angle(length, angle, rate), total[None]])


@pytest.mark.parametrize(
    "copies, solver, tol, bound",
    [
        (1, dfx.Tsit5(), 1e-11, 1e-7),
        (2, dfx.Tsit5(), 1e-11, 1e-7),
        pytest.param(1, dfx.Kvaerno5(), 1e-8, 1e-5, marks=pytest.mark.thorough),
    ],
)
def test_multipliers(copies, solver, tol, bound):
    # Beside those of a pendulum: m (g cos(angle) + length rate²) is the force of the
    # stick. Two equal constraints are redundant, and share it.
    # Where the stick is longer than the start says, by a little, it starts at the state
    # nearby that has its length.
    def outcome(z):
        length, angle, rate, start = z
        body = _pendulum(length, copies=copies)
        x0 = _at_angle(start, angle, rate)
        sol = hj.simulate(
            body, 0.0, 2.0, x0, solver=solver, stepsize_controller=_control(tol)
        )
        multipliers = body.multipliers(sol.t1, sol.x1)
        total = jnp.sum(multipliers)[None]
        return jnp.concatenate([*sol.x1, total]), multipliers

    jacobians = both_jacobians(outcome)
    for z in [[1.0, 0.8, 0.0], [0.6, -2.0, 3.0], [1.4, 0.1, -1.0]]:
        z = jnp.array([*z, z[0]])
        value, forward, reverse, multipliers = jacobians(z)
        expected, jacobian = _swung_and_pulled(z)
        assert error(value, expected) < bound / 10
        np.testing.assert_allclose(multipliers, expected[-1] / copies, rtol=bound)
        assert error(forward, jacobian) < bound
        assert error(reverse, jacobian) < bound


def test_constraints_that_move():
    # The pivot goes up and down, which only changes gravity: its acceleration is
    # 0.5 sin(3 t). The penalty formulation follows it to what it violates.
    pivot = lambda t: jnp.stack([jnp.zeros(()), (t - jnp.sin(3 * t) / 3) / 6])
    moving = lambda t: jnp.stack([jnp.zeros(()), (1 - jnp.cos(3 * t)) / 6])

    def outcome(formulation, t1):
        body = _pendulum(0.9, formulation=formulation, pivot=pivot)
        sol = hj.simulate(body, 0.0, t1, _at_angle(0.9, 0.7, 0.5))
        q, v = sol.x1
        return q - pivot(t1), v - moving(t1), body.residuals(t1, sol.x1)

    for formulation, close in [(IndexOne(), 1e-7), (Penalty(1e6), 1e-5)]:
        compiled = jax.jit(lambda t1, f=formulation: outcome(f, t1))
        for t1 in [0.7, 2.0]:
            q, v, residuals = compiled(t1)
            angle, rate = _swung(0.9, 0.7, 0.5, t1, drive=0.5)
            expected = _at_angle(0.9, angle, rate)
            assert error(jnp.append(q, v), jnp.concatenate(expected)) < close
            assert jnp.max(jnp.abs(jnp.concatenate(residuals))) < close


#
# With contacts
#


def _rod_of_points(z, formulation=None):
    """`models.rod` in the coordinates of its ends: friction, and one constraint."""
    length, friction = z[0], z[1]
    M = np.kron([[2.0, 1.0], [1.0, 2.0]], np.eye(2)) / 6
    rows = jnp.array([[1.0, 0, 0, 0], [0, 0, 1.0, 0]])
    return MechanicalSystem(
        lambda q, args: jnp.asarray(M),
        lambda t, q, v, args: -9.81 / 2 * jnp.array([0.0, 1.0, 0.0, 1.0]),
        lambda q, args: q[1::2],
        2,
        tangents=lambda q, args: rows,
        friction=friction,
        constraints=lambda t, q, args: jnp.sum((q[2:] - q[:2]) ** 2)[None] - length**2,
        formulation=formulation,
    )


def _thrown(z):
    """Centre of mass, angle, and their rates."""
    return jnp.stack([0 * z[2], 0.5 + 0 * z[2], z[2]]), jnp.stack(
        [0.3 + z[3], 0 * z[3], 0.4 + 0 * z[3]]
    )


def _ends(x, length):
    (cx, cz, angle), (vx, vz, w) = x
    away = length / 2 * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    turned = w * jnp.stack([-away[1], away[0]])
    c, v = jnp.stack([cx, cz]), jnp.stack([vx, vz])
    return jnp.append(c - away, c + away), jnp.append(v - turned, v + turned)


@pytest.mark.thorough
def test_contacts_and_constraints():
    # A rod falls on its left end, which slides, or sticks and then slips; then it lands
    # flat, and stays. Its coordinates are those of its ends, bound by a constraint, or
    # of its centre and its angle.
    def of_points(z):
        system = _rod_of_points(z)
        x0 = _ends(_thrown(z), z[0])
        sol = hj.simulate(system, 0.0, 0.7, x0, stepsize_controller=_control(1e-10))
        force = system.multipliers(sol.t1, sol.x1, sol.mode1)
        log = sol.events
        before = jtu.tree_map(lambda a: a[1], log.x_before)
        outcome = jnp.concatenate([*before, *sol.x1, log.t[:2]])
        return outcome, (log.count, log.mode_after, force, sol.x1)

    def of_angle(z):
        system = models.rod(half_length=z[0] / 2, friction=z[1])
        x0 = _thrown(z)
        sol = hj.simulate(system, 0.0, 0.7, x0, stepsize_controller=_control(1e-10))
        log = sol.events
        before = _ends(jtu.tree_map(lambda a: a[1], log.x_before), z[0])
        outcome = jnp.concatenate([*before, *_ends(sol.x1, z[0]), log.t[:2]])
        return outcome, log.count, log.mode_after

    both, other = both_jacobians(of_points), jax.jit(of_angle)
    for z in [[1.0, 0.3, 0.2, 0.5], [0.8, 0.5, 0.3, 1.0], [1.0, 0.3, -0.2, 0.5]]:
        z = jnp.array(z)
        value, forward, reverse, (count, modes, force, x1) = both(z)
        expected, other_count, other_modes = other(z)
        h = 1e-4 * jnp.eye(4)
        jacobian = [(other(z + d)[0] - other(z - d)[0]) / 2e-4 for d in h]
        jacobian = jnp.stack(jacobian, axis=1)
        assert count == other_count == 2
        np.testing.assert_array_equal(modes, other_modes)
        assert error(value, expected) < 1e-7
        assert error(forward, jacobian) < 1e-6
        assert error(reverse, jacobian) < 1e-6
        assert force.shape == (1,) and jnp.all(jnp.isfinite(force))
        assert abs(jnp.sum((x1[0][2:] - x1[0][:2]) ** 2) - z[0] ** 2) < 1e-9


@pytest.mark.thorough
def test_multipliers_in_contact():
    # A rod leans on the ground with a stuck foot and falls over: m a = sum of forces.
    system = _rod_of_points(jnp.array([1.0, 0.8]))
    q = jnp.array([0.0, 0.0, np.sin(0.2), np.cos(0.2)])
    x, mode = system.start(jnp.asarray(0.0), (q, jnp.zeros(4)), None, None)
    np.testing.assert_array_equal(mode, [ContactMode.STICKING, ContactMode.FREE])
    _, acceleration = system.flow(jnp.asarray(0.0), x, mode, None)
    normal, tangential = system.contact_forces(0.0, x, mode)
    (multiplier,) = system.multipliers(0.0, x, mode)
    M = np.kron([[2.0, 1.0], [1.0, 2.0]], np.eye(2)) / 6
    contact = np.array([tangential[0], normal[0], tangential[1], normal[1]])
    along = 2 * np.append(q[:2] - q[2:], q[2:] - q[:2])
    weight = -9.81 / 2 * np.array([0, 1, 0, 1])
    np.testing.assert_allclose(
        M @ acceleration, weight + contact - along * multiplier, atol=1e-12
    )
    # It turns about its foot: I w' = m g L / 2 sin(angle).
    turning = np.linalg.norm(acceleration[2:])
    np.testing.assert_allclose(turning, 1.5 * 9.81 * np.sin(0.2), rtol=1e-12)
    # A penalty that is large enough gives the same, and the same impact of the foot.
    stiff = _rod_of_points(jnp.array([1.0, 0.8]), Penalty(1e7))
    falling = (q, jnp.array([0.1, -1.0, 0.1, -1.0]))
    flight = jnp.zeros(2, jnp.int32)
    for fn in (
        lambda s: s.flow(jnp.asarray(0.0), x, mode, None)[1],
        lambda s: jnp.concatenate(s.contact_forces(0.0, x, mode)),
        lambda s: s.multipliers(0.0, x, mode),
        lambda s: s.jump(jnp.asarray(0.0), falling, flight, 0, None)[0][1],
    ):
        np.testing.assert_allclose(fn(stiff), fn(system), rtol=1e-6, atol=1e-6)
    # The nearest consistent state of a system with contacts is that of its constraints.
    nearest, _ = consistent_state(system, 0.0, (1.1 * q, jnp.zeros(4)))
    np.testing.assert_allclose(jnp.linalg.norm(nearest[2:] - nearest[:2]), 1.0)


#
# Consistent states
#


def test_consistent_state():
    def project(z):
        length, guess = z[0], (z[1:3], z[3:5])
        q, v = consistent_state(_pendulum(length), 0.0, guess)
        return jnp.append(q, v)

    def nearest(z):
        length, q, v = z[0], z[1:3], z[3:5]
        away = q / jnp.linalg.norm(q)
        return jnp.append(length * away, v - (v @ away) * away)

    # Where the constraint moves, so does what satisfies it.
    moving = _pendulum(1.0, pivot=lambda t: jnp.stack([2 * t, 0 * t]))
    q, v = consistent_state(moving, 1.0, (jnp.array([4.0, 0.0]), jnp.zeros(2)))
    np.testing.assert_allclose(jnp.append(q, v), [3.0, 0.0, 2.0, 0.0], atol=1e-12)

    compiled = jax.jit(lambda z: (project(z), jax.jacfwd(project)(z)))
    reverse = jax.jit(jax.jacrev(project))
    for z in [[1.0, 0.3, -0.4, 1.0, 2.0], [2.0, 3.0, 3.0, -1.0, 0.5]]:
        z = jnp.array(z)
        value, jacobian = compiled(z)
        assert error(value, nearest(z)) < 1e-10
        assert error(jacobian, jax.jacfwd(nearest)(z)) < 1e-9
        assert error(reverse(z), jacobian) < 1e-10


def test_consistent_state_of_a_mechanism():
    body = models.five_bar().vector_fields[0]
    assert isinstance(body, Multibody)
    guess = tuple(
        a + 0.1 * np.random.default_rng(0).standard_normal(6)
        for a in models.five_bar_start()
    )
    x = consistent_state(body, 0.0, guess)
    constraints = lambda q: body.residuals(0.0, (q, 0 * q))[0]
    residuals, M, G = jax.jit(
        lambda q, v: (
            body.residuals(0.0, (q, v)),
            body.mass_matrix(q, None),
            jax.jacfwd(constraints)(q),
        )
    )(*x)
    for residual in residuals:
        assert np.max(np.abs(residual)) < 1e-13
    # It is nearest in the metric of the mass matrix: what is left is along the forces
    # of the constraints.
    for a, b in zip(x, guess, strict=True):
        pull = M @ (a - b)
        _, rest, _, _ = np.linalg.lstsq(G.T, pull)
        assert rest < 1e-20
    # A lane that fails is NaN, and no other one is.
    twice = lambda gap: Multibody(
        lambda q, args: jnp.ones(2),
        lambda t, q, v, args: jnp.zeros(2),
        lambda t, q, args: jnp.stack([q @ q - 1, q @ q - 1 - gap]),
    )
    start = (jnp.array([0.5, 0.5]), jnp.array([0.5, -0.4]))
    one = lambda gap: consistent_state(twice(gap), 0.0, start, throw=False)
    q, v = jax.jit(jax.vmap(one))(jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(q[0], np.sqrt([0.5, 0.5]), rtol=1e-9)
    assert jnp.all(jnp.isnan(q[1])) and jnp.all(jnp.isnan(v[1]))
    with pytest.raises(hj.SimulationError, match="`x` may be too far away"):
        consistent_state(twice(0.5), 0.0, start)


def test_float32():
    x = jtu.tree_map(lambda a: a.astype(jnp.float32), _at_angle(1.0, 0.8, 0.0))
    guess = (x[0] + 0.1, x[1] + 0.1)
    body = _pendulum(jnp.asarray(1.0, jnp.float64))
    assert all(a.dtype == jnp.float32 for a in consistent_state(body, 0.0, guess))
    for formulation in (IndexOne(), Penalty(1e3)):
        body = eqx.tree_at(lambda b: b.formulation, body, formulation)
        sol = hj.simulate(body, 0.0, 1.0, x, stepsize_controller=_control(1e-5))
        assert all(a.dtype == jnp.float32 for a in sol.x1)
        angle, rate = _swung(1.0, 0.8, 0.0, 1.0)
        expected = jnp.concatenate(_at_angle(1.0, angle, rate))
        assert error(jnp.concatenate(sol.x1), expected) < 2e-3


#
# Errors
#


def test_errors():
    body = _pendulum(1.0)
    run = lambda body, x: hj.simulate(body, 0.0, 1.0, x)
    x = _at_angle(1.0, 0.8, 0.0)
    automaton = hj.HybridAutomaton({"only": body}, [])
    for match, call in [
        (
            "`x0` violates constraint 0: its configuration",
            lambda: run(body, (1.1 * x[0], x[1])),
        ),
        ("`x0` violates constraint 0: its velocity", lambda: run(body, (x[0], x[0]))),
        ("must be a pair", lambda: run(body, x[0])),
        (
            "`x0` violates constraint 0",
            lambda: hj.simulate(automaton, 0.0, 1.0, (1.1 * x[0], x[1]), "only"),
        ),
        (
            "`penalty` must",
            lambda: run(_pendulum(1.0, formulation=Penalty([1.0, 2.0])), x),
        ),
        ("`mass_matrix` .*positive definite", lambda: run(_pendulum(1.0, mass=0.0), x)),
        (
            "`constraints` must return a vector",
            lambda: run(
                Multibody(body.mass_matrix, body.effort, lambda t, q, args: q @ q), x
            ),
        ),
        (
            "`system` must be a mechanical system with constraints",
            lambda: consistent_state(models.rod(), 0.0, x),
        ),
        (
            "`independent` must name 1 different",
            lambda: body.complete_velocity(0.0, x[0], (0, 1), jnp.zeros(2)),
        ),
        (
            "`velocity` must have shape",
            lambda: body.complete_velocity(0.0, x[0], (0,), jnp.zeros(2)),
        ),
        ("`natural_lengths`", lambda: models.five_bar(jnp.ones(3))),
        (
            "must have no bilateral constraints",
            lambda: decoupled(_rod_of_points(jnp.ones(2)), jnp.zeros(4)),
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    # Where it is traced, the lane fails, and no other one does.
    lanes = jax.jit(
        jax.vmap(lambda s: hj.simulate(body, 0.0, 1.0, (s * x[0], x[1]), throw=False))
    )
    sol = lanes(jnp.array([1.0, 1.1]))
    fails = sol.result == hj.RESULTS.nonfinite_state
    np.testing.assert_array_equal(fails, [False, True])
    np.testing.assert_allclose(
        jnp.concatenate([a[0] for a in sol.x1]),
        jnp.concatenate(_at_angle(1.0, *_swung(1.0, 0.8, 0.0, 1.0))),
        atol=1e-6,
    )
