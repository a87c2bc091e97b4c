"""The derivative of several events in one instant: the corner rule.

`docs/semantics.md` derives it. With resets that are the identity it is the algorithm of
Council et al., Fig. 2; with resets it composes saltation maps in the order in which the
perturbed trajectory meets the guards (Pace and Burden, (40)).
"""

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import fires_at_once
from .._jax.reduce import any_of, first_least
from .._systems.flat import FlatSystem
from .saltation import directional


class Corner(eqx.Module):
    """How one perturbed trajectory passes an instant with several events."""

    x: Float[Array, " n"]  # the state after it
    mode: PyTree
    dx: Float[Array, " n"]  # the tangent after it, at fixed time
    dt: Float[Array, ""]  # the tangent of the time of the last event
    # For each guard, the tangents of the time and the state at which it fires, and that
    # state (the last time that it does; NaN if it does not), and how often it does.
    guard_dt: Float[Array, " n_guards"]
    guard_dx: Float[Array, "n_guards n"]
    guard_x: Float[Array, "n_guards n"]
    guard_count: Int[Array, " n_guards"]
    order: Int[Array, " max_count"]  # the guards as they fire, then -1
    count: Int[Array, ""]


def max_corner_events(n_guards: int) -> int:
    """How many events one instant may have. Each guard once is usual; a shock that
    travels to and fro fires some of them a few times more."""
    return 4 * n_guards + 8


def resolve_corner(
    system: FlatSystem,
    t,
    x,
    mode,
    dsystem,
    dx,
    tol,
    wanted: Bool[Array, ""],
    earliest: Float[Array, ""],
    members: Bool[Array, " n_guards"],
) -> Corner:
    """Passes a tangent at fixed time through all events at `(t, x)`.

    Repeatedly: each guard at zero would be met after the time
    `tau = -Dg (dt, dx, dsystem) / (dg/dt)`; the least `tau` comes first; the tangent
    flows there, and is mapped by the reset's derivative.

    No event happens before the one before it, nor the first before `earliest`, the
    tangent of the time at which the simulation starts, or minus infinity: a guard that
    is watched only from then on, and was passed before, fires then.

    Only the `members` fire.
    """
    n_guards, limit = system.n_guards, max_corner_events(system.n_guards)
    time = jnp.zeros_like(t)
    corner = Corner(
        x=x,
        mode=mode,
        dx=dx,
        dt=time,
        guard_dt=jnp.full((n_guards,), jnp.nan, x.dtype),
        guard_dx=jnp.full((n_guards, x.shape[0]), jnp.nan, x.dtype),
        guard_x=jnp.full((n_guards, x.shape[0]), jnp.nan, x.dtype),
        guard_count=jnp.zeros((n_guards,), jnp.int32),
        order=jnp.full((limit,), -1, jnp.int32),
        count=jnp.asarray(0, jnp.int32),
    )

    def guards(c: Corner):
        flow = system.flow(t, c.x, c.mode)
        g, rate = system.guard_rates(t, c.x, c.mode, flow)
        return flow, g, rate, fires_at_once(g, rate, tol) & members

    def cond(carry):
        i, _, _, unfinished = carry
        return (i < limit) & eqxi.unvmap_any(unfinished)

    def body(carry):
        i, c, earliest, unfinished = carry
        flow, g, rate, firing = guards(c)
        fire = unfinished & any_of(firing)
        _, dg = directional(
            lambda system, t, x: system.guards(t, x, c.mode),
            (system, t, c.x),
            (dsystem, c.dt, c.dx),
        )
        tau = -dg / jnp.where(firing, rate, 1)
        # In the guard set, not on its boundary: a reset led there, and it fires now.
        inside = g < -tol * jnp.abs(rate)
        j = first_least(jnp.where(firing, jnp.where(inside, -jnp.inf, tau), jnp.inf))
        # Tangents of a batch have guards of their own: to index with those would be
        # scatters, with which XLA does not make one function of a loop on CPUs.
        this = jnp.arange(n_guards) == j
        at_once = jnp.where(jnp.isfinite(earliest), earliest - c.dt, 0)
        tau = jnp.where(inside, at_once, jnp.maximum(tau, earliest - c.dt))
        tau = jnp.sum(jnp.where(this, tau, 0))
        dt, dx = c.dt + tau, c.dx + tau * flow

        def jump(system, t, x):
            return system.jump(t, x, c.mode, j)

        (x_plus, mode_plus), (dx_plus, _) = directional(
            jump, (system, t, c.x), (dsystem, dt, dx)
        )
        new = Corner(
            x=x_plus,
            mode=mode_plus,
            dx=dx_plus,
            dt=dt,
            guard_dt=jnp.where(this, dt, c.guard_dt),
            guard_dx=jnp.where(this[:, None], dx, c.guard_dx),
            guard_x=jnp.where(this[:, None], c.x, c.guard_x),
            guard_count=c.guard_count + this,
            order=c.order.at[i].set(j),
            count=c.count + 1,
        )
        c, earliest = jtu.tree_map(
            lambda a, b: jnp.where(fire, a, b), (new, dt), (c, earliest)
        )
        return i + 1, c, earliest, fire

    carry = (jnp.asarray(0, jnp.int32), corner, earliest, wanted)
    _, corner, _, _ = lax.while_loop(cond, body, carry)
    flow = system.flow(t, corner.x, corner.mode)
    return eqx.tree_at(lambda c: c.dx, corner, corner.dx - corner.dt * flow)


def corner_outcome(
    system: FlatSystem,
    t,
    x,
    mode,
    priority: Int[Array, " n_guards"],
    tol,
    wanted,
    members: Bool[Array, " n_guards"],
) -> tuple[Float[Array, " n"], PyTree]:
    """State and mode after all events at `(t, x)`, if of several guards at zero the one
    with the least `priority` fires first. Only the `members` fire."""

    def cond(carry):
        i, _, _, unfinished = carry
        limit = max_corner_events(system.n_guards)
        return (i < limit) & eqxi.unvmap_any(unfinished)

    def body(carry):
        i, x, mode, unfinished = carry
        g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
        firing = fires_at_once(g, rate, tol) & members
        fire = unfinished & any_of(firing)
        never = jnp.iinfo(priority.dtype).max
        j = first_least(jnp.where(firing, priority, never))
        after = system.jump(t, x, mode, j)
        x, mode = jtu.tree_map(lambda a, b: jnp.where(fire, a, b), after, (x, mode))
        return i + 1, x, mode, fire

    init = (jnp.asarray(0, jnp.int32), x, mode, wanted)
    return lax.while_loop(cond, body, init)[1:3]


def same_outcome(x, mode, x_other, mode_other) -> Bool[Array, ""]:
    """Whether two orders lead to the same state, up to what the corner tolerance and
    rounding let them differ."""
    tol = 64 * jnp.sqrt(jnp.finfo(x.dtype).eps)
    size = 1 + jnp.maximum(jnp.max(jnp.abs(x)), jnp.max(jnp.abs(x_other)))
    same = jnp.max(jnp.abs(x - x_other)) <= tol * size
    for a, b in zip(jtu.tree_leaves(mode), jtu.tree_leaves(mode_other), strict=True):
        same = same & jnp.all(a == b)
    return same
