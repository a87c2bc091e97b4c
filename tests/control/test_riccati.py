"""Riccati equations in discrete time, against SciPy and against least squares."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import control
from scipy.linalg import block_diag, solve_discrete_are


_N, _n, _m = 6, 3, 2
_rng = np.random.default_rng(0)
# Type checkers do not know that NumPy and JAX go together.
_A: Any = jnp.asarray(_rng.normal(size=(_N, _n, _n)))
_B: Any = jnp.asarray(_rng.normal(size=(_N, _n, _m)))
_Q: Any = jnp.asarray(np.stack([np.diag(d) for d in _rng.uniform(size=(_N, _n))]))
_R: Any = jnp.asarray(np.diag([0.3, 2.0]))
_END: Any = jnp.asarray(np.diag([1.0, 0.0, 4.0]))


def _lane(result, i):
    return jtu.tree_map(lambda a: a[i], result)


def test_is_least_squares():
    got = control.riccati(_A, _B, _Q, _R, _END)
    # All states as linear functions of the first one and of the controls.
    first: Any
    first, reach = [np.eye(_n)], [np.zeros((_n, _N * _m))]
    for k in range(_N):
        push = np.zeros((_n, _N * _m))
        push[:, k * _m : (k + 1) * _m] = _B[k]
        first.append(_A[k] @ first[-1])
        reach.append(_A[k] @ reach[-1] + push)
    F: Any = np.concatenate(first)
    G: Any = np.concatenate(reach)
    Q = block_diag(*_Q, _END)
    R = block_diag(*[_R] * _N)
    H = G.T @ Q @ G + R
    best = -np.linalg.solve(H, G.T @ Q @ F)
    value = F.T @ Q @ F + F.T @ Q @ G @ best
    np.testing.assert_allclose(got.P[0], value, rtol=1e-9)
    np.testing.assert_allclose(-got.K[0], best[:_m], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(got.P[-1], _END)
    assert got.result == control.RESULTS.successful


def test_periodic_with_stages_that_repeat_is_algebraic():
    same = lambda a: jnp.broadcast_to(a, (_N, *a.shape))
    got = control.periodic_riccati(same(_A[0]), same(_B[0]), _Q[0], _R)
    expected = solve_discrete_are(_A[0], _B[0], _Q[0], _R)
    for P in got.P:
        np.testing.assert_allclose(P, expected, rtol=1e-8, atol=1e-10)
    assert got.result == control.RESULTS.successful


def test_periodic_is_what_long_horizons_tend_to():
    got = control.periodic_riccati(_A, _B, _Q, _R)
    P = np.zeros((_n, _n))
    for _ in range(60):
        for A, B, Q in zip(_A[::-1], _B[::-1], _Q[::-1], strict=True):
            K = np.linalg.solve(_R + B.T @ P @ B, B.T @ P @ A)
            P = Q + A.T @ P @ (A - B @ K)
    np.testing.assert_allclose(got.P[0], P, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.P[-1], P, rtol=1e-9, atol=1e-12)
    closed = np.eye(_n)
    for A, B, K in zip(_A, _B, got.K, strict=True):
        closed = (A - B @ K) @ closed
    assert np.max(np.abs(np.linalg.eigvals(closed))) < 1


def test_results():
    # What stays, beyond reach, and costs something; and a singular R, in lanes.
    A = jnp.asarray(np.diag([1.0, 0.5]))[None]
    B = jnp.asarray([[[0.0], [1.0]]])
    run = jax.vmap(lambda Q, R: control.periodic_riccati(A, B, Q, R).result)
    got = run(jnp.stack([jnp.eye(2)] * 2), jnp.array([[[1.0]], [[-9.0]]]))
    assert _lane(got, 0) == control.RESULTS.not_converged
    assert _lane(got, 1) != control.RESULTS.successful
    run = jax.vmap(lambda R: control.riccati(A, B, jnp.eye(2), R, jnp.eye(2)))
    got = run(jnp.array([[[1.0]], [[-9.0]]]))
    assert _lane(got.result, 0) == control.RESULTS.successful
    assert _lane(got.result, 1) == control.RESULTS.not_positive_definite
    assert "Give every control a cost" in str(got.result)


def test_errors():
    with pytest.raises(ValueError, match=r"`A` must have shape \(N, n, n\)"):
        control.riccati(_A[0], _B, _Q, _R, _END)
    with pytest.raises(ValueError, match="`A` .* at least one stage"):
        control.riccati(_A[:0], _B[:0], _Q[0], _R, _END)
    with pytest.raises(ValueError, match=r"`B` must have shape .* with N = 6"):
        control.riccati(_A, _B[1:], _Q, _R, _END)
    with pytest.raises(ValueError, match=r"`Q` must have shape \(3, 3\) or \(6,"):
        control.riccati(_A, _B, _R, _R, _END)
    with pytest.raises(ValueError, match=r"`terminal` must have shape \(3, 3\)"):
        control.riccati(_A, _B, _Q, _R, _Q)
    for singular in (jnp.zeros((2, 2)), jnp.ones((2, 2))):
        with pytest.raises(ValueError, match="`R` must be positive definite.*Add"):
            control.periodic_riccati(_A, _B, _Q, singular)
