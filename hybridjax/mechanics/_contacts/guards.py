"""When the guards of contacts fire."""

import jax.numpy as jnp

from ..._jax.branch import cond_any
from ..._jax.diagonal import diagonal
from ..._jax.reduce import any_of
from ..._jax.tracing import stop_gradient
from ..._systems.system import UNWATCHED
from .complementarity import (
    Active,
    force_size,
    friction_limit,
    posedness,
)
from .contact_mode import ContactMode
from .creep import creeps, creeps_on
from .forces import accelerations, correcting, forces_of
from .kinematics import little, onset_speeds, Point, slick, stop_speed
from .slipping_directions import slips_onward
from .tangential import in_space, norm


def watched_values(system, p: Point, active: Active, mode):
    """The guard functions: see `MechanicalSystem`."""
    n = system.n_contacts
    forces, solver = forces_of(system, p, active)
    moves = accelerations(p, forces)
    # Where exactly a departure ends does not matter, as nothing changes there. So
    # it is not ended by rounding, where it begins.
    small = little(p) + correcting(system, p, active)

    # So much is rounding: much of it where contacts are redundant, as each has a share
    # of a force. When all of it is gone, and not before, one by one lifts off.
    _, inverse, _ = solver
    eps = jnp.finfo(p.c.dtype).eps
    rounded = stop_gradient(eps * p.size * jnp.abs(diagonal(inverse)))

    normal = jnp.where(mode == ContactMode.FREE, p.gap, forces[:n] + rounded[:n])
    normal = jnp.where(mode == ContactMode.LIFTING, moves[:n] + small, normal)
    normal = jnp.where(mode == ContactMode.RISING, p.velocity[:n], normal)
    if system.whole.dry:
        # It never opens, also where its largest force is zero.
        normal = jnp.where(system.is_dry, UNWATCHED, normal)
    turns = jnp.where(
        system.apex & (mode == ContactMode.FREE), -p.velocity[:n], UNWATCHED
    )
    if system.tangents is None:
        return jnp.concatenate([normal, turns]) if system.apex else normal

    watched = active.closed & ~slick(system)
    # A contact without a tangential force lifts off, where its cone shrinks to
    # nothing; it does not slip in the same instant.
    rounding = jnp.finfo(p.c.dtype).eps ** 0.75 * force_size(p.W, p.size, forces)

    limit = friction_limit(system.static_friction, forces[:n])
    may_slip = active.stick & jnp.isfinite(system.static_friction)
    # All that slide lose it in the same instant, but it is the least that jams.
    posed = posedness(p.W, active, system.friction, solver, derivative=True)
    later = jnp.where(jnp.arange(n) == jnp.argmin(posed), 0, eps**0.25)
    solvable = jnp.min(posed) + later
    solvable = jnp.where(watched & ~active.stick, solvable, UNWATCHED)
    jammed = mode == ContactMode.JAMMED
    solvable = jnp.where(jammed, -1, solvable)

    def alone(others, solvable):
        # What jams has its impulse first: until then there are no forces.
        others = jnp.where(jammed.any(), UNWATCHED, others)
        return jnp.concatenate([others, solvable])

    if in_space(p.c.shape[0], n):
        cone = limit - norm(forces[n:], n) + stop_gradient(rounding)
        slip, stop = norm(p.velocity[n:], n), stop_speed(system, p)
        slipping = mode == ContactMode.SLIPPING
        # Few contacts slip for long, and this is a system of equations.
        onward = cond_any(
            any_of(slipping),
            lambda: slips_onward(p.W, p.c, active, system.friction),
            lambda: jnp.full_like(cone, UNWATCHED),
        )
        ends = jnp.where(may_slip, cone, UNWATCHED)
        ends = jnp.where(mode == ContactMode.SLIDING, slip - stop, ends)
        slips_on = creeps_on(system, p, active, forces, onward)
        ends = jnp.where(slipping, slips_on, ends)
        _, slides_at = onset_speeds(system, p)
        departs = jnp.where(slipping, slides_at - slip, UNWATCHED)
        slow = creeps(system, p, active, forces)
        departs = jnp.where(mode == ContactMode.SLIDING, slow, departs)
        ends, departs = (jnp.where(watched, g, UNWATCHED) for g in (ends, departs))
        ends = jnp.where(active.closed, ends, turns)
        return alone(jnp.concatenate([normal, ends, departs]), solvable)

    def tangent(sign, slides, slipping):
        cone = limit - sign * forces[n:] + stop_gradient(rounding)
        g = jnp.where(may_slip, cone, UNWATCHED)
        g = jnp.where(mode == slides, sign * p.velocity[n:], g)
        g = jnp.where(mode == slipping, sign * moves[n:] + small, g)
        return jnp.where(watched, g, UNWATCHED)

    forward = tangent(1, ContactMode.FORWARD, ContactMode.SLIPPING_FORWARD)
    backward = tangent(-1, ContactMode.BACKWARD, ContactMode.SLIPPING_BACKWARD)
    forward = jnp.where(active.closed, forward, turns)
    return alone(jnp.concatenate([normal, forward, backward]), solvable)
