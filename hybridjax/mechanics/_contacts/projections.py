"""Forces of contacts in space, by projections on their friction cones.

The complementarity problem of `find_active`, one contact after the other (a nonlinear
Gauss-Seidel iteration, as in Jean, *The non-smooth contact dynamics method* (1999)):
robust, and slow in its last digits, so that it says who is active, and no more.
"""

import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ..._jax.reduce import largest
from .._dynamics.elimination import in_order
from .complementarity import Active, friction_limit
from .tangential import norm, of_contacts, unit


def by_projections(
    W, c, guess: Active, resting, known, held, friction, static_friction
) -> tuple[Active, Bool[Array, ""]]:
    """The active contacts, and whether the iteration has converged: arguments are those
    of `find_active`."""
    n = friction.shape[0]
    blocks, offsets = W.reshape(3, n, 3, n), c.reshape(3, n)
    given = guess.direction.reshape(2, n)

    weights = _weights(blocks)
    order, _, count = in_order(guess.closed)

    def one(k, forces):
        j = lax.dynamic_index_in_dim(order, k, keepdims=False)
        row = lax.dynamic_index_in_dim(blocks, j, 1, keepdims=False)
        own = lax.dynamic_index_in_dim(row, j, 2, keepdims=False)
        move = jnp.sum(row * forces[None], axis=(1, 2)) + offsets[:, j]
        old, weight = forces[:, j], weights[:, j]
        normal = old[0] - move[0] / weight[0]
        normal = jnp.where(held, normal, jnp.maximum(normal, 0))
        move = move + own[:, 0] * (normal - old[0])
        aim = old[1:] - move[1:] / weight[1]
        press = jnp.abs(normal)
        size = jnp.sqrt(jnp.sum(aim**2))
        within = (size <= friction_limit(static_friction[j], press)) & ~known[j]
        edge = aim * friction[j] * press / jnp.where(size > 0, size, 1)
        tangential = jnp.where(within, aim, edge)
        slides_on = -friction[j] * normal * given[:, j]
        tangential = jnp.where(resting[j] | known[j], tangential, slides_on)
        force = jnp.concatenate([normal[None], tangential])
        return jnp.where((np.arange(n) == j)[None], force[:, None], forces)

    def sweep(carry):
        i, forces, _ = carry
        new = lax.fori_loop(0, count, one, forces)
        small = _SMALL * largest(new)
        return i + 1, new, largest(new - forces) > small

    init = jnp.asarray(0, jnp.int32), jnp.zeros_like(offsets), jnp.asarray(True)
    going_on = lambda carry: (carry[0] < _SWEEPS) & carry[2]
    _, forces, diverged = lax.while_loop(going_on, sweep, init)
    moves = (c + W @ forces.reshape(-1)).reshape(3, n)
    aim = forces - moves / weights[jnp.array([0, 1, 1])]
    # Where it is not clear, contacts stay what they are in the guess.
    little = 30 * _SMALL * jnp.max(jnp.abs(forces))
    closed = guess.closed & (held | (aim[0] > -little))
    limit = friction_limit(static_friction, jnp.abs(forces[0]))
    tangential = aim[1:].reshape(-1)
    inside = norm(tangential, n) <= limit + jnp.where(guess.stick, little, -little)
    stick = resting & ~known & inside
    free = of_contacts(resting | known, 2 * n)
    direction = jnp.where(free, unit(-tangential, n), guess.direction)
    return Active(closed, stick, direction), ~diverged


def _weights(blocks):
    """Upper bounds of the responses of each contact to its own forces: normal ones, and
    tangential ones, in a row each."""
    own = jnp.diagonal(blocks, axis1=1, axis2=3)
    tangential = jnp.max(jnp.sum(jnp.abs(own[1:, 1:]), axis=1), axis=0)
    weights = jnp.stack([own[0, 0], tangential])
    return jnp.where(weights > 0, weights, 1)


_SMALL, _SWEEPS = 1e-6, 1000
