import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class PlanarBody(eqx.Module):
    """A rigid body in a vertical plane; its configuration is `(across, up, angle)`."""

    mass: Float[Array, ""]
    inertia: Float[Array, ""]
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args) -> Float[Array, "3"]:
        return jnp.stack([self.mass, self.mass, self.inertia])

    def effort(self, t, q, v, args) -> Float[Array, "3"]:
        none = jnp.zeros_like(self.gravity)
        return jnp.stack([none, -self.mass * self.gravity, none])
