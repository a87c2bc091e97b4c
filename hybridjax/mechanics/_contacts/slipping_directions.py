"""Directions in which contacts at rest begin to slip.

As after impacts, but others that stick may hold a contact whose force has left its
cone: then its slip does not say where it would go. What says it is how far the others
give way, however little that is: see `docs/concepts/friction.md`.
"""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from ..._jax.reduce import any_of, largest
from ..._jax.tracing import stop_gradient
from .complementarity import Active, weights_of
from .sliding_directions import aims, sliding_directions, stiffness, turns
from .tangential import along, in_space, norm, of_contacts, unit


def slipping_directions(
    W, c, active: Active, free, friction, free_of_others: ArrayLike = False
) -> Active:
    """`active` with directions of the contacts `free` in which they slip from rest, or
    would slip if others gave way; or as after impacts, if they are `free_of_others`.

    Those whose direction is zero, and so their friction, keep that. Only in space. They
    have no derivative: that is `turning`, with what they `give`.
    """
    W, c, active, friction = stop_gradient((W, c, active, friction))
    n = friction.shape[0]
    if not in_space(c.shape[0], n):
        return active
    closed, stick, u = active.closed, active.stick, active.direction
    free, held = turns(active, free), any_of(closed & stick)
    sought = free & ~jnp.asarray(free_of_others)
    tol, least = jnp.finfo(c.dtype).eps ** 0.375, give(c.dtype)

    def step(carry):
        i, u, kappa, begin, *_ = carry
        # From one that gives way more, a step of Newton's method is nearly enough. And
        # with a small `w` there is no root with a slip against its direction.
        steps = jnp.maximum(i - _PROJECTIONS, 0).astype(c.dtype)
        given = jnp.where(held, jnp.maximum(10 ** (-0.5 * steps), least), least)
        near = jnp.where(held & (i < _PROJECTIONS + _WAY), given, 1)
        kappa = jnp.where(i < _PROJECTIONS, 0, kappa)
        # At first, where the forces push that it would take to stick.
        active = Active(closed, stick | (free & (i == 0)), u)
        z, forces, moves = aims(W, c, active, friction, kappa, given, near)
        new = jnp.where(of_contacts(free, 2 * n), unit(z, n), u)
        kappa = jnp.maximum(stiffness(forces, z, friction, free), 0)
        onward = along(u, moves[n:], n)
        backward = largest(jnp.where(free, -onward, 0))
        begin = jnp.where(i == 0, new, begin)
        return i + 1, new, kappa, begin, largest(norm(new - u, n)), backward

    def going_on(carry):
        i, *_, change, _ = carry
        begun = i > _PROJECTIONS + jnp.where(held, _WAY, 0) + 1
        return (i < _STEPS) & ~(begun & (change <= tol)) & any_of(sought)

    none = jnp.zeros_like(c[:n])
    much = jnp.asarray(jnp.inf, c.dtype)
    init = jnp.asarray(0, jnp.int32), u, none, u, much, much
    _, u, _, begin, change, backward = lax.while_loop(going_on, step, init)
    # With what nothing holds the search for slips after impacts is better, if there is
    # no such root, as where a slip is about to end.
    size = largest(jnp.abs(c))
    fails = ~((change <= _FAR) & (backward <= _FAR * size + creep(size)))
    again = Active(closed, stick, begin)
    again = sliding_directions(W, c, again, free & fails, friction)
    u = jnp.where(fails, again.direction, u)
    return eqx.tree_at(lambda a: a.direction, active, u)


def give(dtype) -> float:
    """How far contacts give way. With less, rounding would show in the directions of
    what is held."""
    return float(jnp.finfo(dtype).eps) ** 0.43


def creep(size):
    """Accelerations of contacts at rest that are none: those of giving way."""
    return 10 * give(size.dtype) * size


def slips_onward(W, c, size, active: Active, friction):
    """Positive for contacts that slip from rest, or would slip if others gave way; and
    not for those whose friction, if they gave way too, would be less than half of it.
    """
    n, little = friction.shape[0], give(c.dtype)
    _, forces, moves = aims(W, c, active, friction, jnp.zeros_like(friction), little)
    onward = along(active.direction, moves[n:], n)
    spring = little * weights_of(W, n)[n : 2 * n] * friction * forces[:n]
    held = jnp.any(active.closed & active.stick)
    return onward + jnp.where(held, -spring / 2, creep(size))


# Of directions, and of accelerations: more than what gives way is off by.
_FAR = 1e-2
# So many steps until contacts give way as little as they do; or with projections.
_WAY, _PROJECTIONS, _STEPS = 16, 8, 48
