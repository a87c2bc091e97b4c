"""Guards that no perturbation can bring in another order."""

from typing import NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Int, PyTree

from .._events.firing import comes_first, lateness
from .._jax.directional import directional
from .._systems.flat import FlatSystem


class Ties(NamedTuple):
    """Which guards are tied, and in which order the loop takes them."""

    tied: Bool[Array, "n_guards n_guards"]
    place: Int[Array, " n_guards"]

    def keep(self, priority: Int[Array, " n_guards"]) -> Int[Array, " n_guards"]:
        """Guards that are tied stay in the order of the loop."""
        never = jnp.iinfo(priority.dtype).max
        first = jnp.min(jnp.where(self.tied, priority[None], never), axis=1)
        return first * priority.size + self.place.astype(priority.dtype)


def ties(
    system: FlatSystem, t, x, mode, moves: PyTree, begins: Bool[Array, " n_guards"]
) -> Ties:
    """At `(t, x)`, where the loop takes the guard that `begins`, then the latest.

    Guards are tied if perturbations of the state, and of those leaves of the system
    that are not `None` in `moves`, move their times alike: clocks, say, that nothing
    moves. What all perturbations do is what one generic perturbation shows.
    """
    leaves, treedef = jtu.tree_flatten(system)
    generic = [
        None if v is None else _generic(a, k)
        for k, (a, v) in enumerate(
            zip(leaves, treedef.flatten_up_to(moves), strict=True), start=1
        )
    ]
    _, dg = directional(
        lambda system, x: system.guards(t, x, mode),
        (system, x),
        (jtu.tree_unflatten(treedef, generic), _generic(x, 0)),
    )
    g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
    tau = -dg / jnp.where(rate < 0, rate, 1)
    tied = comes_first(tau[None], tau[:, None])
    late = lateness(g, rate, jnp.zeros_like(begins))
    late = jnp.where(begins, -jnp.inf, late)
    return Ties(tied & tied.T, jnp.argsort(jnp.argsort(late)))


def _generic(a, k: int) -> Array:
    """A direction with entries of which no two are the same."""
    i = jnp.arange(a.size, dtype=a.dtype).reshape(a.shape)
    return 1.5 + jnp.cos(1.7 * k + 0.9 * i)
