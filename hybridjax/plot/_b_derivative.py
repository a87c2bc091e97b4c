import itertools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .._derivatives.b_derivative import BDerivative
from ._axes import axes_or_current


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Directions, not along an axis: there orders tend to change.
_ANGLES = 2 * np.pi * (np.arange(360) + 0.5) / 360


def b_derivative(
    b: BDerivative,
    *,
    radius: float = 1.0,
    before: tuple[float, float] = (0.0, 0.0),
    after: tuple[float, float] = (0.0, 0.0),
    ax: "Axes | None" = None,
) -> dict[str, list]:
    """Draws a B-derivative in the plane: a circle of tangents, dashed, and what they
    become at the corner, in one colour for each order in which they meet the guards.

    Where the derivative is linear its image is an ellipse. Otherwise it is made of
    pieces of one ellipse for each order, of which the opposite pieces are dotted.

    **Main arguments:**

    - `b`: what `hj.b_derivative` returned, of a system with two states.
    - `radius`: of the circle.
    - `before`, `after`: where the tangents begin: the centres of the circle and of its
        image.
    - `ax`: the axes to draw into. `None` is the current ones of pyplot.

    **Returns:**

    A dictionary of lists of artists: `before`, `after` and `opposite`, one line for
    each piece; the last is empty where the derivative is linear.

    **Raises:**

    - `ValueError` if the state is not planar, or the flow is discontinuous there.
    - `ImportError` where there is no matplotlib.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*, Figure 3.
    """
    axes = axes_or_current(ax)
    x, unravel = ravel_pytree(b._point.start.x)
    sizes = x.size, ravel_pytree(b.x_after)[0].size
    if sizes != (2, 2):
        raise ValueError(
            "Argument `b` must be of a system with two states, but before and after "
            f"the corner there are {sizes[0]} and {sizes[1]}."
        )
    b._raise_if_discontinuous()
    circle = radius * np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    tangents = jnp.asarray(circle, x.dtype)
    push = lambda v: ravel_pytree(b(unravel(v)))[0]
    image = np.asarray(jax.jit(jax.vmap(push))(tangents))
    orders = [tuple(b.order(unravel(v)).tolist()) for v in np.asarray(tangents)]
    linear = np.allclose(image, -np.roll(image, len(image) // 2, axis=0))
    artists = {"before": [], "after": [], "opposite": []}
    colours = {}
    for order, piece in _pieces(orders):
        (line,) = axes.plot(*(after + image[piece]).T, color=colours.get(order))
        # One of each order in the legend.
        name = "guards " + " → ".join(map(str, order))
        line.set_label("_" if order in colours else name)
        style = dict(color=colours.setdefault(order, line.get_color()))
        artists["after"].append(line)
        artists["before"] += axes.plot(*(before + circle[piece]).T, "--", **style)
        if not linear:
            opposite = after - image[piece]
            artists["opposite"] += axes.plot(*opposite.T, ":", zorder=1.9, **style)
    axes.set_aspect("equal", adjustable="datalim")
    if len(colours) > 1:
        axes.legend()
    return artists


def _pieces(orders: list[tuple]):
    """Orders, and which tangents in a row take them, and the one that comes next."""
    n = len(orders)
    changes = [k for k in range(n) if orders[k] != orders[k - 1]] or [0]
    for begin, end in itertools.pairwise([*changes, changes[0] + n]):
        yield orders[begin], np.arange(begin, end + 1) % n
