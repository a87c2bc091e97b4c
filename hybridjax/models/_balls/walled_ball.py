import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class WalledBall(AbstractHybridSystem):
    r"""A ball in a plane that bounces off any number of straight walls.

    $$\dot p = u, \quad \dot u = -(0, g), \qquad
    u^+ = u^- - (1 + e) (n_i \cdot u^-) \, n_i \text{ at } n_i \cdot p = c_i.$$

    The ball is where $n_i \cdot p \ge c_i$ for all walls $i$: a billiard table has one
    wall per side. In a corner of two walls at a right angle both orders of the two
    bounces agree; in others the flow is discontinuous.

    **Arguments:**

    - `normals`: $n_i$, of shape `(walls, 2)`, towards the ball. Unit vectors.
    - `offsets`: $c_i$, of shape `(walls,)`, in m.
    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.

    **State:** an array of shape `(4,)`: $x$, $z$ (m), $v_x$, $v_z$ (m/s).

    **Mode:** a scalar integer, always 0.

    **Guards:** guard `i` is the distance $n_i \cdot p - c_i$ from wall `i`.

    **Raises:**

    - `ValueError` if the shapes do not fit.
    """

    normals: Float[Array, "walls 2"] = eqx.field(converter=parameter)
    offsets: Float[Array, " walls"] = eqx.field(converter=parameter)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)

    def __check_init__(self):
        if self.normals.shape != (*self.offsets.shape, 2) or self.offsets.ndim != 1:
            raise ValueError(
                "Argument `normals` must have shape (walls, 2) and `offsets` (walls,), "
                f"but they have {self.normals.shape} and {self.offsets.shape}."
            )

    def flow(self, t, x, mode, args):
        zero = jnp.zeros_like(self.gravity)
        return jnp.concatenate([x[2:], jnp.stack([zero, -self.gravity])])

    def guards(self, t, x, mode, args):
        return self._along(x[:2]) - self.offsets

    def jump(self, t, x, mode, event, args):
        hits = jax.nn.one_hot(event, self.offsets.size, dtype=bool)
        impulses = jnp.where(hits, -(1 + self.restitution) * self._along(x[2:]), 0)
        # Not a matrix product, which has ten bits on some accelerators.
        change = jnp.sum(impulses[:, None] * self.normals, axis=0)
        return jnp.concatenate([x[:2], x[2:] + change]), mode

    def _along(self, vector):
        return self.normals[:, 0] * vector[0] + self.normals[:, 1] * vector[1]
