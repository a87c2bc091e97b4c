import itertools
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

import jax
import jax.tree_util as jtu
import numpy as np

from .._solution.known import check_known
from .._solution.solution import Solution
from ._arcs import spare
from ._axes import pyplot


if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes

_PAUSE = 0.5  # s, at the end
_GHOST = 0.3  # its opacity


def animate(
    draw: Callable,
    sol: Solution,
    *,
    ghost: Solution | None = None,
    slower: float = 1.0,
    fps: float = 25.0,
    ax: "Axes | None" = None,
) -> "FuncAnimation":
    """A film of a solution. Each picture of it is drawn anew by a function, which draws
    what moves; the rest is what the axes hold already.

    !!! example

        ```python
        links = jax.jit(hj.models.planar_links)

        def draw(ax, t, x, mode):
            return ax.plot(*links(x[0]).T, "o-")

        hj.plot.animate(draw, sol, slower=5.0).save("robot.gif")
        ```

    **Main arguments:**

    - `draw`: callable `(ax, t, x, mode) -> artists`, a list of what it draws. The
        leaves of state and mode are NumPy arrays. The cycle of colours begins anew for
        each picture.
    - `sol`: a `hj.Solution` of one simulation.
    - `ghost`: another solution, drawn in pale colours at the same times. It stays where
        it ends.
    - `slower`: how many times slower than the unit of time, 1 s.
    - `fps`: pictures in a second of the film.
    - `ax`: the axes to draw into. `None` is those of a new figure. Limits that have not
        been set become such that all fits in.

    **Returns:**

    A `matplotlib.animation.FuncAnimation`, which a notebook shows, with buttons to play
    it. `save` writes a GIF, or if ffmpeg is installed an MP4.

    **Raises:**

    - `ValueError` if `sol` or `ghost` is a batch, or cannot be evaluated; or if
        `slower` or `fps` is not positive.
    - `ImportError` where there is no matplotlib.
    """
    plt = pyplot()
    from ._film import Film

    for name, value in (("slower", slower), ("fps", fps)):
        if not value > 0:
            raise ValueError(f"Argument `{name}` must be positive, but it is {value}.")
    for one in (sol,) if ghost is None else (sol, ghost):
        check_known("hj.plot", one.events.count)
    axes: Any = plt.Figure(layout="constrained").subplots() if ax is None else ax
    begin, end = float(sol.t0), float(sol.stats["t_end"])
    ts = np.linspace(begin, end, 2 + int((end - begin) * slower * fps))
    # The ghost is behind.
    paths: list = [] if ghost is None else [(_path(ghost, ts), _GHOST)]
    paths.append((_path(sol, ts), None))
    shown: list = []

    def show(i: int) -> list:
        while shown:
            shown.pop().remove()
        for path, opacity in paths:
            axes.set_prop_cycle(None)
            artists = list(draw(axes, ts[i], *jtu.tree_map(lambda a: a[i], path)))
            for artist in artists if opacity is not None else []:
                artist.set_alpha(opacity)
            shown.extend(artists)
        return shown

    # All of it, so that the axes hold all of it from the first picture on.
    free = axes.get_autoscalex_on() or axes.get_autoscaley_on()
    for i in range(len(ts)) if free else []:
        show(i)
    axes.autoscale_view()
    axes.autoscale(False)
    # Nor does the layout change, which takes as long to find as to draw.
    axes.figure.draw_without_rendering()
    axes.figure.set_layout_engine("none")
    last = itertools.repeat(len(ts) - 1, int(_PAUSE * fps))
    return Film(axes.figure, show, [*range(len(ts)), *last], interval=1000 / fps)


def _path(sol, ts: np.ndarray) -> Any:
    """States and modes."""
    ts = np.clip(ts, float(sol.t0), float(sol.stats["t_end"]))
    padded = np.pad(ts, (0, spare(ts.size)), "edge")
    path = sol.evaluate_with_mode(padded)
    return jax.tree.map(lambda a: np.asarray(a)[: ts.size], path)
