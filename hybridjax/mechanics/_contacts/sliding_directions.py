"""Directions in which contacts slide after impacts, where these follow from the forces.

A contact slides against its friction: with its slip, or the acceleration of that, $a$,
its direction is the $u$ for which $\\lambda_t = -\\mu \\lambda_n u$ and $a = |a| u$.
With any $w > 0$ this is $u = z / |z|$ for $z = a / w - \\lambda_t$, also where $a = 0$.
With $\\tau$ normal to $u$ and $\\kappa = \\mu \\lambda_n / |z|$, a step of Newton's
method is the linear system

$$\\lambda_t + \\mu u \\lambda_n + \\kappa \\tau \\tau^\\top z(\\lambda) = 0,$$

and with $\\kappa = 0$ one of a fixed-point iteration, the projections on the friction
cone.
"""

import functools

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np

from ..._jax.branch import cond_any
from ..._jax.division import divided
from ..._jax.reduce import any_of, largest
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .._dynamics.least_solve import least_solve_and_inverse, solve_and_inverse
from .complementarity import Active, contact_equations
from .tangential import across, along, in_space, norm, of_contacts, unit


def sliding_directions(W, c, active: Active, free, friction) -> Active:
    """`active` with directions of the contacts `free` in which they slide after an
    impact, against their friction.

    Those whose direction is zero, and so their friction, keep that. The search begins
    with the directions in `active`. Only in space: planar directions are signs, and not
    sought here. They have no derivative: that is `turning`.
    """
    W, c, active, friction = stop_gradient((W, c, active, friction))
    n = friction.shape[0]
    closed, stick, u = active.closed, active.stick, active.direction
    free = turns(active, free)
    tol = jnp.finfo(c.dtype).eps ** 0.75

    def step(carry):
        i, u, kappa, _ = carry
        kappa = jnp.where(_projects(i), 0, kappa)
        active = Active(closed, stick, u)
        z, forces, *_ = aims(W, c, active, friction, kappa)
        new = jnp.where(of_contacts(free, 2 * n), unit(z, n), u)
        # Where contacts pull, there may be several solutions. Without their terms the
        # search is less apt to jump from one to another.
        kappa = jnp.maximum(stiffness(forces, z, friction, free), 0)
        return i + 1, new, kappa, largest(norm(new - u, n))

    def going_on(carry):
        i, _, _, change = carry
        # Newton's method has other forces of redundant contacts than the least. So a
        # projection says whether it is there, as exactly as these are found.
        projected = (i > _ROUND) & _projects(i - 1)
        enough = jnp.where(projected, tol**0.6, tol)
        return (i < _STEPS) & ~(change <= enough) & any_of(free)

    none = jnp.zeros_like(c[:n])
    init = jnp.asarray(0, jnp.int32), u, none, jnp.asarray(jnp.inf, c.dtype)
    u = lax.while_loop(going_on, step, init)[1]
    return eqx.tree_at(lambda a: a.direction, active, u)


def turning(
    W, c, found: Active, given, free, friction, give: float | None = None
) -> Active:
    """What a search has `found`, with the derivative of the solution. The directions of
    others that slide are parameters, and have that of those `given`."""
    if not in_space(c.shape[0], friction.shape[0]):
        return found
    closed, stick, free = found.closed, found.stick, turns(found, free)
    u = _turning(give, W, c, friction, given, found.direction, closed, stick, free)
    return eqx.tree_at(lambda a: a.direction, found, u)


def strays(active: Active, moves, free, size):
    """Contacts that move across their friction, as the search for their directions has
    not converged."""
    n = free.shape[0]
    if not in_space(moves.shape[0], n):
        return jnp.zeros_like(free)
    aside = jnp.abs(along(across(active.direction, n), moves[n:], n))
    return turns(active, free) & (aside > jnp.finfo(moves.dtype).eps ** 0.25 * size)


def turns(active: Active, free):
    """Those of the contacts `free` whose direction is sought."""
    slides = active.closed & ~active.stick
    return free & slides & (norm(active.direction, free.shape[0]) > 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _turning(give, W, c, friction, given, u, closed, stick, free):
    return u


@_turning.defjvp
def _turning_jvp(give, primals, tangents):
    W, c, friction, _, _, closed, stick, free = primals
    u = _turning(give, *primals)  # which has a derivative, too
    d_W, d_c, d_friction, d_u, *_ = tangents
    n = friction.shape[0]
    of_free = of_contacts(free, 2 * n)
    d_others = jnp.where(of_free, 0, d_u)

    def turn():
        def aim(kappa, W, c, friction, u):
            return aims(W, c, Active(closed, stick, u), friction, kappa, give)

        z, forces, *_ = aim(jnp.zeros_like(friction), W, c, friction, u)
        # How a step of Newton's method depends on the directions that it finds is of
        # second order.
        newton = functools.partial(aim, stiffness(forces, z, friction, free))
        tangents = d_W, d_c, d_friction, d_others
        _, (d_z, *_) = jax.jvp(newton, (W, c, friction, u), tangents)
        tau, length = across(u, n), norm(z, n)
        rate = along(tau, d_z, n) / jnp.where(length > 0, length, 1)
        return jnp.where(of_free, tau * of_contacts(rate, 2 * n), d_others)

    # Few contacts are free for long, and these are two systems of equations.
    return u, cond_any(any_of(free), turn, lambda: d_others)


def own(W, n: int):
    """An upper bound of how much tangential forces accelerate contacts: `w`."""
    W = jnp.abs(stop_gradient(W[n:, n:]))
    most = dot(W, np.ones(2 * n, W.dtype))
    most = jnp.maximum(most[:n], most[n:])
    return of_contacts(jnp.where(most > 0, most, 1), 2 * n)


def aims(W, c, active: Active, friction, kappa, give=None):
    """The vectors `z`, the forces, and all accelerations; and the inverse by which
    forces are found, a constant. Where held contacts `give` way, they are accelerated
    against their forces, by these times their weights times that.
    """
    n = friction.shape[0]
    matrix, b, weights, *others = _equations(W, c, active, friction, kappa)
    if give is None:
        forces, (inverse, _) = least_solve_and_inverse(matrix, b, weights, *others)
    else:
        yielding = give * weights[:, None] * np.eye(3 * n, dtype=c.dtype)
        forces, inverse = solve_and_inverse(matrix + yielding, b, others[0])
    moves = c + dot(W, forces)
    return moves[n:] / own(W, n) - forces[n:], forces, moves, inverse


def stiffness(forces, z, friction, free):
    n = friction.shape[0]
    length = norm(z, n)
    kappa = friction * forces[:n] / jnp.where(length > 0, length, 1)
    return jnp.where(free & (length > 0), kappa, 0)


def _equations(W, c, active: Active, friction, kappa):
    """Those of the contact forces, with the terms of Newton's method."""
    n = friction.shape[0]
    matrix, b, *others = contact_equations(W, c, active, friction)
    tau, w = across(active.direction, n), own(W, n)
    slopes = W[n:] / w[:, None] - np.eye(3 * n, dtype=c.dtype)[n:]
    slope = tau[:n, None] * slopes[:n] + tau[n:, None] * slopes[n:]
    share = tau * of_contacts(kappa, 2 * n)
    rows = share[:, None] * of_contacts(slope, 2 * n)
    known = share * of_contacts(along(tau, c[n:] / w, n), 2 * n)
    below = lambda a: jnp.pad(a, [(n, 0)] + [(0, 0)] * (a.ndim - 1))
    return matrix + below(rows), b - below(known), *others


def _projects(i):
    """Is step `i` a projection, or one of Newton's method?"""
    return (divided(i, _ROUND)[1] < _PROJECTIONS) | (i >= _ROUNDS * _ROUND)


# Rounds of so many steps, with so many projections at first; in the end only these.
_ROUND, _PROJECTIONS, _ROUNDS, _STEPS = 40, 8, 2, 128
