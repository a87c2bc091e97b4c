"""The matrices of events, read from what a simulation recorded."""

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._derivatives.saltation import event_tangent
from .._derivatives.shift_time import shift_time


def event_matrices(sol) -> Float[Array, "max_events n n"]:
    """How perturbations at fixed time pass each event of the log, in the raveled state.
    Where several events share an instant, the last one has the matrix of all of them,
    in the order in which they were recorded, and the others have the identity, as
    padding has.

    An event inside its guard set happens when the one before did, so that it has no
    matrix of its own.
    """
    path = sol._path.open()
    system, tape = path.system, path.tape
    nothing = jtu.tree_map(lambda _: None, system)
    rows, valid = tape.event_rows(sol.events.t.shape[0])
    inner = tape.inner[rows] & valid
    closes = valid & ~jnp.append(inner[1:], False)
    identity = jnp.eye(tape.x_end.shape[0], dtype=tape.x_end.dtype)

    def body(carry, here):
        i, valid, inner, closes = here
        columns, times = carry
        columns = jnp.where(inner, columns, identity)
        times = jnp.where(inner, times, 0)
        mode = jtu.tree_map(lambda m: m[i], tape.mode)
        time = lax.stop_gradient(tape.t_event[i])
        t = tape.t_event[i]
        x = shift_time(system, time, tape.x_pre[i], mode, t - time)

        def push(dx, dt_last):
            tangents = (nothing, dx, dt_last)
            event = jnp.where(valid, tape.event[i], -1)
            return event_tangent(
                system, t, x, mode, event, tangents, tape.inside[i], False
            )

        new = jax.vmap(push, in_axes=(1, 0), out_axes=(1, 0))(columns, times)
        return new, jnp.where(closes, new[0], identity)

    init = identity, jnp.zeros_like(tape.x_end)
    return lax.scan(body, init, (rows, valid, inner, closes))[1]
