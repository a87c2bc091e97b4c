import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class PushedBall(AbstractHybridSystem):
    r"""A ball that bounces on the ground, and is pushed up and down by a force.

    $$\dot q = v, \quad \dot v = u / m - g, \qquad v^+ = -e \, v^- \text{ at } q = 0.$$

    **Arguments:**

    - `mass`: $m$, in kg.
    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.

    **State:** an array of shape `(2,)`: the height $q$ (m) and the speed $v$ (m/s),
    positive upwards.

    **Mode:** a scalar integer, always 0.

    **Guards:** 0 is the height $q$.

    **args:** the force $u$ (N), positive upwards, of shape `(1,)`.

    ??? cite "Reference"

        Kong, Council, Johnson, *iLQR for piecewise-smooth hybrid dynamical systems*,
        Section IV-A.
    """

    mass: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.8)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.75)

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], args[0] / self.mass - self.gravity])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -self.restitution * x[1]]), mode
