"""Guards that no perturbation can bring in another order."""

from typing import NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import comes_first, lateness
from .._systems.flat import FlatSystem


class Ties(NamedTuple):
    """Guards are tied if perturbations of the state, and of some parameters, move their
    times alike: clocks, say, that nothing moves. What all perturbations do is what one
    generic perturbation shows."""

    tangents: tuple[PyTree, Array, Array]  # that one, of system, time and state
    begins: Bool[Array, " n_guards"]  # the guard that the loop takes first

    def keep(
        self,
        priority: Int[Array, " n_guards"],
        g: Float[Array, " n_guards"],
        rate: Float[Array, " n_guards"],
        dg: Float[Array, " n_guards"],
    ) -> Int[Array, " n_guards"]:
        """Guards that are tied stay in the order of the loop, which takes the latest.
        `dg` are the tangents of the guards for `self.tangents`."""
        tau = -dg / jnp.where(rate < 0, rate, 1)
        tied = comes_first(tau[None], tau[:, None])
        tied = tied & tied.T
        never = jnp.iinfo(priority.dtype).max
        first = jnp.min(jnp.where(tied, priority[None], never), axis=1)
        late = lateness(g, rate, jnp.zeros_like(self.begins))
        late = jnp.where(self.begins, -jnp.inf, late)
        # Not a sort: with one, XLA does not make one function of a loop on CPUs.
        this, other = late[:, None], late[None]
        i, j = jnp.arange(late.size)[:, None], jnp.arange(late.size)[None]
        before = (other < this) | ((other == this) & (j < i))
        place = jnp.sum(before, axis=1, dtype=priority.dtype)
        return first * priority.size + place


def generic(system: FlatSystem, t, x, moves: PyTree) -> tuple[PyTree, Array, Array]:
    """A tangent of the state, and of those leaves of the system that are not `None` in
    `moves`."""
    leaves, treedef = jtu.tree_flatten(system)
    of_leaves = [
        None if v is None else _generic(a, k)
        for k, (a, v) in enumerate(
            zip(leaves, treedef.flatten_up_to(moves), strict=True), start=1
        )
    ]
    return jtu.tree_unflatten(treedef, of_leaves), jnp.zeros_like(t), _generic(x, 0)


def _generic(a, k: int) -> Array:
    """A direction with entries of which no two are the same."""
    i = jnp.arange(a.size, dtype=a.dtype).reshape(a.shape)
    return 1.5 + jnp.cos(1.7 * k + 0.9 * i)
