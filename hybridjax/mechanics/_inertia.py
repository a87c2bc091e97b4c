"""What a mass matrix of shape `(d, d)`, or `(d,)` if it is diagonal, does."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float


def coriolis(mass_matrix: Callable, q, v, args) -> Float[Array, " d"]:
    r"""$\dot M \dot q - \tfrac12 \nabla_q (\dot q^\top M \dot q)$: the forces that come
    of a mass matrix that is not constant."""
    momentum = lambda q: apply_mass(mass_matrix(q, args), v)
    _, transport = jax.jvp(momentum, (q,), (v,))
    return transport - jax.grad(lambda q: 0.5 * momentum(q) @ v)(q)


def apply_mass(mass, v):
    return mass * v if mass.ndim == 1 else mass @ v


def accelerate(mass, forces) -> Float[Array, "d ..."]:
    """`M^-1` times a vector, or the columns of a matrix."""
    if mass.ndim == 1:
        return forces / mass.reshape(mass.shape + (1,) * (forces.ndim - 1))
    return jax.scipy.linalg.solve(mass, forces, assume_a="pos")
