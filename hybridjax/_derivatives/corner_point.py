"""A corner as a point in the state space, and how it is passed.

Functions are compiled once for all systems of one structure.
"""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree

from .._events.firing import fires_at_once, is_inside, same_time
from .._jax.branch import where
from .._systems.flat import FlatSystem, flatten_system
from .._systems.start import Start
from .corner import Corner, Lead, resolve_corner
from .passage import pass_in_order, Passage, same_outcome
from .saltation import event_tangent
from .ties import generic, Ties


NO_CORNER = (
    "No guard is zero at the given `t` and `x` in the given `mode`: {}. Pass the left "
    "limit of the state at an event, for example `sol.events.x_before`, and the mode "
    "before it, or a larger `corner_tol`."
)


class CornerPoint(eqx.Module):
    """A point in the state space, and what makes it a corner."""

    start: Start
    args: PyTree
    tol: Float[Array, ""]  # an absolute time

    def flatten(self) -> tuple[FlatSystem, Float[Array, " d"], Any]:
        begin = self.start
        return flatten_system(begin.system, begin.t, begin.x, begin.mode, self.args)

    @property
    def t(self):
        return self.start.t

    @property
    def mode(self):
        return self.start.mode


@eqx.filter_jit
def examine(point: CornerPoint):
    """Which guards are zero, the time after which the next one is, how the corner is
    passed in the order of the numbers, and the state after it."""
    system, x, unravel = point.flatten()
    t, mode = point.t, point.mode
    if system.n_guards == 0:
        raise ValueError(NO_CORNER.format("the system has none"))
    g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
    after = jnp.where((g > 0) & (rate < 0), -g / jnp.where(rate < 0, rate, 1), jnp.inf)
    ascending = jnp.arange(system.n_guards, dtype=jnp.int32)
    first = _pass(point, ascending)
    return fires_at_once(g, rate, point.tol), jnp.min(after), first, unravel(first.x)


def _pass(point: CornerPoint, priority) -> Passage:
    system, x, _ = point.flatten()
    here = system, point.t, x, point.mode
    every = jnp.ones((system.n_guards,), bool)
    nothing = jtu.tree_map(lambda _: None, system)
    ties = Ties(generic(system, point.t, x, nothing), ~every)
    tols = point.tol, same_time(point.t, point.t)
    return pass_in_order(*here, priority, ties, *tols, jnp.asarray(True), every)


def _passages(point: CornerPoint, priorities) -> Passage:
    return jax.vmap(lambda p: _pass(point, p))(jnp.asarray(priorities))


@eqx.filter_jit
def compare(point: CornerPoint, first: Passage, priorities):
    """Whether some order leads elsewhere than the first, and whether all of them are
    regular."""
    others = _passages(point, priorities)
    allowed = first.reach.allowed(point.tol)
    same = jax.vmap(
        lambda p: same_outcome(
            first.x, first.mode, p.x, p.mode, allowed + p.reach.allowed(point.tol)
        )
    )(others)
    return ~same.all(), others.regular.all()


@eqx.filter_jit
def spread(point: CornerPoint, priorities):
    """How much the saltation matrices of orders differ, and their largest entry."""
    orders = _passages(point, priorities).order
    matrices = jax.vmap(lambda order: _compose_padded(point, order)[0])(orders)
    return jnp.max(jnp.abs(matrices - matrices[:1])), jnp.max(jnp.abs(matrices))


def resolve(point: CornerPoint, dx) -> Corner:
    """Passes a tangent, in the order that it takes."""
    system, x, _ = point.flatten()
    no, every = jnp.asarray(False), jnp.ones((system.n_guards,), bool)
    lead = Lead(
        t=point.t,
        x=x,
        mode=point.mode,
        dx=dx,
        earliest=jnp.asarray(-jnp.inf, x.dtype),
        members=every,
        begins=~every,
        alone=no,
        inside=no,
    )
    nothing = jtu.tree_map(lambda _: None, system)
    zero, tols = jnp.asarray(0, jnp.int32), (point.tol, same_time(point.t, point.t))
    return resolve_corner(system, nothing, lead, zero, *tols, ~no)


@eqx.filter_jit
def compose(point: CornerPoint, order):
    return _compose_padded(point, jnp.asarray(order, jnp.int32))


def _compose_padded(point: CornerPoint, order: Int[Array, " max_count"]):
    """The saltation matrix of an order, and whether the guards can fire in it. Ends of
    -1 are no events."""
    system, x, _ = point.flatten()
    t, tol = point.t, point.tol
    nothing = jtu.tree_map(lambda _: None, system)
    count = eqxi.unvmap_max(jnp.sum(order >= 0))

    def firing(x, mode):
        g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
        return fires_at_once(g, rate, tol), is_inside(g, rate, tol)

    def body(carry):
        i, x, mode, columns, times, possible = carry
        j = order[i]
        fired = j >= 0
        fires, inside = firing(x, mode)

        def push(dx, dt_last):
            return event_tangent(
                system, t, x, mode, j, (nothing, dx, dt_last), inside[j], False
            )

        tangents = jax.vmap(push, in_axes=(1, 0), out_axes=(1, 0))(columns, times)
        after = system.jump(t, x, mode, jnp.maximum(j, 0))
        new = *after, *tangents, possible & fires[j]
        old = x, mode, columns, times, possible
        return i + 1, *where(fired, new, old)

    columns = jnp.eye(x.shape[0], dtype=x.dtype)
    init = x, point.mode, columns, jnp.zeros_like(x), jnp.asarray(True)
    init = jnp.asarray(0, count.dtype), *init
    _, x, mode, columns, _, possible = lax.while_loop(
        lambda carry: carry[0] < count, body, init
    )
    return columns, possible & ~firing(x, mode)[0].any()
