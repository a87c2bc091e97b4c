"""What happens when a guard of a contact fires."""

import equinox as eqx
import jax.numpy as jnp

from ..._jax.branch import cond_any, where
from ..._jax.division import divided
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .complementarity import Active, are_redundant, friction_limit, held_rows
from .contact_mode import ContactMode
from .creep import with_creep
from .forces import accelerations, active_in, forces_of, is_closed, slides
from .impact import impact, rests_there, stopping
from .kinematics import little, onset_speeds, Point, point, slick, stop_speed
from .settling import settle
from .tangential import along, in_space, norm, of_contacts, unit


def transition(system, t, x, mode, event, args):
    """The state and the mode after it."""
    n = system.n_contacts
    q, v = x
    p = point(system, t, q, v, args)
    spatial = in_space(p.c.shape[0], n)
    kind, contact = divided(event, n)
    here, before = jnp.arange(n) == contact, mode[contact]
    tangential = (kind == 1) | (kind == 2)
    touches = (kind == 0) & (before == ContactMode.FREE)
    lifts = (kind == 0) & is_closed(before)
    leaves_cone = tangential & (before == ContactMode.STICKING)
    active = active_in(system, p, mode)
    # In space, what slips and slows down comes to rest where it is slow, and does not
    # creep; else it slides from then on.
    slows_down = (kind == 1) & (before == ContactMode.SLIPPING)
    if spatial:
        forward = along(active.direction, p.velocity[n:], n)
        slow, fast = onset_speeds(system, p)
        # (That of its guard, up to errors.)
        ends = (forward <= 1.5 * stop_speed(system, p)) | (fast <= slow)
        ends = ends & (norm(p.velocity[n:], n) <= slow)
        slows_down = slows_down & (here & ends).any()
    stops = (slides(before) & ((kind == 1) if spatial else tangential)) | slows_down
    # What others have held at its surface, without a force: one that they hold no
    # longer, and those that they may not hold after this.
    waits = (mode == ContactMode.LIFTING) & rests_there(system, p, active.closed)
    returns, waits = waits & here & (kind == 0), waits & ~here
    # An impact without a collision.
    jams = (kind == 3) & is_closed(before)
    hits = touches | jams

    rate, before_impact = p.velocity, v
    hit = here & hits
    q, v, struck, unsolved = impact(system, p, t, q, v, mode, hit, jams, args)

    direction, leave = active.direction, here & leaves_cone
    if spatial:
        leave = leave | (leaves_cone & _together(system, p, active))
    else:
        # The force on a contact has left its cone on the side to which it pushes, and
        # the contact slides to the other.
        away = jnp.where(kind == 1, -1, 1).astype(q.dtype)
        direction = jnp.where(leave, away, direction)
    guess = Active(
        closed=active.closed | returns,
        stick=(active.stick | (here & stops)) & ~leave,
        direction=direction,
    )
    guess = where(hits, struck, guess)
    direction = guess.direction
    v_after = v
    if spatial:
        # A slide ends at a small speed, and not at none.
        v_after = v + jnp.where(stops, stopping(system, p, guess), 0)
    # With what has been computed where it was before: it has hardly moved.
    later = t, x[0], v_after, args
    # In the plane nothing of it is differentiated.
    after = point(system, *(later if spatial else stop_gradient(later)))
    if spatial:
        # Others that are as slow slide in other directions then.
        turned = stops & of_contacts((mode == ContactMode.SLIDING) & ~here, 2 * n)
        onward = jnp.where(turned, unit(after.velocity[n:], n), guess.direction)
        guess = eqx.tree_at(lambda a: a.direction, guess, onward)
    # (With a force that is zero, nothing changes for them.)
    given = leave, hits, here & lifts, waits & ~hits & ~lifts
    settled, lost = settle(system, after, mode, guess, *given, drifts=not spatial)

    # The end of a departure, or an apex, changes only what is watched.
    up = ContactMode.RISING if system.apex else ContactMode.FREE
    successor = jnp.asarray(_successors(int(up)), mode.dtype)[before]
    watch_on = jnp.where(here, successor, mode)
    changes = hits | lifts | leaves_cone | stops | returns.any()
    if spatial:
        # What begins to lift off or to slip has no speed yet, at the end of the slide
        # that begins it. That is still to come, where a slide has not just begun.
        ends = stops & ~slows_down & ~lost.any()
        sticks = (settled == ContactMode.STICKING) | (here & (slows_down | ends))
        # Nor has what has stuck, and its friction no direction.
        sticks = sticks | jnp.where(hits, struck.stick, active.stick)
        held = Active(guess.closed, sticks, direction)
        rates = lambda v: rate + dot(p.jacobian, v - before_impact)
        at = lambda p, rates: eqx.tree_at(lambda p: p.velocity, p, rates)

        def gains():
            # Also others that are as slow are at rest then.
            moves_on = jnp.where(held_rows(held, rate.size), 0, after.velocity)
            rests = at(after, moves_on)
            return _gained(system, p, active, here, rests, held, settled)

        gained = cond_any(ends, gains, lambda: jnp.zeros_like(rate))
        gained = jnp.where(ends, gained, 0)
        v = v + jnp.where(changes, stopping(system, at(p, rates(v) + gained), held), 0)
        # They may have stopped others.
        slides_on = norm(rates(v)[n:], n) > stop_speed(system, p)
        stopped = (settled == ContactMode.SLIDING) & ~slides_on & ~slick(system)
        settled = jnp.where(stopped, int(ContactMode.SLIPPING), settled)
        # And what has opened may be held again: the fourth foot, by three of them.
        rests = rests_there(system, at(p, rates(v)), is_closed(settled))
        rests = rests & (settled == ContactMode.FREE)
        settled = jnp.where(rests, int(ContactMode.LIFTING), settled)
        settled = with_creep(system, at(p, rates(v)), settled)
    mode = jnp.where(changes, settled, watch_on)
    lost = (jams & lost) | (hits & unsolved)
    return (q, v), jnp.where(lost, int(ContactMode.UNSOLVABLE), mode)


def _gained(system, p: Point, active: Active, here, after: Point, held, settled):
    """What rates that were `held` gain, with the modes and in the state `after` it,
    until a slide would have ended: see `docs/concepts/friction.md`."""
    n = system.n_contacts
    moves = accelerations(p, forces_of(system, p, active)[0])
    of_one = lambda each: jnp.sum(jnp.where(here, each, 0))
    slip, slows = norm(p.velocity[n:], n), -along(active.direction, moves[n:], n)
    slip, slows = of_one(slip), of_one(slows)
    active = active_in(system, after, settled)
    moves = accelerations(after, forces_of(system, after, active)[0])
    size = moves.size
    moves = jnp.where(held_rows(held, size) & ~held_rows(active, size), moves, 0)
    # No more than that of a slide, where this hardly slows down.
    least = jnp.max(jnp.abs(moves)) / _MOST + little(p)
    return moves * slip / jnp.maximum(slows, least)


def _together(system, p: Point, active: Active):
    """Contacts in space that stick, and leave their cones in the same instant as
    another one, if they are redundant.

    None of the feet of a rigid body slips along the line to one that sticks.
    """
    n = system.n_contacts
    forces, _ = forces_of(system, p, active)
    limit = friction_limit(system.static_friction, forces[:n])
    near = 1 - jnp.finfo(p.c.dtype).eps ** 0.375
    leave = active.stick & (norm(forces[n:], n) >= near * limit)
    return leave & are_redundant(p.W[n:, n:], of_contacts(active.stick, 2 * n))


def _successors(up: int) -> list[int]:
    """By mode: what follows when a guard fires that changes only what is watched."""
    successors = list(range(11))
    successors[ContactMode.FREE] = int(ContactMode.RISING)
    successors[ContactMode.LIFTING] = up
    successors[ContactMode.RISING] = int(ContactMode.FREE)
    successors[ContactMode.SLIPPING_FORWARD] = int(ContactMode.FORWARD)
    successors[ContactMode.SLIPPING_BACKWARD] = int(ContactMode.BACKWARD)
    successors[ContactMode.SLIPPING] = int(ContactMode.SLIDING)
    successors[ContactMode.SLIDING] = int(ContactMode.SLIPPING)
    return successors


# How many times the speed at which a slide ends others are given for that.
_MOST = 16
