"""A solution piece by piece, and its components."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._solution.event_log import columns
from .._solution.known import check_known
from .._solution.segment import Segment
from .._solution.solution import Solution
from .._systems.automaton import ModalState


# A number of the raveled state, or a function of the state.
Component = int | Callable

# Points of a whole solution, at least; and of a step of the solver, which may be a
# whole oscillation. More numbers than that are no picture.
_LEAST, _BY_STEP, _MOST = 500, 4, 4_000_000


class Arcs(NamedTuple):
    """Points on all segments of a solution, which begin and end with its limits."""

    segments: list[Segment]
    t: np.ndarray
    x: PyTree
    ends: np.ndarray  # of each segment, its last point

    def broken(self, values: np.ndarray) -> np.ndarray:
        """With NaN between the segments: one line with gaps."""
        return np.insert(np.asarray(values, float), self.ends[:-1] + 1, np.nan)

    def jumps(self, values: np.ndarray) -> np.ndarray:
        """Across the events: pairs, with NaN between them."""
        before, after = values[self.ends[:-1]], values[self.ends[:-1] + 1]
        return np.stack([before, after, np.full(before.shape, np.nan)], 1).ravel()


def arcs_of(sol: Solution) -> Arcs:
    """**Raises:**

    - `ValueError` where values are not known, are those of several simulations, or
        cannot be evaluated.
    """
    check_known("hj.plot", sol.events.count)
    segments = sol.segments()
    size = sum(np.size(leaf) for leaf in jtu.tree_leaves(sol.x1))
    wanted = max(_BY_STEP * int(sol.stats["num_steps"]), _LEAST)
    wanted = min(wanted, _MOST // max(size, 1))
    t0, t1 = (np.array([getattr(s, name) for s in segments]) for name in ("t0", "t1"))
    portions = (t1 - t0) / max(np.sum(t1 - t0), np.finfo(float).tiny)
    counts = 2 + np.ceil(wanted * portions).astype(int)
    total = counts.sum()
    index = np.repeat(np.arange(len(segments)), counts)
    share = np.concatenate([np.linspace(0, 1, n) for n in counts])
    pad = spare(total)
    padded = jnp.asarray(np.pad(index, (0, pad)))
    xs = sol.evaluate_segment(padded, np.pad(share, (0, pad)))
    xs = jtu.tree_map(lambda a: np.asarray(a)[:total], xs)
    if isinstance(xs, ModalState):
        xs = _of_current_mode(xs, np.array([s.mode_name for s in segments])[index])
    t = t0[index] + share * (t1 - t0)[index]
    return Arcs(segments, t, xs, np.cumsum(counts) - 1)


def spare(rows: int) -> int:
    """How many to add, up to a power of two: few shapes, for each of which there is a
    program."""
    return 2 ** int(np.ceil(np.log2(rows))) - int(rows)


def _of_current_mode(xs: ModalState, names: np.ndarray) -> ModalState:
    """NaN in place of the states of other modes, which mean nothing."""

    def keep(name, leaf):
        here = (names == name).reshape(-1, *[1] * (leaf.ndim - 1))
        return np.where(here, leaf, np.nan)

    of_mode = lambda name, x: jtu.tree_map(lambda leaf: keep(name, leaf), x)
    return ModalState({name: of_mode(name, x) for name, x in xs.states.items()})


def components_of(
    xs: PyTree, components: Mapping[str, Component] | Sequence[Component] | None
) -> dict[str, np.ndarray]:
    """The components, by their names.

    **Raises:**

    - `ValueError` if there is no such component, or a function does not return a
        number.
    """
    table = columns("x", xs)
    if components is None:
        return table
    if not isinstance(components, Mapping):
        components = {_name(c, list(table)): c for c in components}
    return {
        name: _values(c, xs, list(table.values())) for name, c in components.items()
    }


def _name(component: Component, names: list[str]) -> str:
    if callable(component):
        return getattr(component, "__name__", type(component).__name__)
    return names[_checked(component, len(names))]


def _values(component: Component, xs: PyTree, table: list[np.ndarray]) -> np.ndarray:
    if not callable(component):
        return table[_checked(component, len(table))]
    values = np.asarray(jax.vmap(component)(xs))
    if values.ndim != 1:
        raise ValueError(
            "A component that is a function must return a number, but it returned an "
            f"array of shape {values.shape[1:]}."
        )
    return values


def _checked(component: Any, size: int) -> int:
    if not isinstance(component, int | np.integer) or not 0 <= component < size:
        raise ValueError(
            f"A component must be a number from 0 to {size - 1}, its place in the "
            f"raveled state, or a function of the state, but one is {component!r}."
        )
    return int(component)
