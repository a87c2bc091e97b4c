from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter


def sliding_mode_control(
    disturbance: Callable, gain: ArrayLike = 2.0, rate: ArrayLike = 1.5
) -> EventSelectedSystem:
    r"""A unit mass that a sliding-mode controller brings to rest at the origin.

    $$\dot x = v, \qquad \dot v = u + d(t), \qquad
    u = -c v - k \operatorname{sign} s, \qquad s = v + c x.$$

    As $\dot s = d - k \operatorname{sign} s$, the surface $s = 0$ is reached, for a
    constant $d$, after the time $|s_0| / (k - d \operatorname{sign} s_0)$. On it $x$
    decays at the rate $c$, whatever the disturbance is, as long as $|d| < k$.

    **Arguments:**

    - `disturbance`: callable `(t, args) -> d`, an acceleration.
    - `gain`: $k$, an acceleration.
    - `rate`: $c$, in 1/time.

    **Returns:**

    A `hj.EventSelectedSystem` with `sliding`, and the state $(x, v)$, an
    array of shape `(2,)`. Its mode is the sign of $s$, of shape `(1,)`, 0 on it.

    ??? cite "Reference"

        Utkin, *Sliding modes in control and optimization*, Chapter 1.
    """
    loop = _Loop(disturbance, parameter(gain), parameter(rate))
    return EventSelectedSystem(loop.field, loop.surface, sliding=True)


class _Loop(eqx.Module):
    disturbance: Callable
    gain: Float[Array, ""]
    rate: Float[Array, ""]

    def field(self, t, x, b, args):
        control = -self.rate * x[1] - self.gain * b[0]
        return jnp.stack([x[1], control + self.disturbance(t, args)])

    def surface(self, t, x, args):
        return (x[1] + self.rate * x[0])[None]
