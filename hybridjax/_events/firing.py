"""When guards fire; and which of those that do is the next.

A guard that fires is either *on* the boundary of its guard set, which the state
crosses, or *inside* of the set, where a reset or the start put the state. A
perturbation moves the time of the first, and so chooses which of several comes first.
It moves that of the second with what put it there; of several, that comes first which
would have been met first, had the flow led there: a choice of order only where that is
a tie too.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._jax.reduce import any_of, first_least, least


# Times closer than this many eps (relative to the largest time) are the same time.
SAME_TIME = 16


def same_time(t0: Float[Array, ""], t1: Float[Array, ""]) -> Float[Array, ""]:
    """Up to this, times of an interval are the same."""
    size = jnp.maximum(jnp.abs(t0), jnp.abs(t1))
    return SAME_TIME * jnp.finfo(t0.dtype).eps * size


def fires_at_once(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"], tol
) -> Bool[Array, " n_guards"]:
    """Which guards fire here and now.

    Those that are in their guard set (`g <= 0`) and are not leaving it, and those that
    enter it within the time `tol`.
    """
    inside = (g <= 0) & (rate <= 0)
    about_to = (g > 0) & (rate < 0) & (g <= tol * -rate)
    return inside | about_to


def comes_later(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"], tol
) -> Bool[Array, " n_guards"]:
    """Which guards are on their way to events after the time `tol`.

    Such a guard has an event of its own also if the one that happens here brings it
    nearer than `tol`, by a faster flow. In the same instant it would have to come after
    this one, for every perturbation, which is wrong by as much as the flow jumps.
    """
    return ~fires_at_once(g, rate, tol)


def instant_tol(
    tol, same, later: Bool[Array, " n_guards"]
) -> Float[Array, " n_guards"]:
    """The time `tol` within which guards belong to an instant that has begun; of those
    that came later, only what cannot be told from it, up to the time `same`."""
    return jnp.where(later, jnp.minimum(tol, same), tol)


def crossing_times(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"]
) -> Float[Array, " n_guards"]:
    """After which time each guard fires, to first order; infinite if it never does."""
    falls = rate < 0
    return jnp.where(falls, jnp.maximum(g, 0) / jnp.where(falls, -rate, 1), jnp.inf)


def lateness(
    g: Float[Array, " n_guards"],
    rate: Float[Array, " n_guards"],
    rests: Bool[Array, " n_guards"],
) -> Float[Array, " n_guards"]:
    """The time to the crossing: of guards that have waited, the longer the less. What
    `rests` waits for all others."""
    limits = jnp.finfo(g.dtype)
    late = g / jnp.maximum(jnp.abs(rate), limits.tiny)
    return jnp.where(rests, limits.max, late)


def is_inside(g, rate, tol) -> Bool[Array, "..."]:
    """Is a guard that fires inside of its guard set, by more than the time `tol`?"""
    return g < -tol * jnp.abs(rate)


def candidates(
    g: Float[Array, " n_guards"],
    rate: Float[Array, " n_guards"],
    firing: Bool[Array, " n_guards"],
    rests: Bool[Array, " n_guards"],
    tol,
) -> Bool[Array, " n_guards"]:
    """Of the guards that are `firing`, those that may be the first."""
    late = lateness(g, rate, rests)
    awake = firing & ~rests
    inside = awake & is_inside(g, rate, tol)
    last = least(jnp.where(inside, late, jnp.inf))
    others = jnp.where(any_of(awake), awake, firing)
    return jnp.where(any_of(inside), inside & (late <= last + tol), others)


def next_to_fire(among: Bool[Array, " n_guards"], preference: Array) -> Int[Array, ""]:
    """The guard of the least preference."""
    floating = jnp.issubdtype(preference.dtype, jnp.floating)
    never = jnp.inf if floating else jnp.iinfo(preference.dtype).max
    return first_least(jnp.where(among, preference, never))


def comes_first(tau: Float[Array, "..."], soonest) -> Bool[Array, "..."]:
    """Are these perturbed times those of the first event, up to rounding? Of several, a
    perturbation makes no choice."""
    return tau <= soonest + 4 * jnp.finfo(tau.dtype).eps * jnp.abs(soonest)


def max_firings(n_guards: int) -> int:
    """How often one guard may fire in one instant. A shock that travels to and fro
    among bodies in contact passes between two of them about as often as there are
    others, and what is far over a threshold falls below it in several steps."""
    return n_guards + 8
