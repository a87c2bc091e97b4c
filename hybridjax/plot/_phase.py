import itertools
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree

from .._solution.solution import Solution
from ._arcs import Arcs, arcs_of, Component, components_of
from ._axes import axes_or_current, text_colour


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of the grid on which guards are evaluated, in each direction; and every how many of
# its points there is an arrow.
_GRID, _EVERY = 121, 6


def phase(
    sol: Solution,
    i: Component = 0,
    j: Component = 1,
    *,
    field: bool = False,
    guards: bool = False,
    segment: int = 0,
    ax: "Axes | None" = None,
) -> dict[str, list]:
    """Draws one component of the state against another: arcs, and dashed lines where
    the state jumps, from a circle to a dot.

    Where the vector field and the guards depend on more than these two components,
    which they do in all but planar systems, what is drawn is their values at the start
    of one segment: its time, its mode, and the other components of its state.

    **Main arguments:**

    - `sol`: a `hj.Solution` of one simulation.
    - `i`, `j`: numbers of the raveled state, or functions of the state that return a
        number: to the right and upwards.
    - `field`: whether to draw the direction of the vector field, as arrows.
    - `guards`: whether to draw where guards are zero.
    - `segment`: the number of the segment, from 0, for the last two.
    - `ax`: the axes to draw into. `None` is the current ones of pyplot.

    **Returns:**

    A dictionary of lists of artists: `arcs`, one line; `jumps`, a dashed line, the
    circles and the dots, none without events; `field`, the arrows; `guards`, a contour
    for each guard that is zero within the axes.

    **Raises:**

    - `ValueError` if `sol` is a batch, or cannot be evaluated; if there is no such
        component, or no such segment; or if a component is a function and vector field
        or guards are asked for.
    - `ImportError` where there is no matplotlib.
    """
    axes = axes_or_current(ax)
    arcs = arcs_of(sol)
    (x_name, x), (y_name, y) = (_only(components_of(arcs.x, [c])) for c in (i, j))
    line = axes.plot(arcs.broken(x), arcs.broken(y))
    artists = {"arcs": line, "jumps": _jumps(axes, arcs, x, y, line[0])}
    axes.set(xlabel=x_name, ylabel=y_name)
    artists |= {"field": [], "guards": []}
    if field or guards:
        _check(arcs, i, j, segment)
        grid, dx, dy, values = _on_grid(sol, arcs, i, j, segment, axes)
        if field:
            artists["field"] = [_arrows(axes, grid, dx, dy)]
        if guards:
            artists["guards"] = _contours(axes, grid, values, sol._names.guard)
    return artists


def _only(components: dict[str, np.ndarray]) -> tuple[str, np.ndarray]:
    return next(iter(components.items()))


def _jumps(ax, arcs: Arcs, x, y, line) -> list:
    if len(arcs.segments) == 1:
        return []
    before, after = arcs.ends[:-1], arcs.ends[:-1] + 1
    style: dict[str, Any] = dict(color=line.get_color())
    dots = style | dict(marker="o", linestyle="", markersize=3 * line.get_linewidth())
    thin = style | dict(linestyle="--", linewidth=line.get_linewidth() / 2)
    # Trajectories are right-continuous: the dot is what belongs to them.
    return [
        *ax.plot(arcs.jumps(x), arcs.jumps(y), **thin),
        *ax.plot(x[before], y[before], markerfacecolor="none", **dots),
        *ax.plot(x[after], y[after], **dots),
    ]


def _check(arcs: Arcs, i, j, segment):
    if callable(i) or callable(j):
        raise ValueError(
            "Arguments `field` and `guards` are for two components that are numbers of "
            "the raveled state, but `i` or `j` is a function of the state."
        )
    if not 0 <= segment < len(arcs.segments):
        raise ValueError(
            f"Argument `segment` must be from 0 to {len(arcs.segments) - 1}, but it is "
            f"{segment}."
        )


def _on_grid(sol, arcs: Arcs, i, j, segment, ax):
    begin = arcs.segments[segment]
    state = ravel_pytree(begin.x0)[0]
    limits = ax.get_xlim(), ax.get_ylim()
    grid = np.meshgrid(*(np.linspace(low, high, _GRID) for low, high in limits))
    x = jnp.broadcast_to(state, (_GRID, _GRID, state.size))
    for k, values in zip((i, j), grid, strict=True):
        x = x.at[..., k].set(values.astype(state.dtype))
    mode = jtu.tree_map(jnp.asarray, begin.mode)
    system = sol._path.open().system
    dx, values = _evaluate(system, jnp.asarray(begin.t0, sol.t0.dtype), x, mode)
    return grid, np.asarray(dx[..., i]), np.asarray(dx[..., j]), np.asarray(values)


@eqx.filter_jit
def _evaluate(system, t, x, mode):
    one = lambda x: (system.flow(t, x, mode), system.guards(t, x, mode))
    return jax.vmap(jax.vmap(one))(x)


def _arrows(ax, grid, dx, dy):
    # In the units of the axes, of the same length wherever there is a direction.
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    part = slice(_EVERY // 2, None, _EVERY)
    u, v = dx[part, part] / (x1 - x0), dy[part, part] / (y1 - y0)
    length = np.hypot(u, v)
    u, v = (np.divide(a, length, where=length > 0, out=0 * a) for a in (u, v))
    style: dict[str, Any] = dict(color=text_colour(), alpha=0.35, width=0.002, scale=30)
    x, y = (a[part, part] for a in grid)
    return ax.quiver(x, y, u, v, zorder=0, pivot="middle", **style)


def _contours(ax, grid, values, name) -> list:
    contours = []
    dashes = itertools.cycle(["solid", "dashdot", "dotted", "dashed"])
    for k in range(values.shape[-1]):
        if not values[..., k].min() <= 0 <= values[..., k].max():
            continue
        style: dict[str, Any] = dict(colors=[text_colour()], linestyles=next(dashes))
        contour = ax.contour(*grid, values[..., k], levels=[0.0], **style)
        ax.clabel(contour, fmt=name(k), fontsize="small")
        contours.append(contour)
    return contours
