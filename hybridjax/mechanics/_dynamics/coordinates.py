"""Configurations that are not what velocities add up to: q' = N(q) v.

`rate`, the `velocity_to_qdot` of a system, is `(q, v) -> N(q) v`, or `None` where N is
the identity.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .dot import dot
from .least_solve import solve


def qdot(rate: Callable | None, q, v) -> Float[Array, " nq"]:
    return v if rate is None else rate(q, v).astype(q.dtype)


def pull_back(rate: Callable | None, q, v, row) -> Float[Array, " nv"]:
    """`row @ N`, for a row of a Jacobian with respect to `q`."""
    if rate is None:
        return row
    return jax.linear_transpose(lambda v: qdot(rate, q, v), v)(row)[0]


def spans(rate: Callable | None, q, v) -> Float[Array, " nv"]:
    """How far, for each entry of `v`, the configuration is from zero along it: 1 or so
    for the rotation of a quaternion."""
    if rate is None:
        return jnp.abs(q)
    N = jnp.abs(matrix_of(rate, q, v))
    return dot(N.T, jnp.abs(q)) / jnp.sum(N**2, axis=0)


def matrix_of(rate: Callable, q, v) -> Float[Array, "nq nv"]:
    return jax.jacfwd(lambda v: qdot(rate, q, v))(v)


def as_momentum(rate: Callable, q, v, momentum) -> Float[Array, " nq"]:
    """The least `p` of which `momentum` is `p @ N`."""
    N = matrix_of(rate, q, v)
    return dot(N, solve(dot(N.T, N), momentum.astype(N.dtype)))
