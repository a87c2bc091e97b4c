import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class BallOnPaddle(AbstractHybridSystem):
    r"""A ball that bounces on a paddle, which moves up and down.

    The paddle is heavy: its height is $p(t) = A \sin(2 \pi f t)$ and its speed
    $w(t) = \dot p(t)$, whatever the ball does.

    $$\dot q = v, \quad \dot v = -g, \qquad
    v^+ = w - e (v^- - w) \text{ at } q = p(t).$$

    Both the guard and the reset depend on time.

    **Arguments:**

    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.
    - `amplitude`: $A$, in m.
    - `frequency`: $f$, in Hz.

    **State:** an array of shape `(2,)`: the height $q$ (m) and the speed $v$ (m/s) of
    the ball in the frame of the ground, positive upwards.

    **Mode:** a scalar integer, always 0.

    **Guards:** 0 is the gap $q - p(t)$.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Section V-D, names the paddle juggler as
        the example of a guard and a reset that depend on time.
    """

    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)
    amplitude: Float[Array, ""] = eqx.field(converter=parameter, default=0.02)
    frequency: Float[Array, ""] = eqx.field(converter=parameter, default=3.0)

    def paddle(self, t) -> tuple[Array, Array]:
        """The height (m) and the speed (m/s) of the paddle at time `t` (s)."""
        rate = 2 * jnp.pi * self.frequency
        height = self.amplitude * jnp.sin(rate * t)
        return height, self.amplitude * rate * jnp.cos(rate * t)

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -self.gravity])

    def guards(self, t, x, mode, args):
        height, _ = self.paddle(t)
        return jnp.stack([x[0] - height])

    def jump(self, t, x, mode, event, args):
        _, speed = self.paddle(t)
        return jnp.stack([x[0], speed - self.restitution * (x[1] - speed)]), mode
