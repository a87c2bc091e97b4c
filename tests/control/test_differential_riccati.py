"""The Riccati differential equation across events, against SciPy and simulations."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import control
from hybridjax.models import PushedBall
from scipy.integrate import solve_ivp
from scipy.linalg import solve_continuous_are

from ..helpers import ball_outcome


_T, _E, _U = 2.0, 0.7, 1.3
_Q: Any = np.diag([1.0, 0.5])
_R: Any = np.array([[0.2]])
_END: Any = np.diag([3.0, 1.0])
_BALL = PushedBall(restitution=_E)


def _running(t, x, u):
    return 3 * x[1] + x[0] ** 2 + t * x[1] ** 2


def _final(t, x):
    return x[0] ** 2 + jnp.sin(x[1])


@pytest.fixture(scope="module")
def batch():
    """Balls that bounce once, twice and more; one without a cost of deviations but at
    the end, and no control that is worth it; and one that is far above the ground."""

    def run(x0, t1, Q, R):
        push = lambda t: jnp.full(1, _U)
        got = control.differential_riccati(
            _BALL, 0.0, t1, x0, 0, push, Q, R, _END,
            running=_running, final=_final, max_events=6, max_steps=64,
        )  # fmt: skip
        between = jax.vmap(lambda t: (got.evaluate(t), got.gain(t)))(jnp.array(_TIMES))
        return got, between

    x0s = jnp.array([[1.0, 0.0], [2.5, 0.4], [4.0, -1.0], [1.0, 0.3], [1e5, 0.0]])
    t1s = jnp.array([_T, _T, _T, _T, 30.0])
    Qs = jnp.array([_Q, _Q, _Q, 0 * _Q, _Q])
    Rs = jnp.array([_R, _R, _R, 1e15 * _R, _R])
    got = jax.jit(jax.vmap(run))(x0s, t1s, Qs, Rs)
    return np.asarray(x0s), jtu.tree_map(np.asarray, got)


_TIMES = [0.1, 0.9, 1.7]


def _reference(x0):
    """Pieces of the trajectory in closed form, the equation by SciPy."""
    a, (q, v), t, events = _U - 9.8, x0, 0.0, []
    while True:
        flight = (-v - np.sqrt(v**2 - 2 * a * q)) / a
        if t + flight > _T:
            break
        t, before = t + flight, v + a * flight
        q, v = 0.0, -_E * before
        # The velocity row: a difference of height at fixed time is one of the time.
        jump = a * (1 + _E) / before
        events.append((t, np.array([[-_E, 0], [jump, -_E]])))
    A, B = np.array([[0, 1], [0, 0]]), np.array([[0], [1.0]])

    def rates(t, y):
        P = y.reshape(2, 2)
        return -(A.T @ P + P @ A - P @ B @ np.linalg.solve(_R, B.T @ P) + _Q).ravel()

    P, end, found = _END.ravel(), _T, {}
    begins = [t for t, _ in events]
    for begin, Xi in [*events[::-1], (0.0, None)]:
        run = solve_ivp(
            rates, (end, begin), P, rtol=1e-11, atol=1e-12, dense_output=True
        )
        for t in _TIMES:
            if begin <= t < end:
                found[t] = run.sol(t).reshape(2, 2)
        P = run.y[:, -1]
        after = P.reshape(2, 2)
        if Xi is not None:
            P, end = (Xi.T @ after @ Xi).ravel(), begin
            found[begin] = after, P.reshape(2, 2)
    return begins, P.reshape(2, 2), found


def test_is_equation_of_scipy_across_events(batch):
    x0s, (got, (P, K)) = batch
    assert np.all(got.result == control.RESULTS.successful)
    counts = set()
    for i, x0 in enumerate(x0s[:3]):
        times, first, found = _reference(x0)
        counts.add(len(times))
        np.testing.assert_allclose(got.ts[i, 1 : len(times) + 1], times, rtol=1e-9)
        np.testing.assert_allclose(got.P_begin[i, 0], first, rtol=1e-6)
        for k, t in enumerate(times):
            after, before = found[t]
            np.testing.assert_allclose(got.P_begin[i, k + 1], after, rtol=1e-6)
            np.testing.assert_allclose(got.P_end[i, k], before, rtol=1e-6)
        for k, t in enumerate(_TIMES):
            np.testing.assert_allclose(P[i, k], found[t], rtol=1e-6)
            gain = np.linalg.solve(_R, found[t][1:])
            np.testing.assert_allclose(K[i, k], gain, rtol=1e-6)
    assert counts == {1, 2, 4}


def test_costate_is_gradient_of_simulated_cost(batch):
    # The running cost jumps at each bounce.
    x0s, (got, _) = batch

    def cost(x0):
        system = hj.with_cost(_BALL, lambda t, x, dx, mode, args: _running(t, x, args))
        sol = hj.simulate(
            system, 0.0, _T, (x0, 0.0), 0, jnp.full(1, _U), max_events=6, max_steps=64
        )
        return system.cost(sol.t1, sol.x1) + _final(_T, sol.x1[0])

    gradients = jax.jit(jax.vmap(jax.grad(cost)))(x0s[:4])
    np.testing.assert_allclose(got.costate_begin[:4, 0], gradients, rtol=1e-6)
    # It does not without the term of the event time: the limits differ by more.
    jumps = got.costate_end[:4, 0] - got.costate_begin[:4, 1]
    assert np.all(np.abs(jumps) > 0.1)


def test_without_control_is_second_derivative_of_cost(batch):
    # Of half the weighted square of how far the end is off where it is.
    x0s, (got, _) = batch
    count = got.solution.events.count[3]
    end = lambda x: ball_outcome(jnp.array([*x, 9.8 - _U, _E]), count, _T)[:2]
    target = end(x0s[3])
    cost = lambda x: (end(x) - target) @ jnp.asarray(_END) @ (end(x) - target) / 2
    hessian = jax.jit(jax.hessian(cost))(x0s[3])
    np.testing.assert_allclose(got.P_begin[3, 0], hessian, rtol=1e-7)


def test_long_horizon_without_events_is_algebraic(batch):
    _, (got, _) = batch
    A, B = np.array([[0, 1], [0, 0]]), np.array([[0], [1.0]])
    expected = solve_continuous_are(A, B, _Q, _R)
    np.testing.assert_allclose(got.P_begin[4, 0], expected, rtol=1e-6, atol=1e-8)


def test_errors():
    x0, push = jnp.array([1.0, 0.0]), lambda t: jnp.zeros(1)

    def run(push=push, Q=_Q, R=_R, end=_END):
        return control.differential_riccati(_BALL, 0.0, _T, x0, 0, push, Q, R, end)

    with pytest.raises(ValueError, match="`control` must be a function of time"):
        run(push=jnp.zeros(1))
    with pytest.raises(ValueError, match=r"`control` must return .* shape \(m,\)"):
        run(push=lambda t: 0.0 * t)
    with pytest.raises(ValueError, match=r"`Q` must have shape \(2, 2\)"):
        run(Q=_R)
    with pytest.raises(ValueError, match=r"`R` must have shape \(1, 1\)"):
        run(R=_Q)
    with pytest.raises(ValueError, match="`R` must be positive definite"):
        run(R=0 * _R)
    with pytest.raises(ValueError, match="`terminal` must have shape"):
        run(end=np.eye(3))
