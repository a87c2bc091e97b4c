"""The network of `spikes.py` in eventax, which differentiates by the implicit function
theorem at each spike, as we do: `pip install eventax==0.1.0`."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from eventax.evnn import EvNN
from eventax.neuron_models import LIF


def eventax_voltages(
    drive, tolerance: float, t1: float, max_events: int, constants: dict[str, float]
) -> Callable:
    """From the weights, shape `(n, n)`, to the voltages at `t1`."""
    n = drive.size
    # It wants an input, which here is connected to nothing.
    padded = lambda weights: jnp.concatenate([weights, jnp.zeros((1, n))])
    network = EvNN(
        LIF,
        n_neurons=n,
        in_size=1,
        key=jax.random.key(0),
        # Later than `t1`, or that would not be reached.
        max_solver_time=1.001 * t1,
        max_event_steps=max_events,
        # The first step after each spike; and by this, how many there may be.
        solver_stepsize=t1 / 64,
        solver=diffrax.Tsit5(),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        root_finder=optx.Newton(tolerance, tolerance),
        dtype=drive.dtype,
        thresh=constants["threshold"],
        vreset=constants["reset"],
        tmem=constants["membrane_time"],
        tsyn=constants["synaptic_time"],
        init_weights=jnp.zeros((n + 1, n)),
        init_bias=drive,
        reset_grad_preserve=False,
    )

    def voltages(weights):
        model = eqx.tree_at(
            lambda network: network.neuron_model.weights, network, padded(weights)
        )
        return model.state_at_t(None, jnp.array([t1]))[:, 0, 0]

    return voltages
