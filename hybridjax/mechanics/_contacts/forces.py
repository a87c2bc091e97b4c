"""Forces of the contacts in their modes."""

import jax.numpy as jnp

from ..._systems.stabilization import stabilization
from .._dynamics.dot import dot
from .complementarity import Active, contact_forces
from .contact_mode import ContactMode
from .kinematics import Point


def active_in(mode, dtype) -> Active:
    back = (mode == ContactMode.BACKWARD) | (mode == ContactMode.SLIPPING_BACKWARD)
    direction = jnp.where(back, -1, 1).astype(dtype)
    return Active(is_closed(mode), mode == ContactMode.STICKING, direction)


def is_closed(mode):
    slides = (mode == ContactMode.FORWARD) | (mode == ContactMode.BACKWARD)
    slides = slides | (mode >= ContactMode.SLIPPING_FORWARD)
    return (mode == ContactMode.STICKING) | slides


def stabilized(system, p: Point):
    """Accelerations that remove errors of closed contacts."""
    n, rate = system.n_contacts, system.stabilization
    normal = 2 * rate * p.velocity[:n] + rate**2 * p.gap
    return stabilization(jnp.concatenate([normal, rate * p.velocity[n:]]))


def forces_of(system, p: Point, active: Active):
    """The forces, and the accelerations of all gaps and slips."""
    forces = contact_forces(p.W, p.c + stabilized(system, p), active, system.friction)
    return forces, p.c + dot(p.W, forces)
