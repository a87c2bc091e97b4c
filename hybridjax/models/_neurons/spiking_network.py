import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class SpikingNetwork(AbstractHybridSystem):
    r"""Neurons that leak, integrate and fire, with exponential synapses.

    $$\tau_m \dot v_j = E_j - v_j + u_j, \qquad \tau_s \dot u_j = -u_j,$$

    and when $v_i$ rises to the threshold $\vartheta_i$, neuron $i$ fires:

    $$v_i^+ = r_i, \qquad u_j^+ = u_j^- + w_{ij} \text{ for all } j.$$

    The voltages are continuous in all other neurons, so that no spike makes another in
    its own instant, and two in one instant lead to the same state in either order.

    **Arguments:**

    - `weights`: $w_{ij}$, from neuron $i$ to neuron $j$, in V, shape `(n, n)`.
    - `drive`: $E_j$, the voltage to which a neuron without input settles, in V.
    - `membrane_time`, `synaptic_time`: $\tau_m$ and $\tau_s$, in s.
    - `threshold`, `reset`: $\vartheta_i > r_i$, in V.

    All but the weights are one for each neuron, of shape `(n,)`, or one for all.

    **State:** an array of shape `(2, n)`: the voltages $v$, and the synaptic currents
    times the resistance of the membrane, $u$, both in V.

    **Mode:** a scalar integer, always 0.

    **Guards:** guard `i` is $\vartheta_i - v_i$: event `i` is a spike of neuron `i`.

    A spike reads one row of the weights. Raise `max_events` and `max_steps` of
    `hj.simulate` to the number of spikes, and to a few times as many.

    ??? cite "Reference"

        Gerstner, Kistler, *Spiking neuron models*, Section 4.1. Wunderlich, Pehle,
        *Event-based backpropagation can compute exact gradients for spiking neural
        networks*, Table 1, where $\vartheta = 1$ and $r = 0$.
    """

    weights: Float[Array, "n n"] = eqx.field(converter=parameter)
    drive: Float[Array, "*n"] = eqx.field(converter=parameter)
    membrane_time: Float[Array, "*n"] = eqx.field(converter=parameter, default=0.02)
    synaptic_time: Float[Array, "*n"] = eqx.field(converter=parameter, default=0.005)
    threshold: Float[Array, "*n"] = eqx.field(converter=parameter, default=1.0)
    reset: Float[Array, "*n"] = eqx.field(converter=parameter, default=0.0)

    def flow(self, t, x, mode, args):
        v, u = self._parts(x)
        dv = (self.drive - v + u) / self.membrane_time
        return jnp.stack([dv, -u / self.synaptic_time])

    def guards(self, t, x, mode, args):
        return self.threshold - self._parts(x)[0]

    def jump(self, t, x, mode, event, args):
        v, u = self._parts(x)
        fires = jnp.arange(v.shape[0]) == event
        v = jnp.where(fires, self.reset, v)
        return jnp.stack([v, u + self.weights[event]]), mode

    def _parts(self, x):
        n = self.weights.shape[0]
        if self.weights.shape != (n, n) or x.shape != (2, n):
            raise ValueError(
                "The state of a `SpikingNetwork` must have shape (2, n), voltages and "
                "synaptic currents, and its `weights` shape (n, n), but they are "
                f"{x.shape} and {self.weights.shape}."
            )
        return x
