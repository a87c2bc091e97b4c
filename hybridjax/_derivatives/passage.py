"""Several events in one instant, in an order that is given."""

import itertools

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import (
    candidates,
    comes_later,
    fires_at_once,
    instant_tol,
    is_inside,
    next_to_fire,
)
from .._jax.branch import cond_any, of_a_lane_that, where
from .._jax.reduce import any_of
from .._systems.flat import FlatSystem
from .ties import Ties


# Corners of so many guards have all their orders tried; of more, some of them.
_EXHAUSTIVE = 6

# Outcomes are the same if they differ by no more than so many times what is expected.
_SAME = 64


class Reach(eqx.Module):
    """The largest that state and vector field are at an instant, by component."""

    x: Float[Array, " d"]
    flow: Float[Array, " d"]

    @classmethod
    def of(cls, x) -> "Reach":
        return cls(jnp.abs(x), jnp.zeros_like(x))

    def and_of(self, x, flow) -> "Reach":
        return Reach(
            jnp.maximum(self.x, jnp.abs(x)), jnp.maximum(self.flow, jnp.abs(flow))
        )

    def allowed(self, corner_tol) -> Float[Array, " d"]:
        """By how much the outcomes of two orders may differ, and be the same: by
        rounding, and by what the flow does in the time for which events that are not
        quite at one time count as one."""
        eps = jnp.finfo(self.x.dtype).eps
        rounding = eps**0.75 * self.x + eps * jnp.max(self.x, initial=0)
        return _SAME * (rounding + corner_tol * self.flow)


class Passage(eqx.Module):
    """How the corner is passed in a given order."""

    x: Float[Array, " d"]
    mode: PyTree
    order: Int[Array, " max_count"]  # the guards as they fire, then -1
    count: Int[Array, ""]
    fired: Bool[Array, " n_guards"]  # which of them did
    # Those among which there was a choice: another might have come first.
    choice: Bool[Array, " n_guards"]
    regular: Bool[Array, ""]  # no guard is at rest, and there is an end
    reach: Reach


def not_passed(x, mode, n_guards: int) -> Passage:
    """Where nothing has happened yet."""
    none = jnp.zeros((n_guards,), bool)
    return Passage(
        x=x,
        mode=mode,
        order=jnp.full((max_corner_events(n_guards),), -1, jnp.int32),
        count=jnp.asarray(0, jnp.int32),
        fired=none,
        choice=none,
        regular=jnp.asarray(True),
        reach=Reach.of(x),
    )


def max_corner_events(n_guards: int) -> int:
    """How many events one instant may have. Each guard once is usual; a shock that
    travels to and fro fires some of them a few times more."""
    return 4 * n_guards + 8


def pass_in_order(
    system: FlatSystem,
    t,
    x,
    mode,
    priority: Int[Array, " n_guards"],
    ties: Ties,
    tol,
    same_time,
    wanted: Bool[Array, ""],
    members: Bool[Array, " n_guards"],
) -> Passage:
    """Passes all events at `(t, x)`; of several guards that may be the first, that
    with the least `priority` is, except that `ties` are kept. Only the `members`
    fire."""
    limit = max_corner_events(system.n_guards)

    def cond(carry):
        i, *_, unfinished = carry
        return (i < limit) & eqxi.unvmap_any(unfinished)

    def body(carry):
        i, p, priority, later, unfinished = carry
        flow = system.flow(t, p.x, p.mode)
        # What is tied shows at the start: here, it is no more than other tangents.
        g, rate, dg = system.guard_tangents(t, p.x, p.mode, flow, ties.tangents)
        priority = cond_any(
            i == 0, lambda: ties.keep(priority, g, rate, dg), lambda: priority
        )
        later = jnp.where(i == 0, comes_later(g, rate, tol), later)
        firing = fires_at_once(g, rate, instant_tol(tol, same_time, later)) & members
        fire = unfinished & any_of(firing)
        rests = p.fired & (rate == 0)
        among = candidates(g, rate, firing, rests, tol)
        j = next_to_fire(among, priority)
        this = jnp.arange(g.shape[0]) == j

        def passed():
            # What lanes without an event compute here is thrown away.
            here = of_a_lane_that(fire, (t, p.x, p.mode, j))
            x_plus, mode_plus = system.jump(*here)
            new = Passage(
                x=x_plus,
                mode=mode_plus,
                order=jnp.where(jnp.arange(limit) == i, j, p.order),
                count=p.count + 1,
                fired=p.fired | this,
                choice=p.choice | (among & any_of(among & ~this)),
                regular=p.regular & ((rate[j] != 0) | is_inside(g, rate, tol)[j]),
                reach=p.reach.and_of(x_plus, flow),
            )
            return where(fire, new, p)

        # At last nothing fires, and jumps may be large.
        return i + 1, cond_any(fire, passed, lambda: p), priority, later, fire

    later = jnp.zeros_like(members)
    passage = not_passed(x, mode, system.n_guards)
    init = (jnp.asarray(0, jnp.int32), passage, priority, later, wanted)
    _, passage, *_, unfinished = lax.while_loop(cond, body, init)
    return eqx.tree_at(lambda p: p.regular, passage, passage.regular & ~unfinished)


def same_outcome(x, mode, x_other, mode_other, allowed) -> Bool[Array, ""]:
    """Whether two orders lead to the same state, up to what is `allowed`."""
    same = jnp.all(jnp.abs(x - x_other) <= allowed)
    for a, b in zip(jtu.tree_leaves(mode), jtu.tree_leaves(mode_other), strict=True):
        same = same & jnp.all(a == b)
    return same


def priorities_of(order, n_guards: int) -> Int[np.ndarray, "orders n_guards"]:
    """Orders to try, as the priorities of all guards: of those that fire in `order`,
    all permutations, or a choice of them."""
    involved = np.unique(order[order >= 0])
    rest = np.setdiff1d(np.arange(n_guards), involved)
    m = len(involved)
    if m <= _EXHAUSTIVE:
        chosen = list(itertools.permutations(range(m)))
    else:
        ascending = np.arange(m)
        chosen = [np.roll(ascending, -k) for k in range(m)] + [ascending[::-1]]
        for k in range(m - 1):
            swapped = ascending.copy()
            swapped[[k, k + 1]] = swapped[[k + 1, k]]
            chosen.append(swapped)
    orders = [np.concatenate([involved[np.asarray(c)], rest]) for c in chosen]
    return np.argsort(np.asarray(orders), axis=1).astype(np.int32)
