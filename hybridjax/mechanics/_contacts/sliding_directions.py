"""Directions in which contacts slide, where these follow from the forces.

A contact slides against its friction: with its slip, or the acceleration of that, $a$,
its direction is the $u$ for which $\\lambda_t = -\\mu \\lambda_n u$ and $a = |a| u$.
With any $w > 0$ this is $u = z / |z|$ for $z = a / w - \\lambda_t$, also where $a = 0$.
With $\\tau$ normal to $u$ and $\\kappa = \\mu \\lambda_n / |z|$, a step of Newton's
method is the linear system

$$\\lambda_t + \\mu u \\lambda_n + \\kappa \\tau \\tau^\\top z(\\lambda) = 0,$$

and with $\\kappa = 0$ one of a fixed-point iteration, the projections on the friction
cone.
"""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np

from ..._jax.branch import cond_any
from ..._jax.reduce import any_of, largest
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .._dynamics.least_solve import least_solve
from .complementarity import Active, contact_equations, contact_forces
from .tangential import across, along, in_space, norm, of_contacts, unit


def sliding_directions(
    W, c, active: Active, free, friction, *, at_rest: bool = False
) -> Active:
    """`active` with directions of the contacts `free` in which they are accelerated,
    against their friction: with velocities for `c`, those of slips after an impact.

    Those whose direction is zero, and so their friction, keep that. The search begins
    with the directions in `active`; or, for those `at_rest`, with those in which the
    forces push that it would take to stick. Only in space: planar directions are signs,
    and not sought here. They have no derivative: that is `turning`.
    """
    W, c, active, friction = stop_gradient((W, c, active, friction))
    n = friction.shape[0]
    if not in_space(c.shape[0], n):
        return active
    closed, stick, u = active.closed, active.stick, active.direction
    free = _turns(active, free)
    stay = free & at_rest
    tol = jnp.finfo(c.dtype).eps ** 0.75

    def step(carry):
        i, u, kappa, _ = carry
        kappa = jnp.where(_projects(i), 0, kappa)
        active = Active(closed, stick | (stay & (i == 0)), u)
        forces = least_solve(*_equations(W, c, friction, active, kappa))
        z = _towards(W, c, forces)
        new = jnp.where(of_contacts(free, 2 * n), unit(z, n), u)
        # Where contacts pull, there may be several solutions. Without their terms the
        # search is less apt to jump from one to another.
        kappa = jnp.maximum(_stiffness(forces, z, friction, free), 0)
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


def turning(W, c, found: Active, given, free, friction) -> Active:
    """What `sliding_directions` has `found`, with the derivative of the solution. The
    directions of others that slide are parameters, and have that of those `given`."""
    if not in_space(c.shape[0], friction.shape[0]):
        return found
    closed, stick, free = found.closed, found.stick, _turns(found, free)
    u = _turning(W, c, friction, given, found.direction, closed, stick, free)
    return eqx.tree_at(lambda a: a.direction, found, u)


def strays(active: Active, moves, free, size):
    """Contacts that move across their friction, as the search for their directions has
    not converged."""
    n = free.shape[0]
    if not in_space(moves.shape[0], n):
        return jnp.zeros_like(free)
    aside = jnp.abs(along(across(active.direction, n), moves[n:], n))
    return _turns(active, free) & (aside > jnp.finfo(moves.dtype).eps ** 0.25 * size)


def _turns(active: Active, free):
    slides = active.closed & ~active.stick
    return free & slides & (norm(active.direction, free.shape[0]) > 0)


@jax.custom_jvp
def _turning(W, c, friction, given, u, closed, stick, free):
    return u


@_turning.defjvp
def _turning_jvp(primals, tangents):
    W, c, friction, _, _, closed, stick, free = primals
    u = _turning(*primals)  # which has a derivative, too
    d_W, d_c, d_friction, d_u, *_ = tangents
    n = friction.shape[0]
    of_free = of_contacts(free, 2 * n)
    d_others = jnp.where(of_free, 0, d_u)

    def turn():
        active = Active(closed, stick, u)
        forces = contact_forces(W, c, active, friction)
        z = _towards(W, c, forces)
        kappa = _stiffness(forces, z, friction, free)

        # How a step of Newton's method depends on the directions that it finds is of
        # second order.
        def solved(W, c, friction, u):
            active = Active(closed, stick, u)
            return least_solve(*_equations(W, c, friction, active, kappa))

        tangents = d_W, d_c, d_friction, d_others
        _, d_forces = jax.jvp(solved, (W, c, friction, u), tangents)
        _, d_z = jax.jvp(_towards, (W, c, forces), (d_W, d_c, d_forces))
        tau, length = across(u, n), norm(z, n)
        rate = along(tau, d_z, n) / jnp.where(length > 0, length, 1)
        return jnp.where(of_free, tau * of_contacts(rate, 2 * n), d_others)

    # Few contacts are free for long, and these are two systems of equations.
    return u, cond_any(any_of(free), turn, lambda: d_others)


def _own(W, n: int):
    """An upper bound of how much tangential forces accelerate contacts: `w`."""
    W = jnp.abs(stop_gradient(W[n:, n:]))
    own = dot(W, np.ones(2 * n, W.dtype))
    own = jnp.maximum(own[:n], own[n:])
    return of_contacts(jnp.where(own > 0, own, 1), 2 * n)


def _towards(W, c, forces):
    """The vectors `z`."""
    n = c.shape[0] // 3
    return (c + dot(W, forces))[n:] / _own(W, n) - forces[n:]


def _stiffness(forces, z, friction, free):
    n = friction.shape[0]
    length = norm(z, n)
    kappa = friction * forces[:n] / jnp.where(length > 0, length, 1)
    return jnp.where(free & (length > 0), kappa, 0)


def _equations(W, c, friction, active: Active, kappa):
    """Those of the contact forces, with the terms of Newton's method."""
    n = friction.shape[0]
    matrix, b, *others = contact_equations(W, c, active, friction)
    tau, own = across(active.direction, n), _own(W, n)
    slopes = W[n:] / own[:, None] - np.eye(3 * n, dtype=c.dtype)[n:]
    slope = tau[:n, None] * slopes[:n] + tau[n:, None] * slopes[n:]
    share = tau * of_contacts(kappa, 2 * n)
    rows = share[:, None] * of_contacts(slope, 2 * n)
    known = share * of_contacts(along(tau, c[n:] / own, n), 2 * n)
    below = lambda a: jnp.pad(a, [(n, 0)] + [(0, 0)] * (a.ndim - 1))
    return matrix + below(rows), b - below(known), *others


def _projects(i):
    """Is step `i` a projection, or one of Newton's method?"""
    return (i % _ROUND < _PROJECTIONS) | (i >= _ROUNDS * _ROUND)


# Rounds of so many steps, with so many projections at first; in the end only these.
_ROUND, _PROJECTIONS, _ROUNDS, _STEPS = 40, 8, 2, 128
