"""The first crossing of a guard within a step, as cubics have it."""

from typing import NamedTuple

import equinox.internal as eqxi
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._events.crossings import find_crossings, sharpened
from .._jax.branch import compute_if
from .._jax.reduce import all_of, any_of, first_least, least
from .state import Attempt, State


class Found(NamedTuple):
    """What the guards say of a step."""

    certain: Bool[Array, ""]  # are they represented well enough to say anything
    crossed: Bool[Array, ""]  # is one of them crossed
    factor: Float[Array, ""]  # by which the step length could be scaled
    grazing: Bool[Array, ""]
    # Was the step too short to say more than the signs of a guard at its ends?
    blurred: Bool[Array, ""]
    unclear: Int[Array, ""]  # the guard that is grazing, or else one of these
    unsure: Bool[Array, " n_guards"]  # which are not represented well enough
    # Where the first one is crossed, if one is.
    dt: Float[Array, ""]
    guard: Int[Array, ""]
    turn: Bool[Array, ""]  # is it the peak of a guard that stays below zero


def search(s: State, a: Attempt, wanted: Bool[Array, ""], grazing_tol, short) -> Found:
    """Is every guard represented well enough, and is one of them crossed? Zeros where
    no lane wants to know."""
    no, none = jnp.zeros_like(wanted), jnp.asarray(0, jnp.int32)
    zero = jnp.zeros_like(a.dt)
    nobody = jnp.zeros_like(s.later)
    nothing = Found(no, no, zero, no, no, none, nobody, zero, none, no)
    return compute_if(
        eqxi.unvmap_any(wanted),
        lambda: _search(s, a, grazing_tol, short),
        nothing,
    )


def _search(s: State, a: Attempt, grazing_tol, short) -> Found:
    dt = a.dt
    c = find_crossings(s.g, dt * s.rate, a.g, dt * a.rate, a.g_check, grazing_tol)
    # Shortening a step further tells nothing more: the guard is crossed if it is
    # another one at the end. Where it turned, it fires there, at the start of the next.
    unsure = ~c.certain
    signs = unsure & (dt <= short)
    falls = (s.g > 0) & (a.g <= 0)
    c = c._replace(
        certain=c.certain | signs,
        root=jnp.where(signs, jnp.where(falls, 1, jnp.inf), c.root),
        turns=c.turns & ~signs,
    )
    certain = all_of(c.certain)
    guard = first_least(c.root)
    root, turn = c.root[guard], c.turns[guard]
    crossed = jnp.isfinite(root)
    here = s.g[guard], dt * s.rate[guard], a.g[guard], dt * a.rate[guard]
    sharp = compute_if(None, lambda: sharpened(root, *here, a.g_check[:, guard]), root)
    keep = turn | signs[guard] | c.rounded[guard]
    sharp = jnp.where(crossed & ~keep, sharp, root)
    # What comes after the first crossing may never happen. One of the same guard is
    # right beside its minimum.
    first = jnp.arange(c.root.shape[0]) == guard
    grazing = (c.touch < root) | (first & jnp.isfinite(c.touch))
    return Found(
        certain=certain,
        crossed=crossed,
        factor=least(c.factor),
        grazing=any_of(grazing),
        blurred=any_of(signs),
        unclear=first_least(jnp.where(grazing, 0, jnp.where(signs, 1, 2))),
        unsure=unsure,
        dt=sharp * dt,
        guard=guard,
        turn=turn,
    )
