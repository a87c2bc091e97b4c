"""Spheres against spheres."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._attached import Attached


class Spheres(eqx.Module):
    """Pairs of spheres: a gap grows where the second one moves away."""

    first: Attached
    second: Attached
    margins: Float[Array, " points"]

    def gap(self, transforms):
        _, distance = self._between(transforms)
        return distance - self.first.radii - self.second.radii - self.margins

    def normals(self, transforms, from_roots, twists):
        normals, _ = self._between(transforms)
        first, second = self.first.at(from_roots), self.second.at(from_roots)
        return self._rows(twists, first, second, normals)

    def tangents(self, transforms, from_roots, twists, frame):
        normals, _ = self._between(transforms)
        first = self.first.at(from_roots) + self.first.radii[:, None] * normals
        second = self.second.at(from_roots) - self.second.radii[:, None] * normals
        return [
            self._rows(twists, first, second, direction)
            for direction in frame.directions(normals)
        ]

    def _rows(self, twists, first, second, direction):
        away = self.second.rows(twists, second, direction)
        return away - self.first.rows(twists, first, direction)

    def _between(self, transforms):
        apart = self.second.at(transforms) - self.first.at(transforms)
        distance = jnp.sqrt(jnp.sum(apart**2, axis=1))
        return apart / distance[:, None], distance
