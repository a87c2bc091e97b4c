from typing import Any, TYPE_CHECKING

import jax.tree_util as jtu
import numpy as np

from .._solution.event_log import columns
from .._solution.known import check_known
from .._solution.solution import Solution
from ._axes import axes_or_current, text_colour
from ._modes import mode_colours


if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMES = 40


def events(sol: Solution, *, ax: "Axes | None" = None) -> dict[str, list]:
    """Draws who fires when: a row for each guard that fires, as in a raster of spikes.
    If the mode changes, also a row for each of its entries, with bars as in a schedule
    of contacts.

    **Arguments:**

    - `sol`: a `hj.Solution` of one simulation, also one with `checkpoints`.
    - `ax`: the axes to draw into. `None` is the current ones of pyplot.

    **Returns:**

    A dictionary of lists of artists: `events`, one collection of ticks for each guard
    that fires, in the order of their numbers; `modes`, one collection of bars for each
    entry and each of its values.

    **Raises:**

    - `ValueError` if `sol` is a batch.
    - `ImportError` where there is no matplotlib.
    """
    check_known("hj.plot", sol.events.count)
    axes = axes_or_current(ax)
    log = sol.events.trim()
    fired = np.unique(log.event)
    times = [log.t[log.event == guard] for guard in fired]
    ticks = dict(color=text_colour(), linelengths=0.8)
    artists = {"events": axes.eventplot(times, **ticks) if times else []}
    rows = [sol._names.guard(guard) for guard in fired.tolist()]
    entries = _entries(sol, log)
    edges = np.array([sol.t0, *log.t, sol.stats["t_end"]], float)
    artists["modes"] = _bars(axes, len(rows), edges, list(entries.values()))
    rows += entries
    every = 1 + len(rows) // _MOST_NAMES
    axes.set_yticks(range(0, len(rows), every), rows[::every])
    axes.set(xlabel="time", xlim=edges[[0, -1]], ylim=(-0.5, max(len(rows), 1) - 0.5))
    return artists


def _entries(sol, log) -> dict[str, np.ndarray]:
    """The words for each entry of the mode, in each segment; none if all stay."""
    last = lambda before, end: np.concatenate([before, np.asarray(end)[None]])
    modes = jtu.tree_map(last, log.mode_before, sol.mode1)
    words = jtu.tree_unflatten(jtu.tree_structure(modes), sol._names.entries(modes))
    table = {name: row.astype(str) for name, row in columns("mode", words).items()}
    return table if any((row != row[0]).any() for row in table.values()) else {}


def _bars(ax, bottom: int, edges: np.ndarray, rows: list[np.ndarray]) -> list:
    colours = mode_colours(np.unique(np.array(rows)).tolist())
    spans, bars = np.stack([edges[:-1], np.diff(edges)], axis=1), []
    for word, colour in colours.items():
        for place, row in enumerate(rows, bottom):
            here = (place - 0.4, 0.8)
            style: dict[str, Any] = dict(color=colour, linewidth=0, zorder=0)
            bar = ax.broken_barh(spans[row == word], here, **style)
            # One entry in the legend.
            bar.set_label("_" if bars and bars[-1][0] == word else word)
            bars.append((word, bar))
    if bars:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return [bar for _, bar in bars]
