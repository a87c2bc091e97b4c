"""Contacts in space that slip slowly, for long: see `docs/concepts/friction.md`."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._jax.branch import cond_any
from ..._jax.reduce import any_of
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .complementarity import Active
from .contact_mode import ContactMode
from .forces import accelerations, active_in, forces_of
from .kinematics import onset_speeds, Point, slick, stop_speed
from .tangential import across, along, norm, of_contacts


def creeps(system, p: Point, active: Active, forces) -> Float[Array, " n"]:
    """Negative for slides that are slow, and neither slow down fast nor turn."""
    n = system.n_contacts
    slow, fast = onset_speeds(system, p)
    u, moves = active.direction, accelerations(p, forces)[n:]
    rubs = _by_friction(system, p, forces)
    faster = (norm(p.velocity[n:], n) / (_BEGINS * fast) - 1) * rubs
    brakes = -along(u, moves, n) - rubs / 8
    turns = jnp.abs(along(across(u, n), moves, n)) - rubs / 32
    creeps = jnp.maximum(faster, jnp.maximum(brakes, turns))
    return jnp.where(fast > slow, creeps, p.size)


def creeps_on(system, p: Point, active: Active, forces, onward) -> Float[Array, " n"]:
    """Negative for slips, which go `onward`, or slow down: faster than what creeps, or
    until they are as slow as slides that end."""
    n = system.n_contacts
    slow, fast = onset_speeds(system, p)
    # Not the length: where the slip passes zero aside, its friction is against the
    # direction in which it goes.
    speed = along(active.direction, p.velocity[n:], n)
    rubs = _by_friction(system, p, forces)
    slowly = jnp.minimum(onward + rubs / 4, (speed / stop_speed(system, p) - 1) * rubs)
    return jnp.where(fast > slow, jnp.maximum(onward, slowly), onward)


def with_creep(system, p: Point, mode):
    """The modes, with those of slides that creep already: their guards have no zero to
    come."""
    system, p = stop_gradient((system, p))
    n = system.n_contacts
    _, fast = onset_speeds(system, p)
    slow = (mode == ContactMode.SLIDING) & (norm(p.velocity[n:], n) < fast)
    slow = slow & ~slick(system)

    def creep():
        active = active_in(system, p, mode)
        forces, _ = forces_of(system, p, active)
        begins = slow & (creeps(system, p, active, forces) < 0)
        return jnp.where(begins, int(ContactMode.SLIPPING), mode)

    return cond_any(any_of(slow), creep, lambda: mode)


def _by_friction(system, p: Point, forces):
    """How much that of all contacts accelerates them, at most."""
    n = system.n_contacts
    rubs = of_contacts(jnp.maximum(system.friction * forces[:n], 0), 2 * n)
    most = dot(jnp.abs(p.W[n:, n:]), rubs)
    return jnp.maximum(most[:n], most[n:])


# Of the speed from which on what slips slides. (Less, as else it would begin to creep
# right then.)
_BEGINS = 0.8
