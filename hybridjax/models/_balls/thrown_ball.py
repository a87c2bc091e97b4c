import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem, UNWATCHED


class ThrownBall(AbstractHybridSystem):
    r"""A ball that is thrown in a plane, and bounces off the ground and two walls.

    $$\dot p = u, \qquad \dot u = -(0, g) - c \, |u| \, u, \qquad
    p = (x, z), \quad u = (v_x, v_z).$$

    There is ground at $z = 0$, a wall of height $H$ at $x = X$, and behind it a back
    wall without a top at $x = B$. On a surface the normal velocity becomes $-e$ times,
    and the tangential one $\tau$ times, what it was. In a corner of ground and wall
    both orders of the two bounces agree.

    **Arguments:**

    - `gravity`: $g$, in m/s².
    - `drag`: $c$, in 1/m: the drag per mass and squared speed.
    - `restitution_ground`, `restitution_wall`: $e$ of the ground and of the walls, from
        0 to 1.
    - `tangential`: $\tau$, from 0 to 1. 1 is without friction.
    - `wall_position`, `wall_height`: $X$ and $H$, in m.
    - `back_position`: $B > X$, in m. Far away is as good as no back wall.

    **State:** an array of shape `(4,)`: $x$, $z$ (m), $v_x$, $v_z$ (m/s).

    **Mode:** a scalar integer: 0 before the wall ($x < X$), 1 beyond it.

    **Guards:** 0 is the ground, $z$. 1 is the plane of the wall, $X - x$ before it and
    $x - X$ beyond it: where $z \le H$ the ball bounces off; where $z > H$ it flies
    over, the state stays as it is and the mode changes. 2 is the back wall, $B - x$,
    watched beyond the wall.

    !!! warning

        The top edge of the wall makes the flow discontinuous: of two throws that pass
        it on either side, however near each other, one bounces back and the other flies
        on. The gradient is exact for every throw that misses the edge, and does not
        know of the jump of the outcome there. Between throws on one side of the edge
        the position at a fixed time is continuous, also where the number of bounces
        before that time changes; the velocity is not, if that is the time of a bounce.
    """

    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    drag: Float[Array, ""] = eqx.field(converter=parameter, default=0.02)
    restitution_ground: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)
    restitution_wall: Float[Array, ""] = eqx.field(converter=parameter, default=0.7)
    tangential: Float[Array, ""] = eqx.field(converter=parameter, default=0.95)
    wall_position: Float[Array, ""] = eqx.field(converter=parameter, default=4.0)
    wall_height: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    back_position: Float[Array, ""] = eqx.field(converter=parameter, default=6.0)

    def flow(self, t, x, mode, args):
        vx, vz = x[2:]
        squared = vx**2 + vz**2
        # The root has no derivative at rest, where the drag has one, zero.
        moves = squared > 0
        speed = jnp.where(moves, jnp.sqrt(jnp.where(moves, squared, 1.0)), 0.0)
        decay = self.drag * speed
        return jnp.stack([vx, vz, -decay * vx, -decay * vz - self.gravity])

    def guards(self, t, x, mode, args):
        before = self.wall_position - x[0]
        return jnp.stack(
            [
                x[1],
                jnp.where(mode == 0, before, -before),
                jnp.where(mode == 1, self.back_position - x[0], UNWATCHED),
            ]
        )

    def jump(self, t, x, mode, event, args):
        px, pz, vx, vz = x
        off_ground = jnp.stack(
            [px, pz, self.tangential * vx, -self.restitution_ground * vz]
        )
        off_wall = jnp.stack(
            [px, pz, -self.restitution_wall * vx, self.tangential * vz]
        )
        over = (event == 1) & (pz > self.wall_height)
        x_plus = jnp.where(event == 0, off_ground, jnp.where(over, x, off_wall))
        return x_plus, jnp.where(over, 1 - mode, mode)
