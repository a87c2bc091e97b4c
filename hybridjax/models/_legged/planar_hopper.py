from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem, UNWATCHED


class PlanarHopper(AbstractHybridSystem):
    r"""A body on a massless leg that is a spring, with motors in hip and leg.

    The leg, of angle $\phi$ to the vertical (anticlockwise) and length $\ell$, pushes
    along $e = (-\sin\phi, \cos\phi)$, from the foot to the hip, which is in the centre
    of mass; $n = (-\cos\phi, -\sin\phi)$. In stance the foot does not slip, and

    $$m \ddot p = F e + \frac{T}{\ell} n - m g e_z, \quad I \ddot\theta = -T, \quad
    F = k (\ell_0 + a - \ell), \quad T = \tau - d\, (\dot\phi - \dot\theta),$$

    with the torque $\tau$ of the hip, and the length $a$ by which a motor moves the
    end of the spring. In flight $F = T = 0$, as the leg has no mass: so $\ell = \ell_0
    + a$, and the hip turns the leg against its damper, $\dot\phi = \dot\theta + \tau /
    d$. Velocities do not jump.

    **Arguments:**

    - `ground`: callable `x -> height` (m), differentiable. `None` is level ground at 0.
    - `mass`, `inertia`: $m$ and $I$ of the body, in kg and kg m².
    - `leg_length`: $\ell_0$, in m.
    - `stiffness`: $k$ of the leg, in N/m.
    - `damping`: $d$ of the hip, in N m s/rad.
    - `gravity`: $g$, in m/s².

    **State:** an array of shape `(8,)`: the place $p = (x, z)$ of the body (m), its
    angle $\theta$ and that of the leg, $\phi$ (rad); velocity (m/s) and rate (rad/s) of
    the body; and where the foot stands, or stood last (m).

    **Mode:** a scalar integer: 0 in flight, 1 in stance.

    **Guards:** 0 is the height of the foot above the ground, in flight: touchdown. 1 is
    $F / k$, in stance: liftoff.

    **args:** $\tau$ (N m) and $a$ (m), of shape `(2,)`.

    ??? cite "Reference"

        Raibert, *Legged robots that balance* (1986), Chapter 2: the hopping machine in
        the plane, here with a leg that has no mass.
    """

    ground: Callable | None = None
    mass: Float[Array, ""] = eqx.field(converter=parameter, default=10.0)
    inertia: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)
    leg_length: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)
    stiffness: Float[Array, ""] = eqx.field(converter=parameter, default=5000.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)

    def foot(self, x, mode, args) -> Float[Array, "2"]:
        """Where the foot is."""
        length = self.leg_length + args[1]
        swung = x[:2] + length * jnp.stack([jnp.sin(x[3]), -jnp.cos(x[3])])
        stands = jnp.stack([x[7], self._height(x[7])])
        return jnp.where(mode == 1, stands, swung)

    def flow(self, t, x, mode, args):
        leg = x[:2] - self.foot(x, mode, args)
        length = jnp.sqrt(leg[0] ** 2 + leg[1] ** 2)
        along, v, rate = leg / length, x[4:6], x[6]
        across = jnp.stack([-along[1], along[0]])
        stands, torque = mode == 1, args[0]
        swing = jnp.where(
            stands,
            (v[0] * across[0] + v[1] * across[1]) / length,
            rate + torque / self.damping,
        )
        torque = jnp.where(stands, torque - self.damping * (swing - rate), 0.0)
        push = jnp.where(stands, self._compression(length, args), 0.0) * self.stiffness
        force = push * along + torque / length * across
        weight = jnp.stack([jnp.zeros_like(self.gravity), self.gravity])
        turning = jnp.stack([rate, swing])
        rest = jnp.stack([-torque / self.inertia, jnp.zeros_like(torque)])
        return jnp.concatenate([v, turning, force / self.mass - weight, rest])

    def guards(self, t, x, mode, args):
        foot = self.foot(x, mode, args)
        leg = x[:2] - foot
        length = jnp.sqrt(leg[0] ** 2 + leg[1] ** 2)
        touchdown = foot[1] - self._height(foot[0])
        liftoff = self._compression(length, args)
        return jnp.stack(
            [
                jnp.where(mode == 0, touchdown, UNWATCHED),
                jnp.where(mode == 1, liftoff, UNWATCHED),
            ]
        )

    def jump(self, t, x, mode, event, args):
        place = self.foot(x, mode, args)[:1]
        landed = jnp.concatenate([x[:7], place, x[8:]])
        return jnp.where(event == 0, landed, x), 1 - mode

    def _height(self, x):
        return jnp.zeros_like(x) if self.ground is None else self.ground(x)

    def _compression(self, length, args):
        return self.leg_length + args[1] - length
