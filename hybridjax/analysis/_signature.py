import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._solution.solution import Solution


class Signature(eqx.Module):
    """What happens in a trajectory, in order, but not when.

    **Attributes:**

    - `event`: the numbers of the guards that fire, shape `(max_events,)`; -1 beyond
        `count`.
    - `mode`: the modes after them.
    - `count`: how many there are.
    """

    event: Int[Array, " max_events"]
    mode: PyTree
    count: Int[Array, ""]

    @classmethod
    def of(cls, sol: Solution) -> "Signature":
        log = sol.events
        return cls(event=log.event, mode=log.mode_after, count=log.count)

    def equals(self, other: "Signature") -> Bool[Array, ""]:
        """Whether the same happens in both."""
        same = jtu.tree_map(lambda a, b: jnp.all(a == b), self, other)
        return jnp.stack(jtu.tree_leaves(same)).all()


def least_normal_speed(sol: Solution) -> Float[Array, ""]:
    """Of its events; infinite without any."""
    log = sol.events
    happened = jnp.arange(log.t.shape[0]) < log.count
    return jnp.min(jnp.where(happened, jnp.abs(log.normal_speed), jnp.inf))
