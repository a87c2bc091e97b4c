import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class Balls(AbstractHybridSystem):
    r"""Independent bouncing balls in one state.

    $$\dot q_i = v_i, \quad \dot v_i = -g, \qquad
    v_i^+ = -e \, v_i^- \text{ at } q_i = 0, \qquad i = 0, \dots, n - 1.$$

    Balls that hit the ground at the same instant do not influence each other, so the
    outcome does not depend on the order of the impacts.

    **Arguments:**

    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1, the same for every ball.

    **State:** an array of shape `(2 * n,)`: `n` heights (m), then `n` speeds (m/s,
    positive upwards). The number of balls is taken from it.

    **Mode:** a scalar integer, always 0.

    **Guards:** guard `i` is the height $q_i$.

    ??? cite "Reference"

        Problem P4 of the benchmarks, where there are ten.
    """

    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)

    def flow(self, t, x, mode, args):
        n = _count(x)
        return jnp.concatenate([x[n:], jnp.broadcast_to(-self.gravity, (n,))])

    def guards(self, t, x, mode, args):
        return x[: _count(x)]

    def jump(self, t, x, mode, event, args):
        n = _count(x)
        q, v = x[:n], x[n:]
        hits = jax.nn.one_hot(event, n, dtype=bool)
        return jnp.concatenate([q, jnp.where(hits, -self.restitution * v, v)]), mode


def _count(x) -> int:
    if x.ndim != 1 or x.shape[0] % 2 != 0:
        raise ValueError(
            "The state of `Balls` must be a vector of n heights and n speeds, but its "
            f"shape is {x.shape}."
        )
    return x.shape[0] // 2
