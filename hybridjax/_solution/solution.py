from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from .._jax.compiler_options import in_one_program
from .._loop.results import RESULTS
from .._systems.names import Names
from .comparison import check_shares, evaluate_segment, segment_times
from .event_log import EventLog
from .html import as_html
from .path import nan_unless
from .segment import Segment, segments_of
from .stored_path import StoredPath
from .summary import summary


class Solution(eqx.Module):
    """What `hj.simulate` returns.

    Trajectories are right-continuous: the value at an event time is the one after the
    jump. The left limit is in `events`.

    **Attributes:**

    - `t0`, `t1`: the interval.
    - `x0`, `mode0`: state and mode at the start, before any event.
    - `ts`, `xs`, `modes`: times, states and modes as `saveat` asked. At times that a
        failed simulation did not reach, states are NaN; unused slots of
        `SaveAt(steps=True)` have infinite times.
    - `x1`, `mode1`: state and mode at the end. After a failure with `throw=False`,
        where the simulation stopped.
    - `events`: a `hj.EventLog`.
    - `stats`: numbers of steps, and `t_end`, the time at which the simulation stopped.
    - `result`: a `hj.RESULTS`.

    It is printed in one line; a notebook shows a single one as a table, and with
    matplotlib as a picture (`hj.plot` has others). It can be copied, and can be
    pickled. What is unpickled can be evaluated as before, if its system is made of
    classes and functions that can be imported where that is done; derivatives do not go
    back through it.
    """

    t0: Float[Array, ""]
    t1: Float[Array, ""]
    x0: PyTree
    mode0: PyTree
    ts: PyTree
    xs: PyTree
    modes: PyTree
    x1: PyTree
    mode1: PyTree
    events: EventLog
    stats: dict[str, Any]
    result: RESULTS  # pyright: ignore
    _path: StoredPath | None
    _names: Names = eqx.field(static=True)

    def __repr__(self):
        return summary(self)

    def _repr_html_(self) -> str | None:
        try:
            return as_html(self)
        except Exception:  # Whatever is shown: a notebook has the text instead.
            return None

    @property
    def successful(self) -> Bool[Array, ""]:
        """Whether it got to `t1`, or to a terminal event: `result` is `successful` or
        `event_occurred`."""
        reached = self.result == RESULTS.successful
        return reached | (self.result == RESULTS.event_occurred)

    def segments(self) -> list[Segment]:
        """The flow from one event to the next, piece by piece, with the limits at both
        ends: one piece more than there are events.

        Values are known: outside of `jax.jit`, and for one simulation. Of a batch, take
        one first, by `jax.tree.map(lambda a: a[i], sol)`.

        **Returns:**

        A list of `hj.Segment`.

        **Raises:**

        - `ValueError` where values are not known, or are those of several simulations.
        """
        return segments_of(self)

    def segment_times(self) -> Float[Array, " n"]:
        """When segments begin and end: `t0`, the times of events, and `t1`, of shape
        `(max_events + 2,)`. Segment `i` is from entry `i` to entry `i + 1`.

        For losses, within `jax.jit` and batches: all entries are finite. What does not
        exist is at the end: events that did not happen are at `t1`, and segments beyond
        the last, of number `events.count`, are empty. So a time changes continuously
        where its event leaves the interval through `t1`. Differentiable.

        After a failure the end is where the simulation stopped.
        """
        return segment_times(self)

    def evaluate_segment(
        self, index: Int[Array, "..."] | int, share: ArrayLike
    ) -> PyTree:
        """The state in a segment, after a share of its duration. Both limits are right:
        with share 0 it is the state after the event before, with share 1 that before
        the event that ends the segment.

        Where velocities jump, solutions are compared like this, and not at fixed times:
        it is continuous, and differentiable, where events come earlier or later. As
        `segment_times`, within `jax.jit` and batches.

        !!! example

            ```python
            share = jnp.linspace(0, 1, 9)
            arc = lambda sol, i: sol.evaluate_segment(i, share)[:, 1]
            loss = jnp.mean((arc(sol, 2) - arc(measured, 2)) ** 2)
            ```

        **Arguments:**

        - `index`: numbers of segments, from 0. Those beyond the last, which are empty,
            have the state of the end.
        - `share`: from 0 to 1; an array that can be broadcast with `index`.

        **Returns:**

        The state; for arrays, its leaves have their common shape in front.

        **Raises:**

        - `ValueError` for an index that is no integer, or values that are known to be
            outside; and as `evaluate`.
        """
        check_shares(index, share)
        shares = jnp.broadcast_arrays(index, jnp.asarray(share, self.t1.dtype))
        # As `evaluate_with_mode`.
        return in_one_program(evaluate_segment, self, *shares)

    def evaluate(self, t: ArrayLike) -> PyTree:
        """The state at any time from `t0` to `t1`, by one solver step from the last
        recorded state before it. Differentiable, also with respect to `t`.

        **Arguments:**

        - `t`: a time or an array of times.

        **Returns:**

        The state; for an array of times, its leaves have the shape of `t` in front. NaN
        outside of the simulated interval.

        **Raises:**

        - `ValueError` after a simulation with `checkpoints`, or if the solution was
            pickled without its system.
        """
        return self.evaluate_with_mode(t)[0]

    def evaluate_with_mode(self, t: ArrayLike) -> tuple[PyTree, PyTree]:
        """As `evaluate`, and the mode at that time."""
        if self._path is None:
            raise ValueError(
                "A simulation with `checkpoints` keeps no path to evaluate. Leave that "
                "argument of `hj.simulate` out, or simulate to the time that is asked "
                "for."
            )
        t = jnp.asarray(t, self.t1.dtype)
        # One by one, its operations take ten times as long to compile.
        return in_one_program(_evaluate, self._path, t)


def _evaluate(stored: StoredPath, t):
    path = stored.open()

    def one(t):
        x, mode, reached = path.at(t)
        return nan_unless(reached, x), mode

    for _ in range(t.ndim):
        one = jax.vmap(one)
    return one(t)
