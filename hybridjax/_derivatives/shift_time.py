"""States a little later, for times that are zero but carry derivatives."""

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax.directional import directional
from .._jax.tie import tie
from .._systems.flat import FlatSystem


@eqx.filter_custom_jvp
def shift_time(system: FlatSystem, t, x, mode, tau):
    """The state a time `tau` after `t`, for a `tau` that is nearly zero in value and
    carries derivatives: they are right to second order. The value is `x`."""
    return tie(x, (system, t, mode, tau))


@shift_time.def_jvp
def _shift_time_jvp(primals, tangents):
    system, t, x, mode, tau = primals
    t_system, t_t, t_x, _, t_tau = tangents
    shifted = shift_time(*primals)
    tangent = jnp.zeros_like(x) if t_x is None else t_x
    if t_x is not None or t_t is not None or jtu.tree_leaves(t_system):
        # Zero, but its derivative with respect to `tau` is not.
        _, d_flow = directional(
            lambda system, t, x: system.flow(t, x, mode),
            (system, t, x),
            (t_system, t_t, t_x),
        )
        tangent = tangent + tau * d_flow
    if t_tau is not None:
        tangent = tangent + t_tau * system.flow(t + tau, shifted, mode)
    return shifted, tangent
