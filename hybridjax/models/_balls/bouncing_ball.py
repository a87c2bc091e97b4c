import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class BouncingBall(AbstractHybridSystem):
    r"""A ball that falls on the ground and bounces.

    $$\dot q = v, \quad \dot v = -g, \qquad v^+ = -e \, v^- \text{ at } q = 0.$$

    **Arguments:**

    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.

    **State:** an array of shape `(2,)`: the height $q$ (m) and the speed $v$ (m/s),
    positive upwards.

    **Mode:** a scalar integer, always 0.

    **Guards:** 0 is the height $q$.

    The bounces accumulate at a finite time, $(v_1 / g)(1 + e)/(1 - e)$ after an apex
    from which the ball falls to the ground with speed $v_1$: a solve must end before.
    (`hj.models.paddle_juggler` comes to rest, also on a paddle that does.)

    ??? cite "Reference"

        The standard example of a hybrid system; problem P1 of the benchmarks.
    """

    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -self.gravity])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -self.restitution * x[1]]), mode
