import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter


def relay(gain: ArrayLike = 1.0, lead: ArrayLike = 0.8) -> EventSelectedSystem:
    r"""A double integrator under relay feedback.

    $$\dot x = v, \qquad \dot v = -k \operatorname{sign} s, \qquad s = x + c v.$$

    The surface $s = 0$ is crossed, from one parabola to another, while $|v| > c k$.
    Where it is met with less, both fields lead to it, and the state slides to the
    origin: $\dot x = -x / c$, and $v = -x / c$.

    **Arguments:**

    - `gain`: $k$, an acceleration.
    - `lead`: $c$, a time.

    **Returns:**

    A `hj.EventSelectedSystem` with `sliding`, and the state $(x, v)$, an
    array of shape `(2,)`. Its mode is the sign of $s$, of shape `(1,)`, 0 on it.

    ??? cite "Reference"

        Filippov, *Differential equations with discontinuous righthand sides*,
        Section 4. Utkin, *Sliding modes in control and optimization*, Chapter 1.
    """
    plant = _Relay(parameter(gain), parameter(lead))
    return EventSelectedSystem(plant.field, plant.surface, sliding=True)


class _Relay(eqx.Module):
    gain: Float[Array, ""]
    lead: Float[Array, ""]

    def field(self, t, x, b, args):
        return jnp.stack([x[1], -self.gain * b[0]])

    def surface(self, t, x, args):
        return (x[0] + self.lead * x[1])[None]
