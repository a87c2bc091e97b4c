"""Sliding along surfaces to which the fields on both sides lead (Filippov).

Of each surface `h_j = 0` an integer says where the state is, its *side*. The field on
a surface is the mean of those on both sides that keeps `h_j` constant. A surface that
the state has just left has `h_j` and its rate at zero, up to rounding, and so is not
watched yet: its rate is, until it falls back to zero, when `h_j` is well away from it.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._jax.branch import where
from .._jax.reduce import any_of, largest
from .flat import check_output


class Side(enum.IntEnum):
    LEAVING_DOWN = -2
    BELOW = -1
    ON = 0
    ABOVE = 1
    LEAVING_UP = 2
    # Where the state goes is not known: the simulation has failed.
    LOST = 3


# Why a simulation cannot go on, for messages.
INTERSECTION = (
    "where the fields on all sides lead to several surfaces at once, there is no "
    "unique way on. Start elsewhere, or make one surface of them"
)
NO_WAY_ON = (
    "the state is on it, and the fields on both sides lead away, so that there is no "
    "unique way on; or `mode0` says that it slides, but in `x0` it is not on the "
    "surface, or does not stay there. Choose the side in `mode0`, or start elsewhere"
)


class _Point(NamedTuple):
    """A state, and what the fields do to the surfaces there."""

    h: Float[Array, " n"]
    # The field, and how fast it changes `h`.
    flow: PyTree
    rate: Float[Array, " n"]
    # Likewise, on either side of the surface that the state slides on. Elsewhere these
    # are the same.
    below: PyTree
    above: PyTree
    rate_below: Float[Array, " n"]
    rate_above: Float[Array, " n"]


class Switch(eqx.Module):
    """Fields that are chosen by the sides of surfaces."""

    # `(t, x, sides)` to the fields below and above the surface that is slid on.
    fields: Callable
    surfaces: Callable  # `(t, x)` to `h`

    def flow(self, t, x, sides: Int[Array, " n"]) -> PyTree:
        return self._at(t, x, sides).flow

    def guards(self, t, x, sides: Int[Array, " n"]) -> Float[Array, " n"]:
        p = self._at(t, x, sides)
        g = jnp.where(sides < 0, -p.h, p.h)
        g = jnp.where(sides == Side.LEAVING_UP, p.rate, g)
        g = jnp.where(sides == Side.LEAVING_DOWN, -p.rate, g)
        # Sliding ends where one of both fields no longer leads to the surface. The
        # product is smooth, as the smaller one would not be.
        return jnp.where(sides == Side.ON, -p.rate_below * p.rate_above, g)

    def jump(self, t, x, sides: Int[Array, " n"], event):
        """The state and the sides after the guard of a surface fired."""
        this = jnp.arange(sides.shape[0]) == event
        side = jnp.sum(jnp.where(this, sides, 0))
        before = jnp.sign(sides)
        here = self._at(t, x, sides)

        # It leaves the surface that it slides on, to where a field leads away.
        up = here.rate_below + here.rate_above > 0
        left = jnp.where(up, int(Side.LEAVING_UP), int(Side.LEAVING_DOWN))

        # It crosses, and may go on to slide on another one. If it is led back, it
        # slides; but not if it is far beyond, where a reset or the start put it.
        crosses = jnp.abs(side) == 1
        across = jnp.where(this & crosses, -before, before)
        if sides.shape[0] > 1:
            across = _kept(across, self._at(t, x, across))
        there = self._at(t, x, across)
        back = there.rate * before > 0
        near, x_on = _onto(x, this, here, here.flow, there.flow, here.rate, there.rate)
        enters = this & back & near
        across = jnp.where(enters, int(Side.ON), across)

        after = jnp.where(this & (side == Side.ON), left, before)
        x = where(crosses & any_of(enters), x_on, x)
        return x, jnp.where(crosses, across, after).astype(sides.dtype)

    def start(self, t, x, sides: Int[Array, " n"]):
        """The state and the sides at the start, where these are given: the state that
        slides is put onto the surface."""
        on = sides == Side.ON
        p = self._at(t, x, sides)
        near, x_on = _onto(x, on, p, p.below, p.above, p.rate_below, p.rate_above)
        stays = near & (p.rate_below > 0) & (p.rate_above < 0)
        lost = on & ~stays & (jnp.sum(on) == 1)
        return where(any_of(on), x_on, x), _lose(sides, lost)

    def sides(self, t, x) -> Int[Array, " n"]:
        """Those that belong to a state. One that is on a surface has still to cross it;
        but where both fields lead away, there is nothing to choose between them."""
        h = self.surfaces(t, x)
        on = h == 0
        sides = jnp.where(h > 0, 1, -1).astype(jnp.int32)
        p = self._at(t, x, jnp.where(on, int(Side.ON), sides))
        away = (p.rate_below < 0) & (p.rate_above > 0)
        return _lose(sides, on & away & (jnp.sum(on) == 1))

    def _at(self, t, x, sides) -> _Point:
        below, above = jtu.tree_map(jnp.asarray, self.fields(t, x, sides))
        check_output("flow", "x", below, x)
        h, rate_below = self._rates(t, x, below)
        _, rate_above = self._rates(t, x, above)
        # Of the one surface that is slid on: elsewhere both fields are the same.
        on = sides == Side.ON
        down, up = (jnp.sum(jnp.where(on, r, 0)) for r in (rate_below, rate_above))
        share = down / jnp.where(down == up, 1, down - up)
        mean = lambda a, b: a + share.astype(a.dtype) * (b - a)
        lost = (jnp.sum(on) > 1) | jnp.any(sides == Side.LOST)
        flow = jtu.tree_map(mean, below, above)
        flow = jtu.tree_map(lambda f: jnp.where(lost, jnp.nan, f), flow)
        rate = mean(rate_below, rate_above)
        return _Point(h, flow, rate, below, above, rate_below, rate_above)

    def _rates(self, t, x, dx):
        dx = jtu.tree_map(lambda rate, leaf: rate.astype(leaf.dtype), dx, x)
        return jax.jvp(self.surfaces, (t, x), (jnp.ones_like(t), dx))


def _onto(x, this: Bool[Array, " n"], p: _Point, one, other, rate_one, rate_other):
    """Is the state on this surface, up to errors; and the state, put there.

    That is along the difference of both fields: its derivative is what becomes of a
    perturbation, off the surface on either side, when it has come back to it.
    """
    pick = lambda a: jnp.sum(jnp.where(this, a, 0))
    approach = pick(rate_other) - pick(rate_one)
    time = pick(p.h) / jnp.where(approach == 0, 1, approach)
    moves = jtu.tree_map(lambda a, b: time.astype(a.dtype) * (b - a), one, other)
    tol = jnp.finfo(p.h.dtype).eps ** 0.375
    near = largest(moves) <= tol * (1 + largest(x))
    return near, jtu.tree_map(jnp.subtract, x, moves)


def _kept(sides, p: _Point):
    """The sides after the fields have changed: does it go on to slide?"""
    enters, leaves = p.rate_below > 0, p.rate_above >= 0
    one_way = jnp.where(enters, int(Side.ABOVE), int(Side.BELOW))
    side = jnp.where(enters == leaves, one_way, int(Side.ON))
    side = jnp.where(~enters & leaves, int(Side.LOST), side)
    return jnp.where(sides == Side.ON, side, sides)


def _lose(sides, lost):
    return jnp.where(lost, int(Side.LOST), sides).astype(sides.dtype)
