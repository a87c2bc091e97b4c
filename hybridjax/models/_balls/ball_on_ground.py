from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import in_dtype, parameter
from ..._systems.system import AbstractHybridSystem


class BallOnGround(AbstractHybridSystem):
    r"""A ball in a plane that bounces on uneven ground. Ground and air are functions,
    which may be learnt.

    $$\dot q = v, \quad \dot v = f(q, v) - (0, g), \qquad
    v^+ = v^- - (1 + e) \frac{n \cdot v^-}{n \cdot n} n
    \text{ at } a(q) = q_2 - h(q_1) = 0, \quad n = \nabla a.$$

    The impact is that of a frictionless `hj.mechanics.MechanicalSystem`. It reverses
    the rate of the guard, $\dot a^+ = -e\, \dot a^-$, whatever the ground: the ball
    leaves it, and no ground that a network can make up lets the guard chatter.

    **Arguments:**

    - `ground`: callable `q1 -> h`, from a scalar to a scalar, in m.
    - `force`: callable `(q, v) -> f`, of shape `(2,)`: force without gravity over mass,
        in m/s².
    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.

    **State:** the pair `(q, v)` of arrays of shape `(2,)`: the horizontal and vertical
    position (m), and the velocity (m/s).

    **Mode:** a scalar integer, always 0.

    **Guards:** 0 is the gap $a$.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (69) with one contact and unit mass.
    """

    ground: Callable
    force: Callable
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    restitution: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)

    def gap(self, q):
        return q[1] - self.ground(q[0])

    def flow(self, t, x, mode, args):
        q, v = x
        self = in_dtype(self, q.dtype)
        return v, self.force(q, v) - jnp.stack([jnp.zeros_like(q[0]), self.gravity])

    def guards(self, t, x, mode, args):
        return jnp.stack([in_dtype(self, x[0].dtype).gap(x[0])])

    def jump(self, t, x, mode, event, args):
        q, v = x
        self = in_dtype(self, q.dtype)
        n = jax.grad(self.gap)(q)
        impulse = -(1 + self.restitution) * jnp.sum(n * v) / jnp.sum(n * n)
        return (q, v + impulse * n), mode
