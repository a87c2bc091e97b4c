"""States a little later, for times that are zero but carry derivatives."""

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax.deferred import push_through
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
        arrays, static = eqx.partition((system, t, x, mode), eqx.is_array)
        still = jtu.tree_map(lambda _: None, mode)
        d_flow = push_through(
            lambda arrays: _flow(*eqx.combine(arrays, static)),
            arrays,
            (t_system, t_t, t_x, still),
            x,
        )
        tangent = tangent + tau * d_flow
    if t_tau is not None:
        tangent = tangent + t_tau * system.flow(t + tau, shifted, mode)
    return shifted, tangent


def _flow(system: FlatSystem, t, x, mode):
    return system.flow(t, x, mode)
