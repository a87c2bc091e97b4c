import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._jax.branch import switch
from .._jax.gate import gate
from .._jax.reduce import least
from .clock import AbstractClock, Clock, together, until
from .inner import as_like, start_of, time_within
from .names import Names
from .parameter import in_dtype
from .system import (
    AbstractHybridSystem,
    AbstractTimedSystem,
    names_of,
)


_HOLDS = ("zero_order", "pulse_width")


class SampledState(eqx.Module):
    """The state of a `hj.SampledDataSystem`.

    - `x`: the state of the plant.
    - `z`: the state of the controller, floating-point arrays of it only.
    - `u`: what the controller put out at its last sample, likewise.
    """

    x: PyTree
    z: PyTree
    u: PyTree


class SampledMode(eqx.Module):
    """The mode of a `hj.SampledDataSystem`.

    - `mode`: the mode of the plant, `()` if it is a vector field.
    - `z`, `u`: integers and booleans of the controller's state and output.
    - `tick`: the number of the next tick of the clock.
    - `pulses`: with `hold="pulse_width"`, which outputs are on, in the order in which
        `u` is raveled.
    """

    mode: PyTree
    z: PyTree
    u: PyTree
    tick: Int[Array, ""]
    pulses: Bool[Array, " pulses"]


class SampledDataSystem(AbstractTimedSystem):
    r"""A plant in continuous time, and a controller in discrete time.

    $$\dot x = f(t, x, u), \qquad (z^+, u^+) = c(t_k, x(t_k), z) \text{ at the ticks }
    t_k,$$

    and in between the controller's state $z$ does not change. With a zero-order hold
    $u$ does not change either. With pulse-width modulation $u$ is a duty cycle: the
    plant gets 1 from $t_k$ on, and 0 from $t_k + u T$ on, until the next tick.

    All derivatives are exact: with respect to the plant, gains of the controller, `z0`,
    and the period and phase of the clock; and duty cycles may depend on what was
    sampled. Steps of the solver end at ticks and at the ends of pulses, without being
    made twice.

    **Arguments:**

    - `plant`: callable `(t, x, u, args) -> dx/dt`; or a hybrid system, whose functions
        get the pair `(u, args)` as their `args`.
    - `controller`: callable `(t, x, z, args) -> (z, u)`, called at each tick. `u` is
        any pytree; for pulses, of floating-point arrays: the duty cycle of each.
    - `clock`: a `hj.Clock`, or with a zero-order hold a
        `hj.PresetTimes`.
    - `z0`: initial state of the controller, any pytree of floating-point, integer and
        boolean arrays. `None` for a controller that has none.
    - `u0`: $u$ before the first tick. `None`: zeros. Pulses are off until then. It must
        be given where the plant is a `SampledDataSystem` itself.
    - `hold`: `"zero_order"` or `"pulse_width"`.

    **Simulation:** `x0` is the state of the plant, and `mode0` its mode; a vector field
    has none. The state of this system is a `hj.SampledState`, its mode a
    `hj.SampledMode`. To go on where a simulation has ended, pass both,
    `sol.x1` and `sol.mode1`. A tick at $t_0$ happens, and so does one at $t_1$.

    **Events:** 0 is a tick; with pulses of shape `(n,)`, $1, \dots, n$ are their ends;
    those of the plant follow. A tick comes before what else happens in that instant. A
    duty cycle that is not positive is a pulse that ends in the instant in which it
    begins; where it is 1 or more, there is no end: the next tick comes first. At 0 and
    at 1 derivatives are one-sided.

    **Several rates:** a plant may be a `SampledDataSystem` itself, whose controller
    then gets the pair `(u, args)` of the outer one: a fast loop within a slow one.
    Where both tick, the outer one is the first. One controller whose `z` counts ticks
    may do some of its work at every n-th only; then there are derivatives with respect
    to the period, on which both rates depend. For anything else, see
    `hj.with_clocks`.

    **Raises:**

    - `ValueError` if the arguments are not such, or, when simulated, if the controller
        does not return a pair of which the first is like `z0`.

    !!! example

        ```python
        def plant(t, x, u, args):  # a cart
            return jnp.stack([x[1], u])

        def controller(t, x, z, args):  # proportional, integral, derivative
            z = z + 0.1 * x[0]
            return z, -4.0 * x[0] - 3.0 * x[1] - z

        system = hj.SampledDataSystem(plant, controller, hj.Clock(0.1), z0=0.0)
        sol = hj.simulate(system, 0.0, 5.0, jnp.array([1.0, 0.0]))
        position, u = sol.x1.x[0], sol.x1.u
        ```
    """

    plant: Callable | AbstractHybridSystem
    controller: Callable
    clock: AbstractClock
    z0: PyTree
    u0: PyTree
    hold: str = eqx.field(static=True)

    def __init__(
        self,
        plant: Callable | AbstractHybridSystem,
        controller: Callable,
        clock: AbstractClock,
        z0: PyTree = None,
        u0: PyTree = None,
        hold: Literal["zero_order", "pulse_width"] = "zero_order",
    ):
        for name, value in (("plant", plant), ("controller", controller)):
            fine = isinstance(value, AbstractHybridSystem) and name == "plant"
            if not (callable(value) or fine):
                raise ValueError(
                    f"Argument `{name}` must be callable, but it is a "
                    f"{type(value).__name__}."
                )
        if not isinstance(clock, AbstractClock):
            raise ValueError(
                "Argument `clock` must be a `hj.Clock` or `hj.PresetTimes`, but it is "
                f"a {type(clock).__name__}. Of a period, make it `hj.Clock(period)`."
            )
        if hold not in _HOLDS:
            raise ValueError(
                f"Argument `hold` must be one of {_HOLDS}, but it is {hold!r}."
            )
        if hold == "pulse_width" and not isinstance(clock, Clock):
            raise ValueError(
                'Argument `clock` must be a `hj.Clock` for `hold="pulse_width"`: a '
                "duty cycle is a share of its period."
            )
        self.plant = plant
        self.controller = controller
        self.clock = clock
        self.z0 = jtu.tree_map(_array, z0)
        self.u0 = jtu.tree_map(_array, u0)
        self.hold = hold

    #
    # Parts
    #

    def signal(self, x: SampledState, mode: SampledMode) -> PyTree:
        """What the plant gets: the output that is held, or pulses."""
        if self.hold == "zero_order":
            return eqx.combine(x.u, mode.u)
        duty, unravel = ravel_pytree(x.u)
        return unravel(mode.pulses.astype(duty.dtype))

    def ends(
        self, x: SampledState, mode: SampledMode, dtype
    ) -> Float[Array, " pulses"]:
        """When the pulses end; infinite where there is none."""
        if self.hold == "zero_order":
            return jnp.zeros((0,), dtype)
        duty, _ = ravel_pytree(x.u)
        ends = self.clock.time((mode.tick - 1).astype(dtype) + duty, dtype)
        return jnp.where(mode.pulses, ends, jnp.inf)

    def tick(self, t, x: SampledState, mode: SampledMode, args):
        """When the clock ticks next, and when something of the plant comes."""
        plant_args = (self.signal(x, mode), args)
        within = time_within(self.plant, t, x.x, mode.mode, plant_args)
        return together(self.clock.time(mode.tick, t.dtype), within), within

    def sample(self, t, x, z, args) -> tuple[PyTree, PyTree]:
        """The controller, and whether it returns what it should."""
        out = self.controller(t, x, z, args)
        if not isinstance(out, tuple) or len(out) != 2:
            raise ValueError(
                "Argument `controller` must return a pair `(z, u)` of its state and "
                f"its output, but it returned {eqx.tree_pformat(out)}. One without a "
                "state returns `(None, u)`."
            )
        message = "Argument `controller` must return `(z, u)` with a `z` like `z0`"
        return as_like(out[0], z, message), jtu.tree_map(_array, out[1])

    #
    # The system
    #

    def next_time(self, t, x, mode, args):
        tick, within = self.tick(t, x, mode, args)
        times = jnp.stack([tick, within, *self.ends(x, mode, t.dtype)])
        return least(times)

    def flow(self, t, x, mode, args):
        signal = self.signal(x, mode)
        if isinstance(self.plant, AbstractHybridSystem):
            rates = self.plant.flow(t, x.x, mode.mode, (signal, args))
        else:
            rates = self.plant(t, x.x, signal, args)
        still = jtu.tree_map(jnp.zeros_like, (x.z, x.u))
        return SampledState(rates, *still)

    def guards(self, t, x, mode, args):
        tick, _ = self.tick(t, x, mode, args)
        guards = [until(tick, t)[None], until(self.ends(x, mode, t.dtype), t)]
        if isinstance(self.plant, AbstractHybridSystem):
            plant_args = (self.signal(x, mode), args)
            guards.append(self.plant.guards(t, x.x, mode.mode, plant_args))
        return jnp.concatenate(guards)

    def jump(self, t, x, mode, event, args):
        n = 1 + mode.pulses.size

        def ticked(t, x, args):
            system, t_, x_, args_ = gate((self, t, x, args), event == 0)
            z = eqx.combine(x_.z, mode.z)
            (z, z_ints), (u, u_ints) = (
                eqx.partition(tree, eqx.is_inexact_array)
                for tree in system.sample(t_, x_.x, z, args_)
            )
            message = "Argument `controller` must return `(z, u)` with `u` as before"
            u, u_ints = as_like((u, u_ints), (x.u, mode.u), message)
            on = jnp.ones_like(mode.pulses)
            new = SampledMode(mode.mode, z_ints, u_ints, mode.tick + 1, on)
            return SampledState(x.x, z, u), new

        def ended(t, x, args):
            on = mode.pulses & (jnp.arange(1, n) != event)
            return x, SampledMode(mode.mode, mode.z, mode.u, mode.tick, on)

        def within(t, x, args):
            system, t_, x_, args_ = gate((self, t, x, args), event >= n)
            args_ = system.signal(x_, mode), args_
            number = jnp.maximum(event - n, 0)
            new = system.plant.jump(t_, x_.x, mode.mode, number, args_)
            message = "`jump` must return a pair like the state and the mode"
            plant, inner = as_like(new, (x.x, mode.mode), message)
            inner = SampledMode(inner, mode.z, mode.u, mode.tick, mode.pulses)
            return SampledState(plant, x.z, x.u), inner

        branches, kind = [ticked], jnp.minimum(event, 0)
        if n > 1:
            branches, kind = [*branches, ended], kind + (event >= 1)
        if isinstance(self.plant, AbstractHybridSystem):
            branches, kind = [*branches, within], kind + (event >= n)
        return switch(kind, branches, t, x, args)

    def start(self, t, x, mode, args):
        goes_on = isinstance(x, SampledState), isinstance(mode, SampledMode)
        if all(goes_on):
            return x, mode
        if any(goes_on):
            raise ValueError(
                "To go on where a simulation of a `hj.SampledDataSystem` has ended, "
                "pass both its `x1` and its `mode1` as `x0` and `mode0`. To begin "
                "anew, pass the state and the mode of the plant."
            )
        z, u = (in_dtype(tree, t.dtype) for tree in (self.z0, self.u0))
        if self.u0 is None:
            u = self.output(t, x, z, args)
        (z_floats, z_ints), (u_floats, u_ints) = (
            eqx.partition(tree, eqx.is_inexact_array) for tree in (z, u)
        )
        modulated = self.hold == "pulse_width"
        if modulated and jtu.tree_leaves(u_ints):
            raise ValueError(
                "Argument `controller` must put out floating-point duty cycles for "
                '`hold="pulse_width"`, but some are integers or booleans.'
            )
        size = ravel_pytree(u_floats)[0].size if modulated else 0
        rest = z_ints, u_ints, self.clock.first(t), jnp.zeros((size,), bool)
        if isinstance(self.plant, AbstractHybridSystem):
            begin = SampledState(x, z_floats, u_floats), SampledMode((), *rest)
            x, mode = start_of(self.plant, t, x, mode, (self.signal(*begin), args))
            mode = jtu.tree_map(jnp.asarray, mode)
        elif mode is None:
            mode = ()
        else:
            raise ValueError(
                "Argument `mode0` must be left out: the plant of this system is a "
                "vector field, which has no modes."
            )
        if self.u0 is not None:
            message = "Argument `u0` must be like what the controller puts out"
            as_like(u, self.output(t, x, z, args), message)
        return SampledState(x, z_floats, u_floats), SampledMode(mode, *rest)

    def output(self, t, x, z, args) -> PyTree:
        """What the controller puts out, with zeros."""
        if self.u0 is None and isinstance(self.plant, SampledDataSystem):
            raise ValueError(
                "Argument `u0` must be given, where the plant is a "
                "`hj.SampledDataSystem` itself: what the controller puts out before "
                "its first sample, for example `u0=0.0`."
            )
        _, out = eqx.filter_eval_shape(self.sample, t, x, z, args)
        zeros = jtu.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), out)
        return in_dtype(zeros, t.dtype)

    @property
    def naming(self) -> Names:
        plant = self.plant
        inner = names_of(plant) if isinstance(plant, AbstractHybridSystem) else Names()
        # Pulses, of which there may be any number, come between.
        guards = inner.guards if self.hold == "zero_order" else ()
        return dataclasses.replace(inner, guards=("clock", *guards))


def _array(leaf: Any) -> Array:
    """As an array; Python's integers as those of modes."""
    if hasattr(leaf, "dtype"):
        return jnp.asarray(leaf)
    kind = jnp.int32 if isinstance(leaf, int) and not isinstance(leaf, bool) else None
    return jnp.asarray(leaf, kind or jnp.result_type(leaf))
