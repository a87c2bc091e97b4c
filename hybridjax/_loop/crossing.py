"""The first crossing of a guard within a step: on cubics, then on the interpolant."""

from typing import NamedTuple

import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._events.crossings import Crossing, find_crossings
from .._jax.branch import compute_if, computed_once, cond_any, where
from .._jax.reduce import all_of, any_of, first_least, least
from .._systems.flat import FlatSystem
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


def search(
    system: FlatSystem,
    s: State,
    a: Attempt,
    wanted: Bool[Array, ""],
    grazing_tol,
    short,
) -> Found:
    """Is every guard represented well enough, and is one of them crossed? Zeros where
    no lane wants to know."""
    no, none = jnp.zeros_like(wanted), jnp.asarray(0, jnp.int32)
    zero = jnp.zeros_like(a.dt)
    nobody = jnp.zeros_like(s.later)
    nothing = Found(no, no, zero, no, no, none, nobody, zero, none, no)
    return compute_if(
        eqxi.unvmap_any(wanted),
        lambda: _search(system, s, a, wanted, grazing_tol, short),
        nothing,
    )


def _search(system, s: State, a: Attempt, wanted, grazing_tol, short) -> Found:
    dt, eps = a.dt, jnp.finfo(a.dt.dtype).eps
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
    # What comes after the first crossing may never happen. One of the same guard is
    # right beside its minimum.
    first = jnp.arange(c.root.shape[0]) == guard
    grazing = (c.touch < root) | (first & jnp.isfinite(c.touch))
    # A cubic that is as good as a landing needs is not improved upon.
    sharp = signs | (c.residual <= jnp.sqrt(eps) * jnp.abs(c.slope))
    wanted = wanted & certain & crossed & ~turn & ~sharp[guard]
    root, guard = cond_any(
        wanted,
        lambda: _refine(system, s, a, c, guard, wanted),
        lambda: (root, guard),
    )
    return Found(
        certain=certain,
        crossed=crossed,
        factor=least(c.factor),
        grazing=any_of(grazing),
        blurred=any_of(signs),
        unclear=first_least(jnp.where(grazing, 0, jnp.where(signs, 1, 2))),
        unsure=unsure,
        dt=root * dt,
        guard=guard,
        turn=turn,
    )


def _refine(system: FlatSystem, s: State, a: Attempt, c: Crossing, guard, wanted):
    """The first crossing of the least guard, on the step's interpolant, and which
    guard that is: by the secant method within a bracket, beginning with the slope
    of the cubic."""
    candidates = jnp.isfinite(c.root) & ~c.turns
    dt, step, tol = a.dt, a.step, jnp.sqrt(jnp.finfo(a.dt.dtype).eps)

    def guards(system, t, at, dt, step, mode):
        x = step.interpolation.evaluate(at)
        return system.guards(t + at * dt, x, mode)

    def cond(carry):
        i, *_, open_ = carry
        return (i < 60) & eqxi.unvmap_any(open_)

    def body(carry):
        i, at, guard, last, lower, upper, open_ = carry
        g = computed_once(guards, s.g, system, s.t, at, dt, step, s.mode)
        g = jnp.where(candidates, g, jnp.inf)
        guard = jnp.where(open_, first_least(g), guard)
        g = least(g)
        at_last, g_last, slope = last
        run = at - at_last
        slope = jnp.where(run == 0, slope, (g - g_last) / run)
        secant = at - g / jnp.where(slope == 0, 1, slope)
        lower = jnp.where(g > 0, at, lower)
        upper = jnp.where(g > 0, upper, at)
        inside = (slope != 0) & (secant >= lower) & (secant <= upper)
        new = jnp.where(inside, secant, (lower + upper) / 2)
        new = jnp.where(g == 0, at, new)
        # The slope of the cubic is not trusted with the decision.
        close = (i > 0) & (jnp.abs(new - at) <= tol)
        last, at = where(open_, ((at, g, slope), new), (last, at))
        open_ = open_ & ~close & (g != 0)
        return i + 1, at, guard, last, lower, upper, open_

    root, lower, upper = c.root[guard], c.lower[guard], c.upper[guard]
    last = (root, jnp.zeros_like(root), c.slope[guard])
    init = (jnp.asarray(0, jnp.int32), root, guard, last, lower, upper, wanted)
    return lax.while_loop(cond, body, init)[1:3]
