"""Contact forces, and impulses, at all contacts at once.

With `lam` the normal forces of all contacts and then, if there is friction, the
tangential ones, the accelerations of gaps and slips are `c + W lam`, where
`W = J M^-1 J^T`: the block system of Kong et al., (63), after its first row has been
eliminated. Impulses obey the same equations with velocities, (69).
"""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float

from .._dynamics.dot import dot
from .._dynamics.least_solve import least_solve


class Active(eqx.Module):
    """Which contacts are closed, which of these stick, and where the others slide."""

    closed: Bool[Array, " n"]
    stick: Bool[Array, " n"]
    direction: Float[Array, " n"]  # of sliding: 1 or -1


def contact_forces(
    W: Float[Array, "rows rows"],
    c: Float[Array, " rows"],
    active: Active,
    friction: Float[Array, " n"],
) -> Float[Array, " rows"]:
    """The forces that make the rows of closed (and sticking) contacts zero.

    One linear system of one size, whatever is active: the rows of other contacts say
    that their forces are zero, and those of sliding ones that they are friction.
    """
    n = friction.shape[0]
    rows, others = active.closed, np.eye(c.shape[0], dtype=c.dtype)
    if c.shape[0] > n:
        rows = jnp.concatenate([active.closed, active.closed & active.stick])
        slides = active.closed & ~active.stick
        share = jnp.where(slides, active.direction * friction, 0)
        share = jnp.concatenate([jnp.zeros_like(share), share])
        others = others + np.eye(c.shape[0], k=-n, dtype=c.dtype) * share[:, None]
    matrix = jnp.where(rows[:, None], W, others)
    forces = least_solve(
        matrix, jnp.where(rows, -c, 0), jnp.where(rows, jnp.diagonal(W), 0)
    )
    # To the last digit, where there is no contact.
    closed = jnp.concatenate([active.closed] * (c.shape[0] // n))
    return jnp.where(closed, forces, 0)


def find_active(
    W: Float[Array, "rows rows"],
    c: Float[Array, " rows"],
    size: Float[Array, ""],
    guess: Active,
    resting: Bool[Array, " n"],
    known: Bool[Array, " n"],
    held: Bool[Array, ""],
    friction: Float[Array, " n"],
    static_friction: Float[Array, " n"],
    exact: float,
) -> tuple[Active, Bool[Array, " n"]]:
    """Which of the contacts that are closed in `guess` stay closed, and stick.

    A closed contact must not pull, nor an open one sink; a sticking one must stay
    within its friction cone, and one that begins to slide must move against its
    friction. Contacts that do not are changed, one at a time: the first one, as in
    Murty's least-index method.

    **Arguments:**

    - `size`: of what `c` is the sum of, for rounding.
    - `guess`: only its closed contacts can become active.
    - `resting`: the contacts that may stick, or begin to slide; others slide on in
        their direction.
    - `known`: contacts that stay what they are.
    - `held`: whether all stay closed, also those that have to pull for that.
    - `exact`: the share of the digits, of forces and accelerations, that is relied on.

    **Returns:**

    The active contacts, and the contacts for which nothing was found.
    """
    W, c, friction, static_friction = lax.stop_gradient(
        (W, c, friction, static_friction)
    )
    n = friction.shape[0]
    tangential = c.shape[0] > n
    members = guess.closed
    limit = 8 * n + 8

    def faults(active: Active, i):
        # Where contacts are redundant, what is left of errors can go round in circles:
        # the longer it takes, the less is demanded.
        tol = jnp.finfo(c.dtype).eps ** (exact - 0.1 * i.astype(c.dtype) / limit)
        force = contact_forces(W, c, active, friction)
        moves = c + dot(W, force)
        little_force = tol * force_size(W, size, force)
        little_move = tol * size
        closed = active.closed
        pulls = closed & (force[:n] < -little_force)
        sinks = members & ~closed & (moves[:n] < -little_move)
        normal = (pulls | sinks) & ~known & ~held
        if not tangential:
            return normal, jnp.zeros_like(normal), active.direction
        press = jnp.where(held, jnp.abs(force[:n]), force[:n])
        cone = friction_limit(static_friction, press) + little_force
        slips = closed & active.stick & (jnp.abs(force[n:]) > cone)
        against = active.direction * moves[n:] < -little_move
        stops = closed & ~active.stick & resting & against
        direction = jnp.where(slips, -jnp.sign(force[n:]), active.direction)
        return normal, (slips | stops) & ~known, direction

    def cond(carry):
        i, _, unsolved = carry
        return (i < 2 * limit) & unsolved.any()

    def body(carry):
        i, active, _ = carry
        # Those that pull may only do so because others stick that cannot. So those that
        # are wrong along their tangent come first; in the second attempt, they do not.
        tangent_first = i < limit
        active = jtu.tree_map(lambda a, g: jnp.where(i == limit, g, a), active, guess)
        normal, tangent, direction = faults(active, i % limit)
        bad = normal | tangent
        candidates = jnp.where(tangent_first & tangent.any(), tangent, bad)
        first = candidates & (jnp.cumsum(candidates) == 1)
        # One that could not stick may well be able to slide, without pulling.
        turn = first & tangent
        flip = first & ~turn
        changed = Active(
            closed=active.closed ^ flip,
            stick=active.stick ^ turn,
            direction=jnp.where(turn, direction, active.direction),
        )
        return i + 1, changed, bad

    start = (jnp.asarray(0, jnp.int32), guess, members)
    _, active, unsolved = lax.while_loop(cond, body, start)
    if tangential:
        unsolved = unsolved | ill_posed(W, active, friction)
    return active, unsolved


def force_size(W, size, force) -> Float[Array, ""]:
    """The size of contact forces, also where they happen to vanish: with the one that
    would move a contact as much as `size`."""
    own = jnp.diagonal(W)
    return jnp.max(jnp.abs(force)) + size / jnp.max(jnp.where(own > 0, own, 1))


def friction_limit(static_friction, press) -> Float[Array, " n"]:
    """The largest tangential force of sticking contacts; infinite if they have none."""
    endless = jnp.isinf(static_friction)
    limit = jnp.where(endless, 0, static_friction) * press
    return jnp.where(endless, jnp.inf, limit)


def ill_posed(W, active: Active, friction) -> Bool[Array, " n"]:
    """Sliding contacts whose friction is so large that pushing harder makes the gap
    smaller: Painlevé's paradox."""
    return active.closed & ~active.stick & (posedness(W, active, friction) <= 0)


def posedness(W, active: Active, friction) -> Float[Array, " n"]:
    """How much a gap is opened by a force on it together with the friction that goes
    with it, in relation to the force alone."""
    n = friction.shape[0]
    own = jnp.diagonal(W)[:n]
    cross = jnp.diagonal(W[:n, n:])
    return 1 - active.direction * friction * cross / jnp.where(own > 0, own, 1)
