"""Points that are attached to frames, and how velocities move them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.cross import cross
from ..mechanics._dynamics.dot import dot
from ._kinematics import Kinematics, Twists
from ._topology import selection, Topology


class Attached(eqx.Module):
    """Centres of spheres."""

    topology: Topology = eqx.field(static=True)
    frames: tuple[int, ...] = eqx.field(static=True)
    places: Float[Array, "points 3"]
    radii: Float[Array, " points"]

    def at(self, transforms) -> Float[Array, "points 3"]:
        """Where they are, by transforms of all frames."""
        pick = selection(self.frames, self.topology.n_frames).astype(transforms.dtype)
        places = jnp.concatenate([self.places, jnp.ones_like(self.radii)[:, None]], 1)
        # Frames are picked by it, too: one product.
        places = pick[:, :, None] * places[:, None, :]
        columns = jnp.swapaxes(transforms[:, :3], 1, 2)
        return dot(places.reshape(len(pick), -1), columns.reshape(-1, 3))

    def rows(self, twists: Twists, points, directions) -> Float[Array, "points v"]:
        """By how much velocities move points (from the roots) along directions, as
        parts of the bodies to which these are attached."""
        moved = self.topology.moves[list(self.frames)].astype(points.dtype)
        both = jnp.concatenate([cross(points, directions), directions], axis=1)
        return moved * dot(both, twists.both.T)


def attached(kinematics: Kinematics, frames, places, radii) -> Attached:
    return Attached(
        kinematics.topology,
        tuple(int(frame) for frame in frames),
        parameter(np.reshape(places, (-1, 3))),
        parameter(np.asarray(radii, float)),
    )
