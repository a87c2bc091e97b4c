import dataclasses
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._events.firing import same_time
from .known import check_known


@dataclasses.dataclass(frozen=True)
class Segment:
    """The flow from one event to the next, or from or to an end of the simulation.
    Its values are known: NumPy arrays.

    **Attributes:**

    - `t0`, `t1`: when it begins and ends. They are equal between two events of one
        instant.
    - `x0`: the state that it begins with, after the event at `t0`.
    - `x1`: the state that it ends with, before the event at `t1`.
    - `mode`, `mode_name`: the mode, and what it is called: the name that an automaton
        gives it, or the names of contact modes; else the mode as text.
    - `event`, `event_name`: the number of the guard that ends it, and its name; -1 and
        the empty string where the simulation ends.
    """

    t0: float
    t1: float
    x0: PyTree
    x1: PyTree
    mode: PyTree
    mode_name: str
    event: int
    event_name: str
    _solution: Any = dataclasses.field(repr=False)
    _same_time: float = dataclasses.field(repr=False)

    def evaluate(self, t: ArrayLike) -> PyTree:
        """The state within, with both limits: `x0` at `t0`, and `x1` at `t1`, where
        `evaluate` of the solution gives the state after the event.

        !!! example

            ```python
            for segment in sol.segments():
                t = np.linspace(segment.t0, segment.t1, 50)
                axis.plot(t, segment.evaluate(t)[:, 0])
            ```

        **Arguments:**

        - `t`: a time or an array of times, from `t0` to `t1`.

        **Returns:**

        The state, in NumPy arrays; for an array of times, its leaves have the shape of
        `t` in front.

        **Raises:**

        - `ValueError` if a time is outside; and as `hj.Solution.evaluate`.
        """
        t = np.asarray(t, float)
        begin, end = self.t0 - self._same_time, self.t1 + self._same_time
        outside = t[~((t >= begin) & (t <= end))]
        if outside.size > 0:
            raise ValueError(
                f"Argument `t` must be within the segment, from {self.t0} to "
                f"{self.t1}, but one time is {outside[0]}."
            )

        def with_limits(x, x0, x1):
            x = np.asarray(x)
            wide = lambda at: at.reshape(at.shape + (1,) * x0.ndim)
            x = np.where(wide(t <= self.t0 + self._same_time), x0, x)
            return np.where(wide(t >= self.t1 - self._same_time), x1, x)

        xs = self._solution.evaluate(t)
        return jtu.tree_map(with_limits, xs, self.x0, self.x1)


def segments_of(sol) -> list[Segment]:
    check_known("segments", sol.events.count)
    log, names = sol.events.trim(), sol._names
    known = lambda tree: jtu.tree_map(np.asarray, tree)
    row = lambda tree, i: jtu.tree_map(lambda a: a[i], tree)
    rows = lambda tree: [row(tree, i) for i in range(log.count)]
    begins = [(sol.t0, known(sol.x0)), *zip(log.t, rows(log.x_after), strict=True)]
    ends = zip(log.t, rows(log.x_before), rows(log.mode_before), log.event, strict=True)
    last = (sol.stats["t_end"], known(sol.x1), known(sol.mode1), -1)
    return [
        Segment(
            t0=float(t0),
            t1=float(t1),
            x0=x0,
            x1=x1,
            mode=mode,
            mode_name=names.mode(mode),
            event=int(event),
            event_name=names.guard(int(event)),
            _solution=sol,
            _same_time=float(same_time(sol.t0, sol.t1)),
        )
        for (t0, x0), (t1, x1, mode, event) in zip(begins, [*ends, last], strict=True)
    ]
