"""Tangential directions, for normals."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..mechanics._dynamics.cross import cross


class TangentFrames(eqx.Module):
    """One direction in a plane of motion, or two orthogonal ones in space."""

    plane: tuple[float, ...] | None = eqx.field(static=True)

    def directions(self, normals: Float[Array, "n 3"]) -> list[Float[Array, "n 3"]]:
        if self.plane is not None:
            plane = np.broadcast_to(
                np.asarray(self.plane, normals.dtype), normals.shape
            )
            return [cross(plane, normals)]
        # Duff et al., Building an orthonormal basis, revisited (2017): smooth but at
        # the equator, where z changes its sign.
        x, y, z = normals.T
        sign = jnp.where(z < 0, -1, 1).astype(normals.dtype)
        a = -1 / (sign + z)
        b = x * y * a
        first = jnp.stack([1 + sign * x**2 * a, sign * b, -sign * x], axis=1)
        second = jnp.stack([b, sign + y**2 * a, -y], axis=1)
        return [first, second]
