"""What happens when a guard of a contact fires."""

import jax.numpy as jnp
import jax.tree_util as jtu

from .complementarity import Active
from .contact_mode import ContactMode
from .forces import active_in, is_closed
from .impact import impact
from .settling import settle


def transition(system, t, x, mode, event, args):
    """The state and the mode after it."""
    n = system.n_contacts
    q, v = x
    here = jnp.arange(n) == event % n
    kind, before = event // n, mode[event % n]
    tangential = (kind == 1) | (kind == 2)
    touches = (kind == 0) & (before == ContactMode.FREE)
    lifts = (kind == 0) & is_closed(before)
    slips = tangential & (before == ContactMode.STICKING)
    slides = (before == ContactMode.FORWARD) | (before == ContactMode.BACKWARD)
    stops = tangential & slides
    fails = (kind == 3) & is_closed(before)

    q, v, struck, unsolved = impact(system, t, q, v, mode, here & touches, args)

    active = active_in(mode, q.dtype)
    # The force on a contact has left its cone on the side to which it pushes, and
    # the contact slides to the other.
    away = jnp.where(kind == 1, -1, 1).astype(q.dtype)
    guess = Active(
        closed=active.closed & ~(here & lifts),
        stick=active.stick & ~(here & slips),
        direction=jnp.where(here & slips, away, active.direction),
    )
    guess = jtu.tree_map(lambda a, b: jnp.where(touches, a, b), struck, guess)
    departing = mode >= ContactMode.SLIPPING_FORWARD
    resting = guess.stick | (departing & ~touches) | (here & stops)
    settled, lost = settle(
        system, t, q, v, mode, guess, resting, here & slips, touches, args
    )
    settled = jnp.where(here & lifts, int(ContactMode.LIFTING), settled)

    # The end of a departure, or an apex, changes only what is watched.
    up = ContactMode.RISING if system.apex else ContactMode.FREE
    successor = jnp.asarray(_successors(int(up)), mode.dtype)[before]
    watch_on = jnp.where(here, successor, mode)
    mode = jnp.where(touches | lifts | slips | stops, settled, watch_on)
    lost = (touches & (unsolved | lost)) | ((lifts | slips | stops) & lost)
    lost = lost | (here & fails)
    return (q, v), jnp.where(lost, int(ContactMode.UNSOLVABLE), mode)


def _successors(up: int) -> list[int]:
    """By mode: what follows when a guard fires that changes only what is watched."""
    successors = list(range(8))
    successors[ContactMode.FREE] = int(ContactMode.RISING)
    successors[ContactMode.LIFTING] = up
    successors[ContactMode.RISING] = int(ContactMode.FREE)
    successors[ContactMode.SLIPPING_FORWARD] = int(ContactMode.FORWARD)
    successors[ContactMode.SLIPPING_BACKWARD] = int(ContactMode.BACKWARD)
    return successors
