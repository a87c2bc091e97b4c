from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from .._loop.results import RESULTS
from .event_log import EventLog
from .path import nan_unless, StoredPath


class Solution(eqx.Module):
    """What [`hybridjax.simulate`][] returns.

    Trajectories are right-continuous: the value at an event time is the one after the
    jump. The left limit is in `events`.

    **Attributes:**

    - `t0`, `t1`: the interval.
    - `ts`, `xs`, `modes`: times, states and modes as `saveat` asked. At times that a
        failed simulation did not reach, states are NaN; unused slots of
        `SaveAt(steps=True)` have infinite times.
    - `x1`, `mode1`: state and mode at the end. After a failure with `throw=False`,
        where the simulation stopped.
    - `events`: an [`hybridjax.EventLog`][].
    - `stats`: numbers of steps, and `t_end`, the time at which the simulation stopped.
    - `result`: a [`hybridjax.RESULTS`][].
    """

    t0: Float[Array, ""]
    t1: Float[Array, ""]
    ts: PyTree
    xs: PyTree
    modes: PyTree
    x1: PyTree
    mode1: PyTree
    events: EventLog
    stats: dict[str, Any]
    result: RESULTS  # pyright: ignore
    _path: StoredPath | None

    def evaluate(self, t: Real[Array, "..."] | float) -> PyTree:
        """The state at any time from `t0` to `t1`, by one solver step from the last
        recorded state before it. Differentiable, also with respect to `t`.

        **Arguments:**

        - `t`: a time or an array of times.

        **Returns:**

        The state; for an array of times, its leaves have the shape of `t` in front. NaN
        outside of the simulated interval.

        **Raises:**

        - `ValueError` after a simulation with `checkpoints`.
        """
        return self.evaluate_with_mode(t)[0]

    def evaluate_with_mode(
        self, t: Real[Array, "..."] | float
    ) -> tuple[PyTree, PyTree]:
        """As `evaluate`, and the mode at that time."""
        if self._path is None:
            raise ValueError(
                "A simulation with `checkpoints` keeps no path to evaluate. Leave that "
                "argument of `hj.simulate` out, or simulate to the time that is asked "
                "for."
            )
        path = self._path.open()
        t = jnp.asarray(t, path.tape.t_end.dtype)

        def one(t):
            x, mode, reached = path.at(t)
            return nan_unless(reached, x), mode

        for _ in range(t.ndim):
            one = jax.vmap(one)
        return one(t)
