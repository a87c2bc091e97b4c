"""Quadratic programs with bounds on each variable: the controls of one stage."""

import jax.lax as lax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float


# Newton's method finds the active bounds in about as many steps as there are variables,
# rarely in more; a step that was left out only makes the step of the trajectory worse.
_MORE_STEPS = 8
# Step sizes 1, 1/2, ... of Newton's method along the bounds.
_HALVINGS = 8


def free_solve(
    hessian: Float[Array, "m m"], free: Bool[Array, " m"], right: Float[Array, "m c"]
) -> Float[Array, "m c"]:
    """`-hessian^-1 right` for the variables that are free, and zero for the others. NaN
    where the Hessian is not positive definite."""
    both = free[:, None] & free[None, :]
    matrix = jnp.where(both, hessian, jnp.eye(free.size, dtype=hessian.dtype))
    right = jnp.where(free[:, None], right, 0)
    return -cho_solve(cho_factor(matrix, lower=True), right)


def box_minimum(
    hessian: Float[Array, "m m"],
    gradient: Float[Array, " m"],
    lower: Float[Array, " m"],
    upper: Float[Array, " m"],
) -> tuple[Float[Array, " m"], Bool[Array, " m"]]:
    """The least of a convex quadratic function within bounds, by projected Newton steps
    (Bertsekas 1982); and which variables are off their bounds, or could leave them."""

    def objective(d):
        return d @ (hessian @ d) / 2 + gradient @ d

    def free_at(d):
        slope = hessian @ d + gradient
        held = ((d <= lower) & (slope > 0)) | ((d >= upper) & (slope < 0))
        return ~held, slope

    shares = 0.5 ** jnp.arange(_HALVINGS, dtype=gradient.dtype)

    def step(carry):
        i, d, _ = carry
        free, slope = free_at(d)
        along = free_solve(hessian, free, slope[:, None])[:, 0]
        tried = jnp.clip(d + shares[:, None] * along, lower, upper)
        values = jnp.sum(tried * (tried @ hessian), axis=1) / 2 + tried @ gradient
        best = tried[jnp.argmin(values)]
        # Not NaN, which would go on.
        better = objective(best) < objective(d)
        return i + 1, jnp.where(better, best, d), better

    m = gradient.size
    start = jnp.clip(jnp.zeros_like(gradient), lower, upper)
    go_on = lambda carry: carry[2] & (carry[0] < m + _MORE_STEPS)
    _, d, _ = lax.while_loop(go_on, step, (0, start, jnp.asarray(True)))
    return d, free_at(d)[0]
