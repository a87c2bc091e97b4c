import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class ImpactOscillator(AbstractHybridSystem):
    r"""A mass on a spring and a damper, driven by a periodic force, that hits a stop.

    $$m \ddot q + c \dot q + k q = A \cos \omega t, \qquad
    \dot q^+ = -e\, \dot q^- \text{ at } q = d.$$

    Without impacts, it swings with the amplitude $A / \sqrt{(k - m \omega^2)^2 + (c
    \omega)^2}$: where that is $d$, the stop is grazed. An orbit of period $T$ with one
    impact has multipliers whose product is $e^2 \exp(-c T / m)$.

    **Arguments:**

    - `amplitude`: $A$, in N.
    - `frequency`: $\omega$, in rad/s.
    - `stop`: $d$, in m.
    - `restitution`: $e$, from 0 to 1.
    - `mass`, `damping`, `stiffness`: $m$, $c$ and $k$, in kg, N s/m and N/m.

    **State:** an array of shape `(2,)`: the place $q$ (m) and the speed (m/s).

    **Mode:** a scalar integer, always 0.

    **Guards:** 0 is $d - q$.

    ??? cite "Reference"

        Shaw, Holmes, *A periodically forced piecewise linear oscillator* (1983);
        Nordmark, *Non-periodic motion caused by grazing incidence in an impact
        oscillator* (1991).
    """

    amplitude: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    frequency: Float[Array, ""] = eqx.field(converter=parameter, default=2.0)
    stop: Float[Array, ""] = eqx.field(converter=parameter, default=0.0)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)
    mass: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=0.1)
    stiffness: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)

    def flow(self, t, x, mode, args):
        force = self.amplitude * jnp.cos(self.frequency * t)
        force = force - self.damping * x[1] - self.stiffness * x[0]
        return jnp.stack([x[1], force / self.mass])

    def guards(self, t, x, mode, args):
        return self.stop - x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -self.restitution * x[1]]), mode
