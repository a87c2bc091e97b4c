"""Spheres above what is at rest: planes, and the graph of a height function."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._attached import Attached


class Planes(eqx.Module):
    """Each sphere above a plane of its own."""

    points: Attached
    upward: Float[Array, "points 3"]  # their normals
    offsets: Float[Array, " points"]  # of the planes and, in it, their margins

    def gap(self, transforms):
        heights = jnp.sum(self.points.at(transforms) * self.upward, axis=1)
        return heights - self.offsets - self.points.radii

    def normals(self, transforms, from_roots, twists):
        del transforms
        return self.points.rows(twists, self.points.at(from_roots), self.upward)

    def tangents(self, transforms, from_roots, twists, frame):
        del transforms
        below = self.points.at(from_roots) - self.points.radii[:, None] * self.upward
        return [
            self.points.rows(twists, below, direction)
            for direction in frame.directions(self.upward)
        ]


class Heights(eqx.Module):
    """Spheres above a graph: gaps are distances from the plane that touches it below
    their centres."""

    points: Attached
    height: Callable
    margins: Float[Array, " points"]
    plane: tuple[float, ...] | None = eqx.field(static=True)

    def gap(self, transforms):
        above = self._above(self.points.at(transforms))
        return above - self.points.radii - self.margins

    def normals(self, transforms, from_roots, twists):
        # Where the ground is curved, the gap does not grow along its normal.
        above, pull = jax.vjp(self._above, self.points.at(transforms))
        (upward,) = pull(jnp.ones_like(above))
        return self.points.rows(twists, self.points.at(from_roots), upward)

    def tangents(self, transforms, from_roots, twists, frame):
        _, normals = self._normals(self.points.at(transforms))
        below = self.points.at(from_roots) - self.points.radii[:, None] * normals
        return [
            self.points.rows(twists, below, direction)
            for direction in frame.directions(normals)
        ]

    def _above(self, places):
        height, normals = self._normals(places)
        return (places[:, 2] - height) * normals[:, 2]

    def _normals(self, places):
        height = lambda x, y: jnp.asarray(self.height(x, y), places.dtype)
        both = jax.vmap(jax.value_and_grad(height, (0, 1)))
        values, (by_x, by_y) = both(places[:, 0], places[:, 1])
        normals = jnp.stack([-by_x, -by_y, jnp.ones_like(by_x)], axis=1)
        if self.plane is not None:
            # A robot in a plane does not feel a slope across it.
            plane = np.broadcast_to(np.asarray(self.plane, places.dtype), places.shape)
            normals = normals - jnp.sum(normals * plane, axis=1, keepdims=True) * plane
        length = jnp.sqrt(jnp.sum(normals**2, axis=1, keepdims=True))
        return values, normals / length
