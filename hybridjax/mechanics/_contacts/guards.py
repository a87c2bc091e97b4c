"""When the guards of contacts fire."""

import jax.numpy as jnp

from ..._jax.tracing import stop_gradient
from ..._systems.system import UNWATCHED
from .complementarity import force_size, friction_limit, posedness
from .contact_mode import ContactMode
from .forces import active_in, forces_of
from .kinematics import little, point, slick


def watched_values(system, t, x, mode, args):
    """The guard functions: see `MechanicalSystem`."""
    n = system.n_contacts
    q, v = x
    p = point(system, t, q, v, args)
    active = active_in(mode, q.dtype)
    forces, moves = forces_of(system, p, active)
    # Where exactly a departure ends does not matter, as nothing changes there. So
    # it is not ended by rounding, where it begins.
    small = little(p)

    normal = jnp.where(mode == ContactMode.FREE, p.gap, forces[:n])
    normal = jnp.where(mode == ContactMode.LIFTING, moves[:n] + small, normal)
    normal = jnp.where(mode == ContactMode.RISING, p.velocity[:n], normal)
    turns = jnp.where(
        system.apex & (mode == ContactMode.FREE), -p.velocity[:n], UNWATCHED
    )
    if system.tangents is None:
        return jnp.concatenate([normal, turns]) if system.apex else normal

    watched = active.closed & ~slick(system)
    # A contact without a tangential force lifts off, where its cone shrinks to
    # nothing; it does not slip in the same instant.
    rounding = jnp.finfo(q.dtype).eps ** 0.75 * force_size(p.W, p.size, forces)

    limit = friction_limit(system.static_friction, forces[:n])
    may_slip = active.stick & jnp.isfinite(system.static_friction)

    def tangent(sign, slides, slipping):
        cone = limit - sign * forces[n:] + stop_gradient(rounding)
        g = jnp.where(may_slip, cone, UNWATCHED)
        g = jnp.where(mode == slides, sign * p.velocity[n:], g)
        g = jnp.where(mode == slipping, sign * moves[n:] + small, g)
        return jnp.where(watched, g, UNWATCHED)

    forward = tangent(1, ContactMode.FORWARD, ContactMode.SLIPPING_FORWARD)
    backward = tangent(-1, ContactMode.BACKWARD, ContactMode.SLIPPING_BACKWARD)
    solvable = posedness(p.W, active, system.friction)
    solvable = jnp.where(watched & ~active.stick, solvable, UNWATCHED)
    forward = jnp.where(active.closed, forward, turns)
    return jnp.concatenate([normal, forward, backward, solvable])
