"""The derivative of several events in one instant: the corner rule.

`docs/concepts/corners.md` derives it. With resets that are the identity it is the
algorithm of Council et al., Fig. 2; with resets it composes saltation maps in the order
in which the perturbed trajectory meets the guards (Pace and Burden, (40)).
"""

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import (
    candidates,
    comes_first,
    comes_later,
    fires_at_once,
    instant_tol,
    is_inside,
    lateness,
    next_to_fire,
)
from .._jax.branch import cond_any, of_a_lane_that, where
from .._jax.directional import directional
from .._jax.reduce import any_of, least
from .._systems.flat import FlatSystem
from .passage import max_corner_events, Reach


class Lead(eqx.Module):
    """The beginning of an instant, as one perturbed trajectory gets there."""

    t: Float[Array, ""]
    x: Float[Array, " n"]
    mode: PyTree
    dx: Float[Array, " n"]  # at fixed time
    earliest: Float[Array, ""]  # tangent of the time before which nothing can happen
    members: Bool[Array, " n_guards"]  # which guards may fire
    begins: Bool[Array, " n_guards"]  # the first one, as the loop took them
    alone: Bool[Array, ""]  # does it fire once, and no other
    inside: Bool[Array, ""]  # is it inside of its guard set, if it is alone


class Corner(eqx.Module):
    """How one perturbed trajectory passes an instant with several events."""

    x: Float[Array, " n"]  # the state after it
    mode: PyTree
    dx: Float[Array, " n"]  # the tangent after it, at fixed time
    dt: Float[Array, ""]  # the tangent of the time of the last event
    # For each guard, the tangents of the time and the state at which it fires, and that
    # state, for the firing that was asked for (NaN if there is none), and how often it
    # fires in all.
    guard_dt: Float[Array, " n_guards"]
    guard_dx: Float[Array, "n_guards n"]
    guard_x: Float[Array, "n_guards n"]
    guard_count: Int[Array, " n_guards"]
    order: Int[Array, " max_count"]  # the guards as they fire, then -1
    count: Int[Array, ""]
    reach: Reach


def not_passed(system: FlatSystem, t, x, mode, dx) -> Corner:
    """Where nothing has happened yet."""
    n_guards = system.n_guards
    return Corner(
        x=x,
        mode=mode,
        dx=dx,
        dt=jnp.zeros_like(t),
        guard_dt=jnp.full((n_guards,), jnp.nan, x.dtype),
        guard_dx=jnp.full((n_guards, x.size), jnp.nan, x.dtype),
        guard_x=jnp.full((n_guards, x.size), jnp.nan, x.dtype),
        guard_count=jnp.zeros((n_guards,), jnp.int32),
        order=jnp.full((max_corner_events(n_guards),), -1, jnp.int32),
        count=jnp.asarray(0, jnp.int32),
        reach=Reach.of(x),
    )


def resolve_corner(
    system: FlatSystem,
    dsystem,
    lead: Lead,
    before: Int[Array, ""],
    tol,
    same_time,
    wanted: Bool[Array, ""],
) -> Corner:
    """Passes a tangent at fixed time through all events of an instant.

    Repeatedly: each guard at zero would be met after the time
    `tau = -Dg (dt, dx, dsystem) / (dg/dt)`; the least `tau` comes first; the tangent
    flows there, and is mapped by the reset's derivative.

    No event happens before the one before it, nor the first before `earliest`, the
    tangent of the time at which the simulation starts, or minus infinity: a guard that
    is watched only from then on, and was passed before, fires then.

    Where perturbed times are the same, the guard that `begins` is the first, and others
    follow as in the loop. Only the `members` fire. Asked for is that firing of each
    guard that has so many `before` it.

    One that is `alone` passes by the saltation rule, and is `inside` of its guard set
    if it was recorded so.
    """
    n_guards, limit = system.n_guards, max_corner_events(system.n_guards)
    t, begins, alone = lead.t, lead.begins, lead.alone

    def cond(carry):
        i, *_, unfinished = carry
        return (i < limit) & eqxi.unvmap_any(unfinished)

    def body(carry):
        i, c, earliest, later, unfinished = carry
        flow = system.flow(t, c.x, c.mode)
        moves = dsystem, c.dt, c.dx
        g, rate, dg = system.guard_tangents(t, c.x, c.mode, flow, moves)
        later = jnp.where(i == 0, comes_later(g, rate, tol), later)
        fires = fires_at_once(g, rate, instant_tol(tol, same_time, later))
        firing = (fires & lead.members) | (alone & begins)
        fire = unfinished & any_of(firing)
        within = jnp.where(alone, lead.inside, is_inside(g, rate, tol))
        tau = -dg / jnp.where(firing & ~within, rate, 1)
        rests = (c.guard_count > 0) & (rate == 0)
        among = candidates(g, rate, firing, rests, tol)
        soonest = least(jnp.where(among & ~within, tau, jnp.inf))
        # Inside, a reset led there, and it fires now. That, and what no input can
        # change, is in the order of the loop.
        late = jnp.where(begins & (c.count == 0), -jnp.inf, lateness(g, rate, rests))
        first = among & (within | comes_first(tau, soonest))
        j = next_to_fire(jnp.where(alone, begins, first), late)
        # Tangents of a batch have guards of their own: to index with those would be
        # scatters, with which XLA does not make one function of a loop on CPUs.
        this = jnp.arange(n_guards) == j
        it = this & (c.guard_count == before)
        at_once = jnp.where(jnp.isfinite(earliest), earliest - c.dt, 0)
        tau = jnp.where(within, at_once, jnp.maximum(tau, earliest - c.dt))
        tau = jnp.sum(jnp.where(this, tau, 0))
        dt, dx = c.dt + tau, c.dx + tau * flow

        def passed():
            # What lanes without an event compute here is thrown away.
            here = of_a_lane_that(fire, (t, c.x, c.mode, j))
            t_here, x_here, mode_here, event = here

            def jump(system, t, x):
                return system.jump(t, x, mode_here, event)

            (x_plus, mode_plus), (dx_plus, _) = directional(
                jump, (system, t_here, x_here), (dsystem, dt, dx)
            )
            new = Corner(
                x=x_plus,
                mode=mode_plus,
                dx=dx_plus,
                dt=dt,
                guard_dt=jnp.where(it, dt, c.guard_dt),
                guard_dx=jnp.where(it[:, None], dx, c.guard_dx),
                guard_x=jnp.where(it[:, None], c.x, c.guard_x),
                guard_count=c.guard_count + this,
                order=jnp.where(jnp.arange(c.order.size) == i, j, c.order),
                count=c.count + 1,
                reach=c.reach.and_of(x_plus, flow),
            )
            return where(fire, (new, dt), (c, earliest))

        # At last nothing fires, and jumps may be large.
        c, earliest = cond_any(fire, passed, lambda: (c, earliest))
        return i + 1, c, earliest, later, fire & ~alone

    corner = not_passed(system, t, lead.x, lead.mode, lead.dx)
    later = jnp.zeros_like(lead.members)
    carry = (jnp.asarray(0, jnp.int32), corner, lead.earliest, later, wanted)
    _, corner, *_ = lax.while_loop(cond, body, carry)
    flow = system.flow(t, corner.x, corner.mode)
    return eqx.tree_at(lambda c: c.dx, corner, corner.dx - corner.dt * flow)
