import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TYPE_CHECKING

import numpy as np

from .._solution.solution import Solution
from ._arcs import Arcs, arcs_of, Component, components_of
from ._axes import axes_or_current, text_colour, transforms
from ._modes import mode_colours


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# For more guards there is one mark; more lines than that have no names, as colours
# begin to be used again.
_MARKERS, _MOST_NAMES = "v^sDoP*X", 10


def trajectory(
    sol: Solution,
    components: Mapping[str, Component] | Sequence[Component] | None = None,
    *,
    ax: "Axes | None" = None,
) -> dict[str, list]:
    """Draws components of the state over time.

    Each is a line with a gap at every event, which a dashed line bridges where the
    component jumps. Events are marked below, by guard; modes above, with their names,
    where there are several.

    !!! example

        ```python
        hj.plot.trajectory(sol, {"height (m)": 0, "energy (J)": ball.energy})
        ```

    **Main arguments:**

    - `sol`: a `hj.Solution` of one simulation.
    - `components`: numbers of the raveled state, or functions of the state that return
        a number; as a mapping, with names in front. `None` is all numbers.
    - `ax`: the axes to draw into. `None` is the current ones of pyplot.

    **Returns:**

    A dictionary of lists of artists: `arcs` and `jumps`, one line for each component;
    `events`, one line of markers for each guard that fired; `modes`, one patch for
    each stay in a mode.

    **Raises:**

    - `ValueError` if `sol` is a batch, or cannot be evaluated; or if there is no such
        component.
    - `ImportError` where there is no matplotlib.
    """
    axes = axes_or_current(ax)
    arcs = arcs_of(sol)
    values = components_of(arcs.x, components)
    artists: dict[str, list] = {"arcs": [], "jumps": []}
    for name, value in values.items():
        (line,) = axes.plot(arcs.broken(arcs.t), arcs.broken(value), label=name)
        thin = dict(linewidth=line.get_linewidth() / 2, color=line.get_color())
        times, steps = arcs.jumps(arcs.t), arcs.jumps(value)
        artists["arcs"].append(line)
        artists["jumps"] += axes.plot(times, steps, "--", **thin)
    artists["events"] = _mark_events(axes, arcs)
    axes.set_xlabel("time")
    axes.margins(x=0)
    artists["modes"], unnamed = _draw_modes(axes, arcs)
    named = artists["arcs"] if 1 < len(values) <= _MOST_NAMES else []
    named = [*named, *artists["events"], *unnamed]
    if named:
        axes.legend(handles=named)
    if len(values) == 1:
        axes.set_ylabel(*values)
    return artists


def _mark_events(ax, arcs: Arcs) -> list:
    """On the axis of time, as in a raster; and how they line up with the arcs."""
    by_guard: dict[tuple[int, str], list[float]] = {}
    for segment in arcs.segments[:-1]:
        by_guard.setdefault((segment.event, segment.event_name), []).append(segment.t1)
    times = {name: t for (_, name), t in sorted(by_guard.items())}
    if len(times) > len(_MARKERS):
        times = {"events": sorted(itertools.chain(*times.values()))}
    style: dict[str, Any] = dict(
        color=text_colour(), transform=ax.get_xaxis_transform()
    )
    lines = [(t, t, np.nan) for t in itertools.chain(*times.values())]
    heights = np.tile([0, 1, np.nan], len(lines))
    ax.plot(np.ravel(lines), heights, linewidth=0.5, alpha=0.2, zorder=0, **style)
    style |= dict(linestyle="", clip_on=False)
    return [
        ax.plot(t, np.zeros(len(t)), marker=marker, label=name, **style)[0]
        for marker, (name, t) in zip(_MARKERS, times.items(), strict=False)
    ]


def _stays(arcs: Arcs) -> list[tuple[str, float, float]]:
    """In which modes, from when, to when."""
    groups = itertools.groupby(arcs.segments, key=lambda segment: segment.mode_name)
    groups = [(name, list(segments)) for name, segments in groups]
    return [(name, segments[0].t0, segments[-1].t1) for name, segments in groups]


def _draw_modes(ax, arcs: Arcs) -> tuple[list, list]:
    """A ribbon above the axes, and what is to be named beside it, as nowhere in it is
    there room for its name."""
    modes = _stays(arcs)
    colours = mode_colours(name for name, _, _ in modes)
    if len(colours) < 2:
        return [], []
    ax.autoscale_view()  # Widths are compared below.
    # Its height is in points, as that of the names in it is.
    points = transforms().Affine2D().scale(1 / 72) + ax.figure.dpi_scale_trans
    above = points + transforms().ScaledTranslation(0, 1, ax.transAxes)
    place = transforms().blended_transform_factory(ax.transAxes, above)
    ribbon = ax.inset_axes([0, 2, 1, 14], transform=place, sharex=ax)
    ribbon.set(ylim=(0, 1))
    ribbon.axis("off")
    patches, named = [], set()
    for name, begin, end in modes:
        patch = ribbon.axvspan(begin, end, color=colours[name], label=name)
        patches.append(patch)
        text = ribbon.text((begin + end) / 2, 0.5, name, ha="center", va="center")
        text.set(fontsize="small", clip_on=True)
        if text.get_window_extent().width > 0.95 * patch.get_window_extent().width:
            text.remove()
        else:
            named.add(name)
    first: dict[str, Any] = {}
    for patch in patches:
        first.setdefault(patch.get_label(), patch)
    return patches, [patch for name, patch in first.items() if name not in named]
