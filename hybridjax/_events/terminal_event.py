from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from .._jax.tracing import is_traced
from .._systems.names import transition_between
from .._systems.system import AbstractHybridSystem, names_of


class TerminalEvent(eqx.Module):
    """An event at which a simulation ends: the `count`-th firing of a guard.

    Argument `terminal_event` of `hj.simulate`.

    **Arguments:**

    - `event`: number of the guard; or several, any of which counts; or the names
        `(source, target)` of the modes of a transition of a `hj.HybridAutomaton`, also
        within a system with costs or clocks.
    - `count`: how often it fires. May change, and differ from lane to lane, without a
        new compilation.

    **Raises:**

    - `ValueError` if `event` is no guard, or no transition, of the system that is
      simulated, or if `count` is not a positive integer.
    """

    event: tuple[Any, ...]
    count: Int[Array, ""]

    def __init__(self, event: Any, count: Any = 1):
        if not isinstance(count, bool) and isinstance(count, (int, np.integer)):
            if count < 1:
                raise ValueError(
                    f"Argument `count` must be at least 1, but it is {count}."
                )
        elif not jnp.issubdtype(jnp.result_type(count), jnp.integer):
            raise ValueError(f"Argument `count` must be an integer, not {count!r}.")
        self.event = _transition_or_numbers(event)
        self.count = jnp.asarray(count, jnp.int32)

    def guards(
        self, system: AbstractHybridSystem, n_guards: int
    ) -> Bool[np.ndarray, " n_guards"]:
        """Which guards count."""
        guards = names_of(system).guards
        if not isinstance(self.event[0], str):
            chosen = self.event
            if max(chosen) >= n_guards:
                raise ValueError(
                    f"Argument `terminal_event` names guard {max(chosen)}, but there "
                    f"are {n_guards}, with numbers from 0."
                )
        else:
            called = transition_between(*self.event)
            chosen = [i for i, name in enumerate(guards) if name == called]
            if not chosen:
                raise ValueError(
                    f"Argument `terminal_event` names the transition {self.event}, but "
                    f"the guards of this {type(system).__name__} are called {guards}. "
                    "Give the number of a guard."
                )
        return np.isin(np.arange(n_guards), chosen)


def _transition_or_numbers(event) -> Any:
    if isinstance(event, str):
        raise ValueError(
            "Argument `event` must be the number of a guard, or a pair of names of "
            f"modes, (source, target), but it is {event!r}."
        )
    several = event if isinstance(event, (tuple, list)) else (event,)
    if len(several) == 2 and all(isinstance(e, str) for e in several):
        return tuple(several)
    number = lambda e: isinstance(e, (int, np.integer)) and not isinstance(e, bool)
    if not several or is_traced(several) or not all(number(e) for e in several):
        raise ValueError(
            "Argument `event` must be the number of a guard, or several, or the names "
            f"of the modes of a transition, (source, target), but it is {event!r}."
        )
    if min(several) < 0:
        raise ValueError(
            "Argument `event` must be the number of a guard, from 0, but it is "
            f"{event}."
        )
    return tuple(int(e) for e in several)
