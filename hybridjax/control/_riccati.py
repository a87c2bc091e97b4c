from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._loop.results import success_if
from ._costs import Model
from ._results import RESULTS
from ._sweep import Regularization, sweep


class Riccati(eqx.Module):
    r"""What `hj.control.riccati` and `hj.control.periodic_riccati` return: the value of
    a deviation $\delta x$ at a knot, $\tfrac12 \delta x^T P_k\, \delta x$, and the best
    control $\delta u_k = -K_k\, \delta x_k$.

    **Attributes:**

    - `P`: of shape `(N + 1, n, n)`, at the knots.
    - `K`: gains, of shape `(N, m, n)`.
    - `result`: a `hj.control.RESULTS`.
    """

    P: Float[Array, "N+1 n n"]
    K: Float[Array, "N m n"]
    result: RESULTS  # pyright: ignore


def riccati(
    A: Float[Array, "N n n"],
    B: Float[Array, "N n m"],
    Q: Float[Array, "*N n n"],
    R: Float[Array, "*N m m"],
    terminal: Float[Array, "n n"],
) -> Riccati:
    r"""The linear quadratic regulator with a finite horizon, in discrete time.

    Minimises $\tfrac12 \sum_{k < N} (\delta x_k^T Q_k\, \delta x_k + \delta u_k^T R_k\,
    \delta u_k) + \tfrac12 \delta x_N^T Q_f\, \delta x_N$ for $\delta x_{k+1} = A_k\,
    \delta x_k + B_k\, \delta u_k$. With `A` and `B` of `hj.control.linearize`, events
    are in the stages: each `A` holds the saltation matrices of its interval, and so
    $P^- = \Xi^T P^+ \Xi$; the cost of a stage counts once, and never at an event.

    **Arguments:**

    - `A`, `B`: of shapes `(N, n, n)` and `(N, n, m)`.
    - `Q`, `R`: of shapes `(n, n)` and `(m, m)`, or with `N` in front. `Q` positive
        semidefinite, `R` positive definite.
    - `terminal`: $Q_f$, of shape `(n, n)`.

    **Returns:**

    A `hj.control.Riccati`.

    **Raises:**

    - `ValueError` for shapes that do not fit, and an `R` that is known to be singular.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (41), (42), (150)-(162), without the
        running cost at the event that (162) has.
    """
    check_weights(A, B, Q, R)
    check_square("terminal", terminal, jnp.shape(A)[1])
    return in_one_program(_riccati, A, B, Q, R, terminal)


def _riccati(A, B, Q, R, terminal):
    swept = sweep(regulator(A, B, Q, R, terminal), _none(A))
    return Riccati(
        swept.P, -swept.K, success_if(swept.ok, RESULTS.not_positive_definite)
    )


def _none(A):
    zero = jnp.zeros((), A.dtype)
    return Regularization(zero, zero)


def regulator(A, B, Q, R, terminal) -> Model:
    """The problem of which the best deviation is none."""
    N, n, m = B.shape
    Q = jnp.broadcast_to(Q, (N, n, n))
    R = jnp.broadcast_to(R, (N, m, m))
    mixed = jnp.zeros((N, n, m), A.dtype)
    weights = jnp.block([[Q, mixed], [jnp.swapaxes(mixed, 1, 2), R]])
    return Model(
        A=A,
        B=B,
        gap=jnp.zeros((N, n), A.dtype),
        gradient=jnp.zeros((N, n + m), A.dtype),
        hessian=weights,
        end_gradient=jnp.zeros((n,), A.dtype),
        end_hessian=jnp.asarray(terminal, A.dtype),
    )


def periodic_riccati(
    A: Float[Array, "N n n"],
    B: Float[Array, "N n m"],
    Q: Float[Array, "*N n n"],
    R: Float[Array, "*N m m"],
    *,
    rtol: Any = None,
    max_iterations: int = 60,
) -> Riccati:
    """The regulator of a limit cycle: as `hj.control.riccati` without an end, for
    stages that repeat after `N`. `P[N]` is `P[0]`.

    The period is made one stage, by combining its stages two by two, and that is
    doubled until nothing changes any more: the structured doubling algorithm, which
    converges quadratically.

    **Arguments:**

    - `A`, `B`, `Q`, `R`: as in `hj.control.riccati`. The stages of one period, such as
        those of `hj.control.linearize` along a cycle.
    - `rtol`: change of `P`, relative to its largest entry, at which it ends. `None` is
        1e-12 in float64, and 1e-5 in float32.
    - `max_iterations`: bound on the number of doublings.

    **Returns:**

    A `hj.control.Riccati`, with `hj.control.RESULTS.not_converged` where there is no
    stabilising solution, as for a multiplier of 1 that no control reaches.

    **Raises:**

    - `ValueError` as `hj.control.riccati`.

    ??? cite "Reference"

        Chu, Fan, Lin, *A structure-preserving doubling algorithm for continuous-time
        algebraic Riccati equations* (2005); Särkkä, García-Fernández, *Temporal
        parallelization of dynamic programming and linear quadratic control* (2023),
        for stages that differ.
    """
    check_weights(A, B, Q, R)
    if rtol is None:
        single = jnp.result_type(A) == jnp.float32
        rtol = 1e-5 if single else 1e-12
    return in_one_program(_periodic, A, B, Q, R, rtol, jnp.asarray(max_iterations))


def _periodic(A, B, Q, R, rtol, max_iterations):
    N, n, m = B.shape
    R = jnp.broadcast_to(R, (N, m, m))
    G = jax.vmap(lambda B, R: B @ jnp.linalg.solve(R, B.T))(B, R)
    stages = (A, G, jnp.broadcast_to(Q, A.shape))
    combine = jax.vmap(_combine)
    whole = lax.associative_scan(combine, stages)
    whole = tuple(part[-1] for part in whole)

    def double(carry):
        i, stage, _ = carry
        twice = _combine(stage, stage)
        change = jnp.max(jnp.abs(twice[2] - stage[2]))
        return i + 1, twice, change <= rtol * jnp.max(jnp.abs(twice[2]))

    go_on = lambda carry: ~carry[2] & (carry[0] < max_iterations)
    _, (last, _, P), done = lax.while_loop(
        go_on, double, (0, whole, jnp.asarray(False))
    )
    # What still passes through the whole would add to it, were it weighted at the end.
    done = done & (jnp.max(jnp.abs(last)) < 1)
    swept = sweep(regulator(A, B, Q, R, P), _none(A))
    result = success_if(done, RESULTS.not_converged)
    result = RESULTS.where(swept.ok, result, RESULTS.not_positive_definite)
    return Riccati(swept.P, -swept.K, result)


def _combine(first, second):
    """Two stages as one, each as what it does to a state, how far controls reach (`B
    R^-1 B^T`), and what it costs."""
    A1, G1, H1 = first
    A2, G2, H2 = second
    reach = jnp.eye(A1.shape[0], dtype=A1.dtype) + G1 @ H2
    through = jnp.linalg.solve(reach, jnp.concatenate([A1, G1], axis=1))
    A, G = jnp.split(through, 2, axis=1)
    H = H1 + A1.T @ H2 @ A
    G = G2 + A2 @ G @ A2.T
    symmetric = lambda M: (M + M.T) / 2
    return A2 @ A, symmetric(G), symmetric(H)


#
# What was given
#


def check_weights(A, B, Q, R):
    a, b = jnp.shape(A), jnp.shape(B)
    if len(a) != 3 or a[0] < 1 or a[1] != a[2]:
        raise ValueError(
            "Argument `A` must have shape (N, n, n), one matrix for each of at least "
            f"one stage, but its shape is {a}."
        )
    if len(b) != 3 or b[:2] != a[:2]:
        raise ValueError(
            f"Argument `B` must have shape (N, n, m), with N = {a[0]} and n = {a[1]} "
            f"as in `A`, but its shape is {b}."
        )
    check_square("Q", Q, a[1], a[0])
    check_square("R", R, b[2], a[0])
    check_definite(R)


def check_square(name, matrix, n, N=None):
    shape = jnp.shape(matrix)
    allowed = [(n, n)] if N is None else [(n, n), (N, n, n)]
    if shape not in allowed:
        raise ValueError(
            f"Argument `{name}` must have shape {' or '.join(map(str, allowed))}, but "
            f"its shape is {shape}."
        )


def check_definite(R):
    """Where it is known."""
    if is_traced(R):
        return
    R = np.asarray(R)
    least = np.min(np.linalg.eigvalsh((R + np.swapaxes(R, -1, -2)) / 2))
    if not least > np.finfo(R.dtype).eps * np.max(np.abs(R)):
        raise ValueError(
            "Argument `R` must be positive definite, so that every control costs "
            f"something, but its least eigenvalue is {least:.2g}. Add a small multiple "
            "of the identity."
        )
