"""The derivative of one event: the saltation rule."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._jax.directional import directional
from .._systems.flat import FlatSystem, flatten_system
from .._systems.start import start
from .._systems.system import AbstractHybridSystem
from .shift_time import shift_time


def event_tangent(
    system: FlatSystem,
    t,
    x,
    mode,
    event,
    tangents: tuple,
    inside,
    at_start,
):
    """Pushes a tangent through one event (Kong (2), with the parameter terms).

    For a tangent `dx` at fixed time, and `dsystem` of the parameters,

        dt  = -(D_x g dx + D_s g dsystem) / (D_t g + D_x g F)
        dx+ = DR[dt, dx + F dt, dsystem] - F+ dt

    An event that fires because a reset, or the start, put the state into the guard set
    happens when that did: `dt` is then `dt_last`, the tangent of that time.

    **Arguments:**

    - `tangents`: `(dsystem, dx, dt_last)`, the first with `None` where zero.
    - `inside`: is the state inside of the guard set, and not on its boundary?
    - `at_start`: is this where the flow starts, at the start of the simulation or in
        the instant of the event before? Then the event happens at that time or later,
        on whichever side the tangent points.

    **Returns:**

    The tangents `(dx+, dt)`.
    """
    dsystem, dx, dt_last = tangents
    flow = system.flow(t, x, mode)
    fired = event >= 0
    event = jnp.where(fired, event, 0)
    still = dsystem, jnp.zeros_like(t), dx
    _, rates, dgs = system.guard_tangents(t, x, mode, flow, still)
    rate, dg = rates[event], dgs[event]
    # A lane without an event passes here too, under vmap.
    dt = -dg / jnp.where(fired & ~inside, rate, 1)
    dt = jnp.where(at_start, jnp.maximum(dt, dt_last), dt)
    dt = jnp.where(inside, dt_last, dt)

    def jump(system, t, x):
        return system.jump(t, x, mode, event)

    (x_plus, mode_plus), (dx_plus, _) = directional(
        jump, (system, t, x), (dsystem, dt, dx + flow * dt)
    )
    return dx_plus - system.flow(t, x_plus, mode_plus) * dt, dt


def event_map(system: FlatSystem, t, x, mode, event):
    """One event as a map of states at the fixed time `t`, that of the event: flow to
    where the guard is met, jump, and flow back.

    At a state on the guard it is the reset; its first derivative there is the
    saltation rule, and its second derivative is right too
    (`docs/concepts/one_event.md`). Costs more than `event_tangent`, so that first
    derivatives do without it.

    **Returns:**

    The state after the event, at time `t`, and by how much later the guard is met.
    """
    guard = lambda t, x: system.guards(t, x, mode)[event]

    def shift(t, x):
        # A step of Newton's method along the flow: the second one makes it exact to
        # second order, and beyond.
        flow = system.flow(t, x, mode)
        one = jnp.ones_like(t)
        g, rate = jax.jvp(guard, (t, x), (one, flow))
        return -g / jnp.where(rate == 0, 1, rate)

    delta = shift(t, x)
    delta = delta + shift(t + delta, shift_time(system, t, x, mode, delta))
    x_plus, mode_plus = system.jump(
        t + delta, shift_time(system, t, x, mode, delta), mode, event
    )
    return shift_time(system, t + delta, x_plus, mode_plus, -delta), delta


def saltation_matrix(
    system: AbstractHybridSystem,
    t: Any,
    x: PyTree,
    mode: Any,
    event: Any,
    args: PyTree = None,
) -> Float[Array, "n_target n_source"]:
    """The saltation matrix of one event: how perturbations at fixed time pass it.

    **Arguments:**

    - `system`: the system.
    - `t`: time of the event, in the system's unit of time.
    - `x`: state before the event (the left limit), on the guard.
    - `mode`: mode before the event. Names of an automaton's modes are accepted.
    - `event`: number of the guard that fires.
    - `args`: as passed to `hj.simulate`.

    **Returns:**

    A matrix of shape `(n_target, n_source)`, the sizes of the raveled states after and
    before.

    **Raises:**

    - `ValueError` if the system's functions return wrong structures, or `event` is not
      the number of a guard.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Equation (2).
    """
    begin = start(system, t, x, mode, args)
    flat, x_flat, _ = flatten_system(system, begin.t, begin.x, begin.mode, args)
    if isinstance(event, (int, np.integer)) and not 0 <= event < flat.n_guards:
        raise ValueError(
            f"Argument `event` must be the number of a guard, from 0 to "
            f"{flat.n_guards - 1}, but it is {event}."
        )
    event_: Int[Array, ""] = jnp.asarray(event, jnp.int32)
    nothing = jtu.tree_map(lambda _: None, flat)
    zero = jnp.zeros_like(begin.t)

    def push(dx):
        tangents = (nothing, dx, zero)
        # On the guard, whatever rounding says.
        inside = jnp.asarray(False)
        return event_tangent(
            flat, begin.t, x_flat, begin.mode, event_, tangents, inside, False
        )[0]

    matrix = jax.vmap(push, out_axes=1)(jnp.eye(x_flat.shape[0], dtype=x_flat.dtype))
    mode_after = lambda: flat.jump(begin.t, x_flat, begin.mode, event_)[1]
    return begin.restrict(matrix, event, event, mode_after)
