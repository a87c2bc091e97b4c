import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree

from .._derivatives.shift_time import shift_time
from .._jax.deferred import deferred
from .._jax.gate import gate
from .path import Path


class EventLog(eqx.Module):
    """The events of a simulation, in order. All arrays have length `max_events`.

    Entries beyond `count` are padding, which static shapes need: infinite times, NaN
    states, event number -1.

    **Attributes:**

    - `t`: times, shape `(max_events,)`.
    - `event`: numbers of the guards that fired, shape `(max_events,)`.
    - `mode_before`, `mode_after`: modes.
    - `x_before`, `x_after`: left and right limits of the state.
    - `normal_speed`: rate dg/dt of the guard when it fired, negative: how far from
        grazing the event was. Shape `(max_events,)`.
    - `count`: how many events there were.

    Floats are differentiable. A derivative of `x_before` or `x_after` is that of the
    state at the event, whose time moves too.
    """

    t: Float[Array, " max_events"]
    event: Int[Array, " max_events"]
    mode_before: PyTree
    mode_after: PyTree
    x_before: PyTree
    x_after: PyTree
    normal_speed: Float[Array, " max_events"]
    count: Int[Array, ""]


def event_log(path: Path, max_events: int) -> EventLog:
    """Reads the events off the tape."""
    return deferred(functools.partial(_event_log, max_events=max_events), path)


def _event_log(path: Path, max_events: int) -> EventLog:
    tape = path.tape
    fired = tape.fired
    # Slots that stay empty repeat the first event: a reset may be undefined elsewhere.
    # Not `jnp.nonzero`, of which jax 0.12 cannot take a batch of batches.
    slot = jnp.arange(max_events)
    index = jnp.searchsorted(jnp.cumsum(fired), slot + 1)
    index = jnp.where(index < fired.shape[0], index, jnp.argmax(fired))
    valid = slot < tape.num_events
    system, t_event, x_pre = gate((path.system, tape.t_event, tape.x_pre), fired.any())

    def one(i, valid):
        mode = jtu.tree_map(lambda m: m[i], tape.mode)
        event = jnp.maximum(tape.event[i], 0)
        t, x = t_event[i], x_pre[i]
        time = jax.lax.stop_gradient(t)
        if system.n_guards == 0:
            mode_plus, x_plus, speed = mode, x, jnp.zeros_like(t)
        else:
            x = shift_time(system, time, x, mode, t - time)
            flow = system.flow(t, x, mode)
            speed = system.guard_rates(t, x, mode, flow)[1][event]
            x_plus, mode_plus = system.jump(t, x, mode, event)
        fill = lambda value: lambda a: jnp.where(valid, a, value)
        pad_mode = lambda m: jnp.where(valid, m, jnp.asarray(-1).astype(m.dtype))
        return EventLog(
            t=fill(jnp.inf)(t),
            event=fill(-1)(tape.event[i]),
            mode_before=jtu.tree_map(pad_mode, mode),
            mode_after=jtu.tree_map(pad_mode, mode_plus),
            x_before=path.unravel(fill(jnp.nan)(x)),
            x_after=path.unravel(fill(jnp.nan)(x_plus)),
            normal_speed=fill(jnp.nan)(speed),
            count=tape.num_events,
        )

    log = jax.vmap(one)(index, valid)
    return eqx.tree_at(lambda log: log.count, log, tape.num_events)
