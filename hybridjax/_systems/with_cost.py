from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .inner import start_of
from .names import Names
from .system import (
    AbstractHybridSystem,
    AbstractTimedSystem,
    names_of,
    next_time,
)


def with_cost(
    system: AbstractHybridSystem, running: Callable, terminal: Callable | None = None
) -> "SystemWithCost":
    r"""The same system, which also integrates a running cost.

    $$\psi = \int_{t_0}^{t_F} g(t, x, \dot x)\, \mathrm dt + w(t_F, x(t_F)), \qquad
    \dot z = g, \quad z(t_0) = 0$$

    As $z$ is part of the state, everything that holds for states holds for the cost:
    its error is controlled, it can be saved along the way, and its derivatives with
    respect to initial states, parameters and controls are right in forward and in
    reverse mode, across events too. Events leave $z$ as it is; where the running cost
    jumps there, so does the sensitivity of $z$. (A kink or jump of the running cost
    elsewhere, as in `abs` or a control that is interpolated, costs derivatives digits,
    as any kink of a vector field does: make it an event, or let steps end there, by
    `diffrax.ClipStepSizeController`.)

    **Arguments:**

    - `system`: any hybrid system.
    - `running`: callable `(t, x, dx, mode, args) -> g`, where `dx` is `dx/dt` in that
        mode: for a mechanical system `x` is `(q, v)`, and `dx` is `(v, acceleration)`.
        Multipliers and contact forces are what the methods of such systems return. $g$
        is a floating-point scalar, or a pytree of arrays: several costs at once.
    - `terminal`: callable `(t, x, args) -> w`, of the structure and shape of $g$, or
        `None`.

    **Returns:**

    A hybrid system.

    - Its state is the pair `(x, z)`: start it with `(x0, 0.0)`, or zeros of the
        structure and shape of $g$.
    - Modes, guards and events are those of `system`.
    - Its method `cost(t, x, args=None)` is what has been spent at a time, in a state
        `(x, z)`, if it ends there: `z`, and the terminal cost.

    !!! example

        ```python
        def effort(t, x, dx, mode, args):
            return args(t) ** 2

        system = hj.with_cost(system, effort, lambda t, x, args: (x[0] - 1.0) ** 2)
        sol = hj.simulate(system, 0.0, 1.0, (x0, 0.0), mode0, control)
        psi = system.cost(sol.t1, sol.x1, control)
        ```

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (5)-(8), (29).
    """
    if not isinstance(system, AbstractHybridSystem):
        raise ValueError(
            "Argument `system` must be a hybrid system, but it is a "
            f"{type(system).__name__}."
        )
    return SystemWithCost(system, running, terminal)


class SystemWithCost(AbstractTimedSystem):
    """What `hj.with_cost` returns."""

    system: AbstractHybridSystem
    running: Callable
    terminal: Callable | None

    def cost(self, t, x: tuple[PyTree, PyTree], args: PyTree = None) -> PyTree:
        """What has been spent at time `t` in the state `x`, a pair `(x, z)`, if it ends
        there: the integral so far and the terminal cost, a pytree like `z`."""
        state, z = x
        if self.terminal is None:
            return z
        end = self.terminal(t, state, args)
        _check("terminal", end, z)
        return jtu.tree_map(jnp.add, z, end)

    def next_time(self, t, x, mode, args):
        return next_time(self.system, t, x[0], mode, args)

    def flow(self, t, x, mode, args):
        state, z = x
        rates = self.system.flow(t, state, mode, args)
        spent = self.running(t, state, rates, mode, args)
        _check("running", spent, z)
        return rates, jtu.tree_map(lambda g, z: jnp.asarray(g, z.dtype), spent, z)

    def guards(self, t, x, mode, args):
        return self.system.guards(t, x[0], mode, args)

    def jump(self, t, x, mode, event, args):
        state, z = x
        state, mode = self.system.jump(t, state, mode, event, args)
        return (state, z), mode

    def start(self, t, x, mode, args):
        if not (isinstance(x, tuple) and len(x) == 2):
            raise ValueError(
                "The state of a system with a cost must be a pair `(x, z)`, of the "
                "state of the system and the cost so far. Start with `(x0, 0.0)`. It "
                f"is {eqx.tree_pformat(x)}."
            )
        state, z = x
        state, mode = start_of(self.system, t, state, mode, args)
        return (state, z), mode

    @property
    def naming(self) -> Names:
        return names_of(self.system)


def _check(name: str, got: Any, z: PyTree):
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    if jtu.tree_structure(got) != jtu.tree_structure(z) or shapes(got) != shapes(z):
        raise ValueError(
            f"Argument `{name}` must return costs with the structure and shapes of the "
            f"`z` of the state `(x, z)`, {shapes(z)}, but it returned {shapes(got)}. "
            "Start with zeros of the structure and shapes of the running cost."
        )
