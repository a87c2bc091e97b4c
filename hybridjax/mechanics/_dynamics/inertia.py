"""What a mass matrix of shape `(d, d)`, or `(d,)` if it is diagonal, does."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._jax.diagonal import diagonal
from .coordinates import as_momentum, pull_back, qdot
from .dot import dot
from .elimination import pivots
from .least_solve import solve


def inertia(
    mass_matrix: Callable, q, v, args, rate: Callable | None = None
) -> tuple[Array, Float[Array, " d"]]:
    r"""The mass matrix, and the forces that come of it if it is not constant: $\dot M
    \dot q - \tfrac12 \nabla_q (\dot q^\top M \dot q)$, if velocities are $\dot q$.

    Else those of Boltzmann and Hamel: docs/concepts/contact.md.
    """

    def momentum(q):
        mass = mass_matrix(q, args)
        return apply_mass(mass, v), mass

    along, pull, mass = jax.vjp(momentum, q, has_aux=True)
    dq = qdot(rate, q, v)
    _, transport = jax.jvp(lambda q: momentum(q)[0], (q,), (dq,))
    (gradient,) = pull(v.astype(along.dtype))
    if rate is None:
        return mass, transport - gradient / 2
    conjugate = as_momentum(rate, q, v, along)
    turning = lambda q: pull_back(rate, q, v, conjugate)
    _, turned = jax.jvp(turning, (q,), (dq,))
    (turns,) = jax.vjp(lambda q: rate(q, v), q)[1](conjugate)
    return mass, transport - turned - pull_back(rate, q, v, gradient / 2 - turns)


def apply_mass(mass, v):
    return mass * v if mass.ndim == 1 else dot(mass, v)


def accelerate(mass, forces) -> Float[Array, "d ..."]:
    """`M^-1` times a vector, or the columns of a matrix."""
    if mass.ndim == 1:
        return forces / mass.reshape(mass.shape + (1,) * (forces.ndim - 1))
    return solve(mass, forces)


def is_regular(mass) -> Bool[Array, ""]:
    """Whether a mass matrix is positive definite, to rounding."""
    size = jnp.finfo(mass.dtype).eps * mass.shape[0]
    if mass.ndim == 1:
        return jnp.min(mass) > size * jnp.max(mass)
    return jnp.min(pivots(mass)) > size * jnp.max(diagonal(mass))


SINGULAR = (
    "Argument `mass_matrix` must return a symmetric positive definite matrix, but at "
    "`x0` it is singular, indefinite or not finite. Give each coordinate an inertia, "
    "or choose others (at some configurations, coordinates are singular)."
)
