"""Impacts: contacts that touch down."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._jax.branch import where
from ..._jax.gate import gate
from ..._jax.tracing import stop_gradient
from ..._systems.rest import ROUNDING
from .._dynamics.dot import dot
from .active_contacts import find_active
from .complementarity import Active, are_redundant, contact_forces
from .contact_mode import ContactMode
from .forces import is_closed
from .kinematics import little, Point, slick, still
from .sliding_directions import turning
from .tangential import in_space, norm, of_contacts, unit


def impact(system, p: Point, t, q, v, mode, hit, jams, args):
    """The state after an impact of the contacts `hit`, which contacts are closed
    after it, and those for which there is no solution. (69)"""
    n = system.n_contacts
    approach = p.velocity[:n]
    others = hit.any() & _together(p, mode, hit)
    hit = hit | others
    e = system.restitution(*gate((q, v, args), hit.any())).astype(q.dtype)
    stays, held, least = comes_to_rest(system, p, hit, e)
    e = jnp.where(stays | jams, 0, e)
    c = jnp.concatenate([jnp.where(hit, 1 + e, 1) * approach, p.velocity[n:]])
    closed = is_closed(mode) | hit
    # One that lifts off in this instant may be pushed back: two of them would be hit in
    # turn, each while the other one lifts off, forever.
    leaves = mode == ContactMode.LIFTING
    # So may one that has just opened slowly, and has no height that is seen.
    free = (mode == ContactMode.FREE) | (mode == ContactMode.RISING)
    leaves = leaves | (free & (approach >= 0) & (approach <= least))
    closed = closed | (leaves & is_there(p, closed))
    unseen = jnp.sqrt(2 * _unseen(p) * jnp.abs(p.c[:n]))
    sought = c, p.speed, held, unseen
    if system.tangents is not None:
        sought = where(jams, _a_moment_later(p, closed, hit), sought)
    rows, size, held, unseen = sought
    can_stick = closed & ~slick(system)
    tangential = p.velocity[n:] if system.tangents is not None else approach
    guess = Active(closed, can_stick, unit(tangential, n))
    active, before, unsolved = find_active(
        p.W,
        rows,
        size,
        guess,
        can_stick,
        ~closed,
        held,
        jnp.zeros_like(hit),
        system.friction,
        system.static_friction,
        exact=0.45,  # Velocities have the errors of the solver.
        least=least,
        drive=p.c,
        unseen=unseen,
        clings=mode == ContactMode.STICKING,
    )
    active = _turned(p, c, active, before, can_stick, system.friction)
    opens = closed & ~active.closed
    impulses = contact_forces(p.W, c, active, system.friction)
    v = jnp.where(hit.any(), v + dot(p.response, impulses), v)
    bounces = hit & (e * -approach > 0)
    # What has no speed has not left: it may follow from the others that it has none.
    after = c + dot(p.W, impulses)
    slow = jnp.finfo(c.dtype).eps ** 0.75 * p.speed
    # And what is free, but at the surface, may be held there by what has touched it.
    rests = is_there(p, closed) & (jnp.abs(after[:n]) <= slow)
    if in_space(c.shape[0], n):
        # Nor has what may be pushed back when slides that are slow now end.
        slides = active.closed & ~active.stick & can_stick & ~bounces
        ends = slides & still(system, eqx.tree_at(lambda p: p.velocity, p, after))
        slow = slow + jnp.sum(jnp.where(ends, norm(after[n:], n), 0))
    none = opens & (after[:n] <= slow)
    remains = (active.closed | none | rests) & ~bounces
    # Those that were held back without friction slide on with it, and so does what has
    # opened, and has not left.
    onward = unit(after[n:] if system.tangents is not None else after, n)
    slides_on = ~active.closed | (norm(active.direction, n) == 0)
    slides_on = of_contacts(slides_on, onward.size)
    direction = jnp.where(slides_on, onward, active.direction)
    active = Active(remains, active.stick & active.closed, direction)
    # Those that touch down with it are only near their surfaces, or are there now,
    # but not in a nearby motion. Those that open have drifted: from below, they might
    # not rise above their surfaces. And one that has hardly lifted off may hit below.
    q = jnp.where(hit.any(), q + closing(system, q, p, guess), q)
    return q, v, active, unsolved


def _turned(p: Point, c, active: Active, before: Active, free, friction):
    """Directions of slip with their derivatives: those of the impact, as they are
    `before` slow contacts are pulled back, and of these what it leaves them."""
    n = friction.shape[0]
    if not in_space(c.shape[0], n):
        return active
    before = turning(p.W, c, before, before.direction, free, friction)
    left = c + dot(p.W, contact_forces(p.W, c, before, friction))
    of_all = lambda each: of_contacts(each, 2 * n)
    late = of_all(active.closed & ~before.closed)
    direction = jnp.where(late, unit(left[n:], n), before.direction)
    some = of_all(norm(active.direction, n) > 0)
    direction = jnp.where(some, direction, 0)
    return eqx.tree_at(lambda a: a.direction, active, direction)


def _a_moment_later(p: Point, closed, hit):
    """What impulses of a jam are sought by: velocities, their size, and that none is
    held, and no pull is unseen.

    Where no forces agree with slips the impulses of a step do that is so short that
    slips hardly change but by them (Moreau). Those of no time at all also allow that
    nothing happens.
    """
    n = closed.shape[0]
    fastest = jnp.max(jnp.where(closed, norm(p.velocity[n:], n), 0))
    dt = jnp.finfo(p.c.dtype).eps ** 0.25 * fastest / jnp.where(p.size > 0, p.size, 1)
    slips = jnp.where(np.arange(p.c.size) < n, 0, p.velocity)
    rates = p.c
    if not in_space(p.c.size, hit.size):
        # Where a flow leads to a jam, nothing presses any more what does.
        little_press = jnp.finfo(p.c.dtype).eps ** 0.125 * p.size
        rates = rates - jnp.pad(jnp.where(hit, little_press, 0), (0, hit.size))
    return dt * rates + slips, dt * p.size, jnp.asarray(False), jnp.zeros_like(p.gap)


def is_there(p: Point, closed) -> Bool[Array, " n_contacts"]:
    """Contacts that are as near to their surfaces as the closed ones, on which they may
    depend."""
    rounding = jnp.finfo(p.c.dtype).eps ** 0.75 * (1 + p.length)
    return _as_little(p.gap, rounding, closed)


def rests_there(system, p: Point, closed) -> Bool[Array, " n_contacts"]:
    """Those that also move as little as the closed ones."""
    still = jnp.finfo(p.c.dtype).eps ** 0.75 * p.speed
    still = still + little(p) / (1 + system.stabilization)
    return is_there(p, closed) & _as_little(p.velocity[: closed.size], still, closed)


def _as_little(value, rounding, closed):
    drift = jnp.max(jnp.where(closed, jnp.abs(value), 0))
    return jnp.abs(value) <= rounding + _DRIFT * drift


def comes_to_rest(
    system, p: Point, hit, e
) -> tuple[Bool[Array, ""], Bool[Array, ""], Float[Array, " n_contacts"]]:
    """Would all contacts that hit leave too slowly, to be pressed back at once? And do
    they come so slowly too, that no other has to open? And the least speed at which
    each of the others, if it is pressed back, leaves its surface."""
    p, e = stop_gradient((p, e))
    n = hit.shape[0]
    limit = system.rest_speed(p.c[:n], _unseen(p))
    approach, pressed = -p.velocity[:n], p.c[:n] < -little(p)
    # What loses nothing bounces for ever.
    stays = pressed & (e < 1) & (e * approach <= limit)
    # What does not bounce need not be pressed: if it has to open, it does by its force.
    slow = (stays | (e == 0)) & (approach <= limit)
    least = jnp.where(hit, -jnp.inf, limit)
    return (stays | ~hit).all(), (slow | ~hit).all(), least


def _unseen(p: Point) -> Float[Array, ""]:
    """The height of bounces that are not seen."""
    return ROUNDING * jnp.finfo(p.c.dtype).eps * p.length


def closing(system, q, p: Point, active: Active) -> Float[Array, " d"]:
    """What is to be added to `q` to close the gaps of closed contacts."""
    normal = Active(active.closed, jnp.zeros_like(active.stick), active.direction)
    rows = jnp.concatenate([p.gap, p.velocity[system.n_contacts :]])
    push = contact_forces(p.W, rows, normal, jnp.zeros_like(system.friction))
    return system.body.qdot(q, dot(p.response, push))


def stopping(system, p: Point, active: Active) -> Float[Array, " d"]:
    """What is to be added to `v` to stop closed and sticking contacts. Others slide on
    with their friction, as in the time that it would have taken."""
    return dot(p.response, contact_forces(p.W, p.velocity, active, system.friction))


def _together(p: Point, mode, hit) -> Bool[Array, " n_contacts"]:
    """Contacts that touch down in the same instant as `hit`, if they are redundant.

    Others touch down one after the other, in an order on which the outcome may
    depend. The four feet of a rigid table would take turns forever.
    """
    n, closed = hit.shape[0], is_closed(mode)
    lands = (mode == ContactMode.FREE) & is_there(p, closed | hit)
    lands = (lands & (p.velocity[:n] < 0)) | hit
    return lands & are_redundant(p.W[:n, :n], lands | closed)


# How far one may be from its surface, on which others rest, and how fast it may be: in
# relation to what these are off by.
_DRIFT = 8
