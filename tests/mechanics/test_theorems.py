"""Theorems 1 to 8 of Corner, Sandu and Sandu, each written from the paper's formula.

The sensitivities of `simulate` are compared with the canonical sensitivity equations of
the paper, (14) and (38), integrated by diffrax from event to event, and with the jumps
that its theorems give in between. Nothing of the library is in the reference but the
times at which events happen, and these are compared too.
"""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import IndexOne, Penalty

from ..helpers import both_jacobians, error


_controller = dfx.PIDController(rtol=1e-10, atol=1e-10)


def _integrate(field, t0, t1, y0):
    """The sensitivity equations, on their own."""
    return dfx.diffeqsolve(
        dfx.ODETerm(lambda t, y, _: field(t, y)),  # pyright: ignore
        dfx.Dopri8(scan_kind="lax"),
        t0,
        t1,
        None,
        y0,
        stepsize_controller=dfx.PIDController(rtol=1e-12, atol=1e-12),
        adjoint=dfx.DirectAdjoint(),
    ).ys


def _last(tree):
    return jax.tree.map(lambda a: a[-1], tree)


#
# Theorems 1 to 5: ordinary differential equations
#


def _acceleration(t, q, v, rho, after):
    """(2), with a mass matrix that is not constant; more forces after the event."""
    M = jnp.array([[2 + jnp.sin(rho[0] * q[0]), 0.3], [0.3, 1 + 0.1 * rho[1] ** 2]])
    F = jnp.stack([-rho[0] * q[0] + 0.3 * jnp.sin(t), -9.81 + rho[1] * q[0] * v[0]])
    F = F + after * jnp.stack([rho[1] * v[1], 4 * rho[2]])
    return jnp.linalg.solve(M, F)


def _event(q):
    return q[1] - 0.2 * jnp.sin(3 * q[0])


def _kick(t, q, v, rho):
    """(19): off a slope that depends on the position, with a restitution that changes
    in time, and some spin."""
    normal = jax.grad(_event)(q)
    e = rho[2] * (1 + 0.2 * jnp.sin(5 * t))
    return v - (1 + e) * (normal @ v) / (normal @ normal) * normal + 0.1 * v[::-1] * q


def _running(t, q, v, a, rho):
    return rho[0] * q[0] ** 2 + v[1] ** 2 + 0.1 * a[1] ** 2 + jnp.sin(t) * rho[2]


def _terminal(t, q, v, rho):
    return rho[1] * q[0] * v[1] + t * q[1]


def _begin(rho):
    return jnp.stack([0.1, 0.8 + 0.1 * rho[0]]), jnp.stack([rho[1], -0.5])


def _simulated(z):
    rho, kicked = z[:3], z[3]
    field = lambda after: (
        lambda t, x, args: (
            x[1],
            _acceleration(t, x[0], x[1], rho, after),
        )
    )
    jump = lambda t, x, args: (
        x[0],
        jnp.where(kicked > 0, _kick(t, x[0], x[1], rho), x[1]),
    )
    automaton = hj.HybridAutomaton(
        {"before": field(0.0), "after": field(1.0)},
        [hj.Transition("before", "after", lambda t, x, _: _event(x[0]), jump)],
    )
    system = hj.with_cost(
        automaton,
        lambda t, x, dx, mode, args: _running(t, x[0], x[1], dx[1], rho),
        lambda t, x, args: _terminal(t, x[0], x[1], rho),
    )
    sol = hj.simulate(
        system,
        0.0,
        1.0,
        (_begin(rho), 0.0),
        "before",
        stepsize_controller=_controller,
        max_steps=1024,
        max_events=2,
    )
    (q, v), cost = sol.x1
    psi = system.cost(sol.t1, sol.x1)
    outcome = jnp.concatenate([q, v, jnp.stack([cost, psi, sol.events.t[0]])])
    return outcome, sol.events.count


_with_an_event = both_jacobians(_simulated)


def _theorems(rho, kicked, t_event):
    """The same by (14) and Theorems 1 to 5."""

    def field(after):
        def rates(t, y):
            q, v, z, Q, V, Z = y
            f = lambda q, v, rho: _acceleration(t, q, v, rho, after)
            a = f(q, v, rho)
            fq, fv, fr = jax.jacfwd(f, (0, 1, 2))(q, v, rho)
            g = lambda q, v, a, rho: _running(t, q, v, a, rho)
            gq, gv, ga, gr = jax.jacfwd(g, (0, 1, 2, 3))(q, v, a, rho)
            dZ = (gq + ga @ fq) @ Q + (gv + ga @ fv) @ V + gr + ga @ fr
            return v, a, g(q, v, a, rho), V, fq @ Q + fv @ V + fr, dZ

        return rates

    q, v = _begin(rho)
    Q, V = jax.jacfwd(_begin)(rho)  # (11b)
    y = (q, v, jnp.zeros(()), Q, V, jnp.zeros(3))
    q, v, z, Q, V, Z = _last(_integrate(field(0.0), 0.0, t_event, y))
    dr = jax.grad(_event)(q)
    dt = -(dr @ Q) / (dr @ v)  # Theorem 1, (21)
    before = _acceleration(t_event, q, v, rho, 0.0)
    arguments = (t_event, q, v, rho)
    v_plus = jnp.where(kicked, _kick(*arguments), v)
    after = _acceleration(t_event, q, v_plus, rho, 1.0)
    ht, hq, hv, hr = jax.jacfwd(_kick, (0, 1, 2, 3))(*arguments)
    Q_plus = Q - jnp.outer(v_plus - v, dt)  # Theorem 2, (23)
    # Theorem 3, (26)
    V_kicked = hq @ Q + hv @ V + jnp.outer(hq @ v - after + hv @ before + ht, dt) + hr
    V_smooth = V - jnp.outer(after - before, dt)  # Theorem 4, (28)
    g_plus = _running(t_event, q, v_plus, after, rho)
    g_minus = _running(t_event, q, v, before, rho)
    Z_plus = Z - (g_plus - g_minus) * dt  # Theorem 5, (29)
    y = (q, v_plus, z, Q_plus, jnp.where(kicked, V_kicked, V_smooth), Z_plus)
    q, v, z, Q, V, Z = _last(_integrate(field(1.0), t_event, 1.0, y))
    w, (wq, wv, wr) = jax.value_and_grad(_terminal, (1, 2, 3))(1.0, q, v, rho)
    psi = Z + wq @ Q + wv @ V + wr  # Remark 4
    value = jnp.concatenate([q, v, jnp.stack([z, z + w])])
    jump = jnp.abs(g_plus - g_minus), jnp.max(jnp.abs(after - before))
    return value, jnp.concatenate([Q, V, jnp.stack([Z, psi, dt])]), jump


_reference = jax.jit(_theorems)


@pytest.mark.parametrize("kicked", [True, False])
def test_theorems_1_to_5(kicked):
    times = []
    for rho in [[1.0, 0.5, 0.7], [2.5, -0.4, 0.3], [0.3, 1.5, 0.9]]:
        z = jnp.array([*rho, float(kicked)])
        value, forward, reverse, count = _with_an_event(z)
        assert count == 1
        expected, jacobian, (cost_jump, jump) = _reference(z[:3], kicked, value[-1])
        # Or there would be nothing to see.
        assert cost_jump > 0.1 and jump > 0.1
        assert error(value[:-1], expected) < 1e-8
        assert error(forward[:, :3], jacobian) < 1e-7
        assert error(reverse[:, :3], jacobian) < 1e-7
        times.append(value[-1])
    assert np.ptp(times) > 0.05


#
# Theorems 6 to 8: constraints that change
#


_RAIL, _CURVATURE, _RELEASE = -1.6, 0.3, 0.6


def _hanging(rho):
    """The acrobat's start: hands at the bar, feet behind."""
    away = jnp.array([-np.cos(0.3), -np.sin(0.3)])
    turning = 0.7 * jnp.stack([-away[1], away[0]])
    zero = jnp.zeros(2)
    return jnp.append(zero, rho[0] * away), jnp.append(zero, rho[0] * turning)


def _constraints(phase):
    def phi(q, rho):
        length = (q[2] - q[0]) ** 2 + (q[3] - q[1]) ** 2 - rho[0] ** 2
        rail = q[3] - _RAIL - _CURVATURE * q[2] ** 2 / 2
        return jnp.stack(
            {
                "swinging": [length, q[0], q[1]],
                "flying": [length],
                "sliding": [length, rail],
            }[phase]
        )

    return phi


def _terms(phase, q, v, rho):
    """M, F, the Jacobian of the constraints and C of (31c)."""
    m = rho[1] / 6
    M = m * jnp.kron(jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.eye(2))
    F = -rho[1] * rho[2] / 2 * jnp.array([0.0, 1.0, 0.0, 1.0])
    jacobian = jax.jacfwd(_constraints(phase))
    C = -jax.jvp(lambda q: jacobian(q, rho) @ v, (q,), (v,))[1]
    return M, F, jacobian(q, rho), C


def _dae(phase, q, v, rho):
    """(35): accelerations and multipliers."""
    M, F, G, C = _terms(phase, q, v, rho)
    m = len(C)
    block = jnp.block([[M, G.T], [G, jnp.zeros((m, m))]])
    solved = jnp.linalg.solve(block, jnp.append(F, C))
    return solved[:4], solved[4:]


def _penalised(phase, q, v, rho, penalty, ratio, frequency):
    """(40)"""
    M, F, G, C = _terms(phase, q, v, rho)
    errors = 2 * ratio * frequency * (G @ v)
    errors = errors + frequency**2 * _constraints(phase)(q, rho)
    extended = F - penalty * G.T @ (-C + errors)
    a = jnp.linalg.solve(M + penalty * G.T @ G, extended)
    return a, penalty * (G @ a - C + errors)  # (40d)


def _along(acceleration):
    """The sensitivity equations (38), without costs."""

    def rates(t, y):
        q, v, Q, V, rho = y
        a = acceleration(q, v, rho)
        fq, fv, fr = jax.jacfwd(acceleration, (0, 1, 2))(q, v, rho)
        return v, a, V, fq @ Q + fv @ V + fr, jnp.zeros_like(rho)

    return rates


def _let_go(accelerations, t_event, y):
    """Theorem 8, (64). All velocities are independent variables of (40)."""
    q, v, Q, V, rho = y
    dt = -Q[2] / v[2]  # (21), of r = release - x2
    before, after = (a(q, v, rho) for a in accelerations)
    return (q, v, Q, V + jnp.outer(before - after, dt), rho), dt


def _land(y):
    """Theorems 6 and 7, with the plastic impact (54) as the jump function."""
    q, v, Q, V, rho = y
    dof_before, dep_before = np.array([0, 2, 3]), np.array([1])
    dof, dep = np.array([0, 2]), np.array([1, 3])
    flying, sliding = _constraints("flying"), _constraints("sliding")
    rail = lambda q: sliding(q, rho)[1]
    dr = jax.grad(rail)(q)
    dt = -(dr @ Q) / (dr @ v)

    def complete(phi, q, v_dof, dof, dep, rho):  # (53)
        G = jax.jacfwd(phi)(q, rho)
        v_dep = jnp.linalg.solve(G[:, dep], -G[:, dof] @ v_dof)
        return jnp.zeros(4).at[dof].set(v_dof).at[dep].set(v_dep)

    def h(q, v_dof, rho):  # (54b)
        v = complete(flying, q, v_dof, dof_before, dep_before, rho)
        M, _, _, _ = _terms("flying", q, v, rho)
        G = jax.jacfwd(sliding)(q, rho)
        block = jnp.block([[M, G.T], [G, jnp.zeros((2, 2))]])
        return jnp.linalg.solve(block, jnp.append(M @ v, jnp.zeros(2)))[dof]

    v_plus = complete(sliding, q, h(q, v[dof_before], rho), dof, dep, rho)
    before, _ = _dae("flying", q, v, rho)
    after, _ = _dae("sliding", q, v_plus, rho)
    G, phi_rho = jax.jacfwd(sliding, (0, 1))(q, rho)
    # Theorem 6: (58a), (58b).
    Q_dof = Q[dof] - jnp.outer(v_plus[dof] - v[dof], dt)
    Q_dep = -jnp.linalg.solve(G[:, dep], G[:, dof] @ Q_dof + phi_rho)
    Q_plus = jnp.zeros_like(Q).at[dof].set(Q_dof).at[dep].set(Q_dep)
    # Theorem 7: (60a), (60b).
    hq, hv, hr = jax.jacfwd(h, (0, 1, 2))(q, v[dof_before], rho)
    change = hq @ v - after[dof] + hv @ before[dof_before]
    V_dof = hq @ Q + hv @ V[dof_before] + jnp.outer(change, dt) + hr
    rate = lambda q, rho: jax.jacfwd(sliding)(q, rho) @ v_plus
    rate_q, rate_rho = jax.jacfwd(rate, (0, 1))(q, rho)
    rest = G[:, dof] @ V_dof + rate_q @ Q_plus + rate_rho
    V_dep = -jnp.linalg.solve(G[:, dep], rest)
    V_plus = jnp.zeros_like(V).at[dof].set(V_dof).at[dep].set(V_dep)
    return (q, v_plus, Q_plus, V_plus, rho), dt


def _acrobat(rho, formulation):
    return models.acrobat(
        rho[0], rho[1], _RAIL, _CURVATURE, _RELEASE, rho[2], formulation
    )


def _simulate(system, rho, t1):
    return hj.simulate(
        system,
        0.0,
        t1,
        _hanging(rho),
        "swinging",
        stepsize_controller=_controller,
        max_steps=1024,
        max_events=3,
    )


_PHASES = ("swinging", "flying", "sliding")


@jax.jit
def _by_theorems_6_to_8(rho, times, t1):
    accelerations = [
        lambda q, v, rho, phase=phase: _dae(phase, q, v, rho)[0] for phase in _PHASES
    ]
    swinging, flying, sliding = map(_along, accelerations)
    y = (*_hanging(rho), *jax.jacfwd(_hanging)(rho), rho)
    y = _last(_integrate(swinging, 0.0, times[0], y))
    y, dt0 = _let_go(accelerations[:2], times[0], y)
    y = _last(_integrate(flying, times[0], times[1], y))
    y, dt1 = _land(y)
    q, v, Q, V, _ = _last(_integrate(sliding, times[1], t1, y))
    multipliers = lambda q, v, rho: _dae("sliding", q, v, rho)[1]
    fq, fv, fr = jax.jacfwd(multipliers, (0, 1, 2))(q, v, rho)
    value = jnp.concatenate([q, v, multipliers(q, v, rho)])
    # (61): the multipliers after the event follow from the state after it.
    return value, jnp.concatenate([Q, V, fq @ Q + fv @ V + fr, jnp.stack([dt0, dt1])])


def _through_two_events(rho):
    acrobat = _acrobat(rho, IndexOne())
    sol = _simulate(acrobat, rho, 1.6)
    multipliers = acrobat.vector_fields[2].multipliers(sol.t1, sol.x1)  # pyright: ignore
    return jnp.concatenate([*sol.x1, multipliers, sol.events.t[:2]]), sol.events.count


@pytest.mark.thorough
def test_theorems_6_to_8():
    jacobians = both_jacobians(_through_two_events)
    times = []
    for rho in [[1.0, 2.0, 9.81], [1.15, 1.0, 8.0], [0.9, 3.0, 11.0]]:
        rho = jnp.array(rho)
        value, forward, reverse, count = jacobians(rho)
        assert count == 2
        expected, jacobian = _by_theorems_6_to_8(rho, value[-2:], 1.6)
        assert error(value[:-2], expected) < 1e-7
        assert error(forward, jacobian) < 1e-6
        assert error(reverse, jacobian) < 1e-6
        times.append(value[-2:])
    assert np.all(np.ptp(np.stack(times), axis=0) > 0.05)


@pytest.mark.thorough
def test_theorem_8_penalty():
    constants = (2e4, 0.8, 12.0)

    def outcome(rho):
        acrobat = _acrobat(rho, Penalty(*constants))
        swinging, flying, _ = acrobat.vector_fields
        lets_go = hj.HybridAutomaton(
            {"swinging": swinging, "flying": flying}, acrobat.transitions[:1]
        )
        sol = _simulate(lets_go, rho, 1.0)
        return jnp.append(jnp.concatenate(sol.x1), sol.events.t[0]), sol.events.count

    @jax.jit
    def reference(rho, t_event):
        accelerations = [
            lambda q, v, rho, phase=phase: _penalised(phase, q, v, rho, *constants)[0]
            for phase in _PHASES[:2]
        ]
        swinging, flying = map(_along, accelerations)
        y = (*_hanging(rho), *jax.jacfwd(_hanging)(rho), rho)
        y = _last(_integrate(swinging, 0.0, t_event, y))
        y, dt = _let_go(accelerations, t_event, y)
        q, v, Q, V, _ = _last(_integrate(flying, t_event, 1.0, y))
        return jnp.append(q, v), jnp.concatenate([Q, V, dt[None]])

    jacobians = both_jacobians(outcome)
    for rho in [[1.0, 2.0, 9.81], [1.15, 1.0, 8.0], [0.9, 3.0, 11.0]]:
        value, forward, reverse, count = jacobians(jnp.array(rho))
        assert count == 1
        expected, jacobian = reference(jnp.array(rho), value[-1])
        assert error(value[:-1], expected) < 1e-7
        assert error(forward, jacobian) < 1e-6
        assert error(reverse, jacobian) < 1e-6
