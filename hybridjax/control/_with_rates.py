from collections.abc import Callable

import jax.numpy as jnp

from .._systems.inner import start_of
from .._systems.names import Names
from .._systems.system import (
    AbstractHybridSystem,
    AbstractTimedSystem,
    names_of,
    next_time,
)


def with_rates(
    system: AbstractHybridSystem, args_of: Callable | None = None
) -> "SystemWithRates":
    r"""The same system with controls that are continuous: their rates are the controls.

    $$\dot x = F(t, x, m, v), \quad \dot v = u$$

    With rates that are held from knot to knot, $v$ is piecewise linear. Where a control
    jumps at a knot, a cost has a kink as soon as an event comes to that knot, and an
    optimum likes to be there: no gradient vanishes at it. With continuous controls a
    cost is smooth where events pass knots, so that `hj.control.ilqr` converges to an
    optimum.

    **Arguments:**

    - `system`: any hybrid system.
    - `args_of`: a function that makes the `args` of the system from $v$, of shape
        `(m,)`. `None` where they are the control.

    **Returns:**

    A hybrid system.

    - Its state is the pair `(x, v)`: start it with the first value of the controls.
    - Its `args` are the rates $u$, of shape `(m,)`.
    - Modes, guards and events are those of `system`.
    """
    if not isinstance(system, AbstractHybridSystem):
        raise ValueError(
            "Argument `system` must be a hybrid system, but it is a "
            f"{type(system).__name__}."
        )
    return SystemWithRates(system, args_of)


class SystemWithRates(AbstractTimedSystem):
    """What `hj.control.with_rates` returns."""

    system: AbstractHybridSystem
    args_of: Callable | None

    def _args(self, v):
        return v if self.args_of is None else self.args_of(v)

    def flow(self, t, x, mode, args):
        state, v = x
        return self.system.flow(t, state, mode, self._args(v)), args

    def guards(self, t, x, mode, args):
        return self.system.guards(t, x[0], mode, self._args(x[1]))

    def jump(self, t, x, mode, event, args):
        state, v = x
        state, mode = self.system.jump(t, state, mode, event, self._args(v))
        return (state, v), mode

    def next_time(self, t, x, mode, args):
        return next_time(self.system, t, x[0], mode, self._args(x[1]))

    def start(self, t, x, mode, args):
        if not (isinstance(x, tuple) and len(x) == 2 and jnp.ndim(x[1]) == 1):
            raise ValueError(
                "The state of a system with rates must be a pair `(x, v)`, of the "
                "state of the system and a vector of its controls."
            )
        state, v = x
        state, mode = start_of(self.system, t, state, mode, self._args(v))
        return (state, v), mode

    @property
    def naming(self) -> Names:
        return names_of(self.system)
