import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._system import AbstractHybridSystem, UNWATCHED
from ._parameter import parameter


class SpringHopper(AbstractHybridSystem):
    r"""A mass on a massless spring leg that hops on the spot.

    $$\ddot z = \begin{cases}
    -g & \text{flight} \\
    -g + (k / m)(L_0 - z) & \text{stance}
    \end{cases}$$

    The state does not jump. The force is continuous at touchdown and liftoff (only its
    slope is not), and the energy is conserved:
    $m v^2 / 2 + m g z$, in stance plus $k (L_0 - z)^2 / 2$.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `stiffness`: $k$, in N/m.
    - `rest_length`: $L_0$, in m.
    - `gravity`: $g$, in m/s².

    **State:** an array of shape `(2,)`: the height $z$ (m) and the speed $\dot z$
    (m/s), positive upwards.

    **Mode:** a scalar integer: 0 in flight, 1 in stance.

    **Guards:** 0 is touchdown, $z - L_0$, watched in flight; 1 is liftoff, $L_0 - z$,
    watched in stance.

    ??? cite "Reference"

        Anderson, Revzen, *Rapid integrator for a class of multi-contact systems*; the
        numbers are those of problem P2 of the benchmarks.
    """

    mass: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    stiffness: Float[Array, ""] = eqx.field(converter=parameter, default=100.0)
    rest_length: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)

    def flow(self, t, x, mode, args):
        z, v = x
        push = self.stiffness / self.mass * (self.rest_length - z)
        return jnp.stack([v, jnp.where(mode == 1, push, 0.0) - self.gravity])

    def guards(self, t, x, mode, args):
        above = x[0] - self.rest_length
        return jnp.stack(
            [
                jnp.where(mode == 0, above, UNWATCHED),
                jnp.where(mode == 1, -above, UNWATCHED),
            ]
        )

    def jump(self, t, x, mode, event, args):
        return x, 1 - mode
