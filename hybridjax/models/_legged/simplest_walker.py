import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem, UNWATCHED
from .compass_gait import legs


class SimplestWalker(AbstractHybridSystem):
    r"""Two stiff legs that walk down a slope, with all mass in the hip: the limit in
    which feet are infinitely light.

    In units of leg length and of $\sqrt{\ell / g}$, with the angle $\theta$ of the
    stance leg to the normal of the slope, and $\phi$ between the legs,

    $$\ddot\theta = \sin(\theta - \gamma), \qquad
    \ddot\phi = \ddot\theta + \dot\theta^2 \sin\phi - \cos(\theta - \gamma) \sin\phi.$$

    The swing foot is on the slope where $\phi = 2\theta$, and also where the legs pass
    each other; it is assumed to clear the ground there. So it lands at the first of
    these only after the second, and the legs change their names:

    $$\theta^+ = -\theta, \quad \dot\theta^+ = \dot\theta \cos 2\theta, \quad
    \phi^+ = -2\theta, \quad \dot\phi^+ = \dot\theta (1 - \cos 2\theta) \cos 2\theta.$$

    **Arguments:**

    - `slope`: $\gamma$, in rad.

    **State:** an array of shape `(4,)`: $\theta, \phi$ (rad), and their rates.

    **Mode:** a scalar integer: 0 while the swing leg is behind the stance leg, then 1.

    **Guards:** 0 is $\phi - 2\theta$, in mode 0: the legs pass each other. 1 is its
    negative, in mode 1: the swing foot lands.

    ??? cite "Reference"

        Garcia, Chatterjee, Ruina, Coleman, *The simplest walking model: stability,
        complexity, and scaling* (1998), (1) to (4).
    """

    slope: Float[Array, ""] = eqx.field(converter=parameter, default=0.009)

    def flow(self, t, x, mode, args):
        theta, phi, theta_rate, phi_rate = x
        theta_acc = jnp.sin(theta - self.slope)
        pull = theta_rate**2 - jnp.cos(theta - self.slope)
        return jnp.stack(
            [theta_rate, phi_rate, theta_acc, theta_acc + pull * jnp.sin(phi)]
        )

    def guards(self, t, x, mode, args):
        theta, phi, _, _ = x
        height = phi - 2 * theta
        passing = jnp.where(mode == 0, height, UNWATCHED)
        landing = jnp.where(mode == 1, -height, UNWATCHED)
        return jnp.stack([passing, landing])

    def jump(self, t, x, mode, event, args):
        theta, _, rate, _ = x
        cos = jnp.cos(2 * theta)
        landed = jnp.stack([-theta, -2 * theta, cos * rate, cos * (1 - cos) * rate])
        return jnp.where(event == 1, landed, x), jnp.where(event == 1, 0, 1).astype(
            mode.dtype
        )

    def links(self, x: Float[Array, "4"]) -> Float[Array, "2 2 2"]:
        """As `hj.models.CompassGait.links`, in leg lengths."""
        theta, phi, _, _ = jnp.asarray(x)
        return legs(theta - self.slope, theta - phi - self.slope)
