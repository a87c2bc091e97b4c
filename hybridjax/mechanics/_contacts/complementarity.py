"""Contact forces, and impulses, at all contacts at once.

With `lam` the normal forces of all contacts and then, if there is friction, the
tangential ones (along one direction, or two: see `tangential.py`), the accelerations of
gaps and slips are `c + W lam`, where `W = J M^-1 J^T`: the block system of Kong et al.,
(63), after its first row has been eliminated. Impulses obey the same equations with
velocities, (69).
"""

import functools
from typing import Any

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._jax.diagonal import diagonal
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .._dynamics.elimination import pivots
from .._dynamics.least_solve import least_solve_and_inverse
from .tangential import along, in_space, of_contacts


class Active(eqx.Module):
    """Which contacts are closed, which of these stick, and where the others slide."""

    closed: Bool[Array, " n"]
    stick: Bool[Array, " n"]
    direction: Float[Array, " tangential"]  # of sliding: 1 or -1, or a unit vector


def contact_forces(
    W: Float[Array, "rows rows"],
    c: Float[Array, " rows"],
    active: Active,
    friction: Float[Array, " n"],
) -> Float[Array, " rows"]:
    """The forces that make the rows of closed (and sticking) contacts zero."""
    return contact_forces_and_solver(W, c, active, friction)[0]


def contact_forces_and_solver(
    W, c, active: Active, friction
) -> tuple[Float[Array, " rows"], tuple[Array, Array, Array]]:
    """These forces; and the matrix of their equations, with the inverse of a regular
    one, and the sign of its determinant, which are constants."""
    equations = contact_equations(W, c, active, friction)
    forces, regular = least_solve_and_inverse(*equations)
    # To the last digit, where there is no contact.
    forces = jnp.where(of_contacts(active.closed, c.shape[0]), forces, 0)
    return forces, (equations[0], *regular)


def pushed_back(W, c, active: Active, solver) -> Bool[Array, " rows"]:
    """Which rows accelerate backward, with the forces of contacts that are active?"""
    # Not refined: only the sign is asked for, of what is well away from zero.
    _, inverse, _ = solver
    held = held_rows(active, c.shape[0])
    moves = c + dot(W, dot(inverse, jnp.where(held, -c, 0)))
    return moves < -(jnp.finfo(c.dtype).eps ** 0.375) * jnp.max(jnp.abs(c))


def posedness(
    W, active: Active, friction, solver, derivative=False
) -> Float[Array, " n"]:
    """For each sliding contact a number that is not positive where contacts jam by its
    friction (Painlevé's paradox); 1 for all that do not slide. If a `derivative` is
    asked for, it is that of the least one.

    Normal forces, with the friction that goes with them, accelerate the gaps of closed
    contacts by a matrix `A`. Without friction its determinant is positive. Forces stay
    those of such a motion until it is zero; then it is that of those which jam that
    would be positive without their own. By Cramer's rule the inverse says how many
    times as large it would be.

    It is also positive where two have both jammed. What a single one does is then that
    it pulls itself to its surface, `A_jj < 0`, and that its gap shrinks where it pushes
    harder, while the others stay closed: `(A^-1)_jj < 0`.
    """
    matrix, inverse, sign = solver
    n, size = friction.shape[0], W.shape[0]
    if size == n:
        return jnp.ones_like(friction)
    rubs = active.closed & ~active.stick & (friction > 0)
    own = diagonal(W, n)
    own = jnp.where(own > 0, own, 1)
    cross = [diagonal(W, n, i) for i in range(n, size, n)]
    alone = 1 - friction * along(active.direction, jnp.concatenate(cross), n) / own
    eps = jnp.finfo(W.dtype).eps
    # In the plane it ends before forces are lost in the small part of the regular
    # matrix. In space the slip turns, and it may never come to that.
    least = 0 if in_space(size, n) else eps**0.4

    def posed(entries):
        held = own * entries[:n]
        cured = 1 - friction * along(active.direction, entries[n:], n)
        fine = jnp.where(sign > 0, 1, jnp.sign(cured)) / jnp.maximum(jnp.abs(cured), 1)
        posed = jnp.minimum(fine, jnp.maximum(alone, held))
        # But one that the others would leave hardly any motion, also without its
        # friction, is judged by itself.
        moves = cured**2 / (cured**2 + eps**0.5 * held**2)
        return jnp.where(rubs, alone + (posed - alone) * moves - least, 1)

    entries = [diagonal(inverse, n, i) for i in range(0, size, n)]
    entries = jnp.concatenate(entries)
    if not derivative:
        return posed(entries)
    first = jnp.argmin(posed(entries))
    row = lax.dynamic_index_in_dim(inverse, first, keepdims=False)
    forward = dot(row, matrix)
    change = dot(stop_gradient(forward) - forward, inverse)
    of_first = of_contacts(jnp.arange(n) == first, size)
    return posed(entries + jnp.where(of_first, change, 0))


def contact_equations(W, c, active: Active, friction) -> tuple[Any, ...]:
    """Their matrix and right-hand side, and what `least_solve` needs besides: weights,
    which rows say more than that a force is zero, and whether redundant ones agree.

    One linear system of one size, whatever is active: the rows of other contacts say
    that their forces are zero, and those of sliding ones that they are friction.
    """
    n, size = friction.shape[0], c.shape[0]
    closed, others = of_contacts(active.closed, size), np.eye(size, dtype=c.dtype)
    rows = held_rows(active, size)
    if size > n:
        share = jnp.pad(active.direction, (n, 0)) * of_contacts(friction, size)
        share = jnp.where(closed & ~rows, share, 0)
        others = others + _at_normal(share, n)
    matrix = jnp.where(rows[:, None], W, others)
    weights = jnp.where(rows, weights_of(W, n), 0)
    # Without friction it does not matter, as the matrix is symmetric.
    agree = n == 1 or size == n
    return matrix, jnp.where(rows, -c, 0), weights, closed, agree


def weights_of(W, n: int) -> Float[Array, " rows"]:
    """How little forces take of what is not determined. More is left to normal forces:
    legs do not push apart. And as much in all directions along a surface."""
    normal, *tangential = diagonal(W).reshape(-1, n)
    if not tangential:
        return normal
    many = len(tangential)
    own = _OF_FRICTION / many * functools.reduce(jnp.add, tangential)
    return jnp.concatenate([normal, *many * [own]])


def _at_normal(share, n: int):
    """The matrix with `share` in the columns of the normal rows. (Not as a product with
    a constant one, of which the transpose is a sum over all of it.)"""
    size = share.shape[0]
    spread = lax.pad(
        share.reshape(-1, n),
        np.zeros((), share.dtype),
        [(0, 0, 0), (0, size - n, size)],
    )
    return spread.reshape(size, size)


def held_rows(active: Active, size: int) -> Bool[Array, " rows"]:
    """Those of closed contacts, and the tangential ones of those that stick."""
    n = active.closed.shape[0]
    sticks_or_normal = of_contacts(active.stick, size) | (np.arange(size) < n)
    return of_contacts(active.closed, size) & sticks_or_normal


# How much more tangential forces weigh than normal ones. (Much more, and float32 would
# need more refinements.)
_OF_FRICTION = 16


def are_redundant(W, rows) -> Bool[Array, ""]:
    """Do some of these rows follow from the others?"""
    scale = jnp.sqrt(diagonal(W))
    cosines = W / jnp.outer(scale, scale)
    both = jnp.outer(rows, rows)
    cosines = stop_gradient(jnp.where(both, cosines, jnp.eye(*W.shape, dtype=W.dtype)))
    least = jnp.min(pivots(cosines, rows))  # or NaN
    independent = least > jnp.finfo(W.dtype).eps ** 0.5
    return ~independent


def force_size(W, size, force) -> Float[Array, ""]:
    """The size of contact forces, also where they happen to vanish: with the one that
    would move a contact as much as `size`."""
    own = diagonal(W)
    return jnp.max(jnp.abs(force)) + size / jnp.max(jnp.where(own > 0, own, 1))


def friction_limit(static_friction, press) -> Float[Array, " n"]:
    """The largest tangential force of sticking contacts; infinite if they have none."""
    endless = jnp.isinf(static_friction)
    limit = jnp.where(endless, 0, static_friction) * press
    return jnp.where(endless, jnp.inf, limit)
