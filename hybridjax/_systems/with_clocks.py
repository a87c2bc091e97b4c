import dataclasses
from collections.abc import Callable, Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Int, PyTree

from .._jax.branch import switch
from .._jax.gate import gate
from .._jax.reduce import least
from .clock import AbstractClock, together, until
from .inner import as_like, mode_index, start_of, time_within
from .names import Names
from .system import (
    AbstractHybridSystem,
    AbstractTimedSystem,
    names_of,
)


def with_clocks(
    system: AbstractHybridSystem,
    clocks: Mapping[str, tuple[AbstractClock, Callable]],
) -> "ClockedSystem":
    r"""The same system, to which something happens at given times.

    A tick is an event like any other: it is located, is in the log, and may change the
    state and the mode. Steps of the solver end at ticks without being made twice, and
    times of ticks are exact to rounding, also after many of them. They are
    differentiable: with respect to periods, phases and tables of times.

    **Arguments:**

    - `system`: any hybrid system. (One without events of its own:
        `hj.HybridAutomaton({"on": vector_field}, [])`.)
    - `clocks`: mapping from the name of a clock to a pair `(clock, tick)`: a
        `hj.Clock` or `hj.PresetTimes`, and a callable
        `(t, x, mode, args) -> (x, mode)` that says what becomes of the state and the
        mode of `system` when it ticks. The mode of an automaton may be returned by
        name.

    **Returns:**

    A hybrid system.

    - Its state is that of `system`. Start it with the mode of `system`; its own mode is
        a `hj.ClockedMode`, which also counts ticks. To go on where a
        simulation has ended, pass its `mode1`: else a tick at that time happens again.
    - Its guards are the clocks, in the order of `clocks`, and then those of `system`:
        event 0 is a tick of the first clock.
    - Clocks that tick in one instant, up to rounding, tick in the order of `clocks`
        (of systems with clocks within each other, the outer ones come first). With
        respect to the state, and to parameters that move no clock, there is a
        derivative there too.

    `simulate(max_events=...)` must be at least the number of ticks and other events. A
    tick at $t_0$ happens, and so does one at $t_1$.

    **Raises:**

    - `ValueError` if the arguments are not such, or, when simulated, if a tick does not
        return a pair of a state and a mode like those it was given.

    !!! example

        ```python
        def kick(t, x, mode, args):
            return x + jnp.array([0.0, 1.0]), mode  # height and speed

        ball = hj.with_clocks(BouncingBall(), {"kick": (hj.Clock(0.5, 0.1), kick)})
        sol = hj.simulate(ball, 0.0, 3.0, jnp.array([1.0, 0.0]), 0)
        ```
    """
    if not isinstance(system, AbstractHybridSystem):
        raise ValueError(
            "Argument `system` must be a hybrid system, but it is a "
            f"{type(system).__name__}. Of a vector field, make one by "
            '`hj.HybridAutomaton({"on": vector_field}, [])`.'
        )
    if not isinstance(clocks, Mapping) or len(clocks) == 0:
        raise ValueError(
            "Argument `clocks` must be a mapping from names to pairs `(clock, tick)`, "
            f"with one clock or more, but it is {clocks!r}."
        )
    for name, pair in clocks.items():
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not (is_pair and isinstance(pair[0], AbstractClock) and callable(pair[1])):
            raise ValueError(
                f"Argument `clocks` must have a pair `(clock, tick)` for {name!r}, of "
                "a `hj.Clock` or `hj.PresetTimes` and a callable, but it is "
                f"{eqx.tree_pformat(pair)}."
            )
    return ClockedSystem(
        system,
        tuple(clock for clock, _ in clocks.values()),
        tuple(tick for _, tick in clocks.values()),
        tuple(clocks),
    )


class ClockedMode(eqx.Module):
    """The mode of a system with clocks, see `hj.with_clocks`.

    - `mode`: the mode of the system within.
    - `ticks`: for each clock, the number of its next tick.
    """

    mode: PyTree
    ticks: Int[Array, " clocks"]


class ClockedSystem(AbstractTimedSystem):
    """What `hj.with_clocks` returns."""

    system: AbstractHybridSystem
    clocks: tuple[AbstractClock, ...]
    ticks: tuple[Callable, ...]
    names: tuple[str, ...] = eqx.field(static=True)

    def times(
        self, t, x, mode: ClockedMode, args
    ) -> tuple[Float[Array, " clocks"], Array]:
        """When each clock ticks next, and when something of the system within does."""
        within = time_within(self.system, t, x, mode.mode, args)
        times = []
        for clock, k in zip(self.clocks, mode.ticks, strict=True):
            times.append(together(clock.time(k, t.dtype), within, *times))
        return jnp.stack(times), within

    def next_time(self, t, x, mode, args):
        times, within = self.times(t, x, mode, args)
        return jnp.minimum(least(times), within)

    def flow(self, t, x, mode, args):
        return self.system.flow(t, x, mode.mode, args)

    def guards(self, t, x, mode, args):
        times, _ = self.times(t, x, mode, args)
        guards = self.system.guards(t, x, mode.mode, args)
        return jnp.concatenate([until(times, t), guards])

    def jump(self, t, x, mode, event, args):
        n = len(self.clocks)

        def ticked(j):
            def run(t, x, args):
                message = (
                    f"The tick of the clock {self.names[j]!r} must return a pair "
                    "`(x, mode)` like those that it is given"
                )
                tick, t_, x_, args_ = gate((self.ticks[j], t, x, args), event == j)
                new = tick(t_, x_, mode.mode, args_)
                if isinstance(new, tuple) and len(new) == 2:
                    new = new[0], mode_index(self.system, new[1])
                x_plus, inner = as_like(new, (x, mode.mode), message)
                count = jnp.arange(n) == j
                return x_plus, ClockedMode(inner, mode.ticks + count)

            return run

        def within(t, x, args):
            system, t_, x_, args_ = gate((self.system, t, x, args), event >= n)
            new = system.jump(t_, x_, mode.mode, jnp.maximum(event - n, 0), args_)
            message = "`jump` must return a pair like the state and the mode"
            x_plus, inner = as_like(new, (x, mode.mode), message)
            return x_plus, ClockedMode(inner, mode.ticks)

        branches = [*(ticked(j) for j in range(n)), within]
        return switch(jnp.minimum(event, n), branches, t, x, args)

    def start(self, t, x, mode, args):
        if isinstance(mode, ClockedMode):
            return x, mode
        x, mode = start_of(self.system, t, x, mode, args)
        mode = jtu.tree_map(jnp.asarray, mode)
        return x, ClockedMode(mode, jnp.stack([c.first(t) for c in self.clocks]))

    @property
    def naming(self) -> Names:
        inner = names_of(self.system)
        clocks = tuple(f"clock {name}" for name in self.names)
        return dataclasses.replace(inner, guards=(*clocks, *inner.guards))
