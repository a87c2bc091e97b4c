"""Which of the closed contacts stay closed, stick or slide, by their forces."""

import jax.numpy as jnp

from ..._jax.tracing import stop_gradient
from .active_contacts import find_active, opening, others_change
from .complementarity import Active
from .contact_mode import ContactMode
from .forces import accelerations, correcting, forces_of, slips, stabilized
from .kinematics import little, Point, slick, still
from .tangential import along, in_space


def settle(
    system,
    p: Point,
    mode,
    guess: Active,
    known,
    impact,
    released,
    waits=False,
    *,
    drifts: bool,
):
    """The modes of contacts that are closed in `guess`, by their forces, and those
    for which there is no solution: the first of them is jammed. Those `released` are
    about to pull; what `waits` is open, and closes where it would sink. Where the state
    `drifts`, it keeps its errors, and forces that remove them."""
    # Nothing of it is differentiated: the modes are discrete.
    system, p = stop_gradient((system, p))
    n = system.n_contacts
    departing = slips(mode) & ~impact
    resting = guess.stick | still(system, p)
    if system.tangents is not None:
        # What departed a while ago has a speed by now, and cannot stop at once.
        has_speed = along(guess.direction, p.velocity[n:], n) > 0
        resting = resting | (departing & ~has_speed)
    resting = resting & guess.closed & ~slick(system) & ~known
    stick = (guess.stick | (resting & ~departing)) & ~slick(system) & ~known
    guess = Active(guess.closed, stick, guess.direction)
    # With other forces than the guards see, two feet at one place take turns to slip.
    c = p.c + stabilized(system, p) if drifts else p.c
    # As the guards see them: without those of what was held without a force until now;
    # and what is about to stop has a speed, and no error.
    returned = guess.closed & (mode == ContactMode.LIFTING) & ~impact
    sticks = guess.stick & (mode == ContactMode.STICKING)
    held = Active(guess.closed & ~returned, sticks, guess.direction)
    errors = correcting(system, p, held)
    active, _, lost = find_active(
        p.W,
        c,
        p.size,
        guess,
        resting,
        known,
        jnp.asarray(False),
        released,
        system.friction,
        system.static_friction,
        exact=0.6,
        errors=errors,
        at_rest=True,
        waits=waits,
    )
    moves = accelerations(p, forces_of(system, p, active)[0])
    forward, backward = (
        jnp.where(resting | known, int(slipping), int(sliding))
        for slipping, sliding in (
            (ContactMode.SLIPPING_FORWARD, ContactMode.FORWARD),
            (ContactMode.SLIPPING_BACKWARD, ContactMode.BACKWARD),
        )
    )
    if in_space(p.c.shape[0], n):
        slipping = (resting | known) & ~slick(system)
        slides = jnp.where(
            slipping, int(ContactMode.SLIPPING), int(ContactMode.SLIDING)
        )
    else:
        slides = jnp.where(active.direction > 0, forward, backward)
        slides = jnp.where(slick(system), int(ContactMode.FORWARD), slides)
    closed = jnp.where(active.stick, int(ContactMode.STICKING), slides)
    # Free ones: after an impact each has a velocity; otherwise nothing has changed,
    # but a departure may have ended with a jump of the forces.
    up = ContactMode.RISING if system.apex else ContactMode.FREE
    rising = jnp.where(p.velocity[:n] > 0, int(up), int(ContactMode.FREE))
    opened = guess.closed & ~active.closed
    off = moves[:n] + little(p) + errors > 0
    # One without a force leaves, and no acceleration changes with it.
    left = opening(guess, released, system.static_friction)
    off = off | (left.any() & ~others_change(guess, active, left))
    lifts = (opened | (mode == ContactMode.LIFTING)) & off & ~returned
    stays = ~opened & (lifts | (mode != ContactMode.LIFTING))
    free = jnp.where(impact | ~stays, rising, mode)
    free = jnp.where(opened & lifts, int(ContactMode.LIFTING), free)
    settled = jnp.where(active.closed, closed, free)
    # Where there are no forces there may be impulses, if it is for friction.
    none = ContactMode.UNSOLVABLE if system.tangents is None else ContactMode.JAMMED
    first = lost & (jnp.arange(n) == jnp.argmax(lost))
    return jnp.where(first, int(none), settled).astype(mode.dtype), lost
