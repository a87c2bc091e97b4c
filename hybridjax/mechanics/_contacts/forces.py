"""Forces of the contacts in their modes."""

import equinox as eqx
import jax.numpy as jnp

from ..._systems.stabilization import stabilization
from .._dynamics.dot import dot
from .complementarity import Active, contact_forces_and_solver, held_rows
from .contact_mode import ContactMode
from .kinematics import onset_speeds, Point
from .sliding_directions import turning
from .slipping_directions import give, slipping_directions
from .tangential import along, in_space, norm, of_contacts, unit


def active_in(system, p: Point, mode) -> Active:
    n = system.n_contacts
    closed, sticks = is_closed(mode), mode == ContactMode.STICKING
    if in_space(p.c.shape[0], n):
        u, free, friction = unit(p.velocity[n:], n), slips(mode), system.friction
        active = Active(closed, sticks, u)
        slow, _ = onset_speeds(system, p)
        slips_so = norm(p.velocity[n:], n) > slow
        found, _ = slipping_directions(p.W, p.c, active, free, friction, slips_so)
        active = turning(p.W, p.c, found, u, free, friction, give(p.c.dtype))
        return _turned_to_slips(system, p, active, u, free)
    back = (mode == ContactMode.BACKWARD) | (mode == ContactMode.SLIPPING_BACKWARD)
    return Active(closed, sticks, jnp.where(back, -1, 1).astype(p.c.dtype))


def _turned_to_slips(system, p: Point, active: Active, u, free) -> Active:
    """The faster a contact slips that is `free` to turn, the nearer is its direction to
    that of its slip, `u`: see `docs/concepts/friction.md`."""
    n = system.n_contacts
    slow, fast = onset_speeds(system, p)
    share = (norm(p.velocity[n:], n) - slow) / jnp.where(fast > slow, fast - slow, 1)
    # (What has a slip against it has yet to begin.)
    turns = free & (fast > slow) & (along(active.direction, u, n) > 0)
    share = of_contacts(jnp.where(turns, jnp.clip(share, 0, 1) ** 2, 0), 2 * n)
    both = (1 - share) * active.direction + share * u
    direction = jnp.where(share > 0, unit(both, n), active.direction)
    return eqx.tree_at(lambda a: a.direction, active, direction)


def is_closed(mode):
    jammed = mode == ContactMode.JAMMED
    return (mode == ContactMode.STICKING) | slides(mode) | slips(mode) | jammed


def slides(mode):
    """Contacts with a speed of slip that is not zero."""
    slides = (mode == ContactMode.FORWARD) | (mode == ContactMode.BACKWARD)
    return slides | (mode == ContactMode.SLIDING)


def slips(mode):
    """Contacts that depart from rest along their surface."""
    slips = (mode >= ContactMode.SLIPPING_FORWARD) & (mode <= ContactMode.SLIPPING)
    return slips & (mode != ContactMode.SLIDING)


def stabilized(system, p: Point):
    """Accelerations that remove errors of closed contacts."""
    return stabilization(drift(system, p))


def drift(system, p: Point):
    """The same, with their derivatives."""
    n, rate = system.n_contacts, system.stabilization
    normal = 2 * rate * p.velocity[:n] + rate**2 * p.gap
    return jnp.concatenate([normal, rate * p.velocity[n:]])


def correcting(system, p: Point, active: Active):
    """The largest acceleration of what closed contacts hold without a force of its own,
    as one point of a flat foot, or of a link that lies on the ground: all that it does
    is to remove the errors of those."""
    errors = jnp.abs(drift(system, p))
    held = held_rows(active, errors.shape[0])
    return 2 * jnp.max(jnp.where(held, errors, 0))


def forces_of(system, p: Point, active: Active):
    """The forces, and the solver of `contact_forces_and_solver`."""
    c = p.c + stabilized(system, p)
    return contact_forces_and_solver(p.W, c, active, system.friction)


def accelerations(p: Point, forces):
    """Those of all gaps and slips."""
    return p.c + dot(p.W, forces)
