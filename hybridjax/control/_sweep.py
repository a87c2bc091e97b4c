"""The Riccati sweep, from the last stage to the first, and the step it proposes."""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._box import box_minimum, free_solve
from ._costs import Model


class Bounds(eqx.Module):
    """Of what controls may change by."""

    lower: Float[Array, "N m"]
    upper: Float[Array, "N m"]


class Regularization(eqx.Module):
    """What is added to the diagonals of Hessians with respect to state and control."""

    state: Float[Array, ""]
    control: Float[Array, ""]


class Sweep(eqx.Module):
    """The step `k + K dx` of the controls, and the value function: `p` and `P`, its
    derivatives at each knot. `ok` unless a Hessian was not positive definite."""

    k: Float[Array, "N m"]
    K: Float[Array, "N m n"]
    p: Float[Array, "N+1 n"]
    P: Float[Array, "N+1 n n"]
    ok: Bool[Array, ""]


def sweep(model: Model, extra: Regularization, bounds: Bounds | None = None) -> Sweep:
    """As Tassa, Mansard, Todorov (2014), with bounds, and regularisation of both
    Hessians; the value is that of the step, not of the regularised problem."""
    n, m = model.B.shape[1:]
    of_state = extra.state * jnp.eye(n, dtype=model.B.dtype)
    of_control = extra.control * jnp.eye(m, dtype=model.B.dtype)

    def one(after, row):
        p, P = after
        (A, B, gap, l, H), bound = row
        slope = p + P @ gap
        q_x, q_u = l[:n] + A.T @ slope, l[n:] + B.T @ slope
        PA, PB = P @ A, P @ B
        q_xx, q_ux, q_uu = (
            H[:n, :n] + A.T @ PA,
            H[n:, :n] + B.T @ PA,
            H[n:, n:] + B.T @ PB,
        )
        more = B.T @ of_state
        hessian = q_uu + more @ B + of_control
        hessian = (hessian + hessian.T) / 2
        if bound is None:
            right = jnp.concatenate([q_u[:, None], q_ux + more @ A], axis=1)
            both = free_solve(hessian, jnp.ones(m, bool), right)
            k, K = both[:, 0], both[:, 1:]
        else:
            k, free = box_minimum(hessian, q_u, bound.lower, bound.upper)
            K = free_solve(hessian, free, q_ux + more @ A)
        p = q_x + K.T @ (q_uu @ k + q_u) + q_ux.T @ k
        P = q_xx + K.T @ (q_uu @ K) + K.T @ q_ux + q_ux.T @ K
        P = (P + P.T) / 2
        return (p, P), (k, K, p, P)

    rows = (model.A, model.B, model.gap, model.gradient, model.hessian)
    end = (model.end_gradient, model.end_hessian)
    _, (k, K, p, P) = lax.scan(one, end, (rows, bounds), reverse=True)
    return Sweep(
        k=k,
        K=K,
        p=jnp.concatenate([p, end[0][None]]),
        P=jnp.concatenate([P, end[1][None]]),
        ok=jnp.all(jnp.isfinite(K)) & jnp.all(jnp.isfinite(P)),
    )
