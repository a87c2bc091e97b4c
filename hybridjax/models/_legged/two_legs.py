import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem


class TwoLegs(AbstractHybridSystem):
    r"""A planar rigid body on two massless legs, with springs and dampers in the feet.

    Foot $i$ is at $r_i = R(\theta) (s_i, -l_0)$ from the centre of mass, with
    $s = (+a, -a)$, so that its height is $\phi_i = z + r_{i,z}$. In contact the ground
    acts on it with

    $$F_{i,z} = -k \phi_i - \beta c \, (v_z + \omega r_{i,x}), \qquad
    F_{i,x} = -\beta c_t \, (v_x - \omega r_{i,z}),$$

    with $\beta = 1$ if both feet are in contact, and $\beta = \beta_1$ if one is, and

    $$m \dot v_x = \sum_i F_{i,x}, \qquad m \dot v_z = \sum_i F_{i,z} - m g, \qquad
    I \dot\omega = \sum_i r_{i,x} F_{i,z} - r_{i,z} F_{i,x}.$$

    A foot is in contact where $\phi_i < 0$. The state does not jump; the force does, at
    touchdown and liftoff, because of the dampers (just before liftoff it can pull). If
    $\beta_1 = 1$ the dampers know nothing of each other, and the final state is a
    differentiable function of the initial one even where both feet touch down in the
    same instant; if $\beta_1 \ne 1$ it is only piecewise differentiable there.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `inertia`: $I$, about the centre of mass, in kg m².
    - `half_width`: $a$, in m.
    - `leg_length`: $l_0$, in m.
    - `stiffness`: $k$, in N/m.
    - `damping`, `tangential_damping`: $c$ and $c_t$, in N s/m.
    - `gravity`: $g$, in m/s².
    - `single_support`: $\beta_1$, by which the damping is multiplied while exactly one
        foot is in contact. 1, or 1/2 in Figure 4 (right) of the paper.

    **State:** an array of shape `(6,)`: $x$, $z$ (m), $\theta$ (rad), $v_x$, $v_z$
    (m/s), $\omega$ (rad/s).

    **Mode:** an integer array of shape `(2,)`: entry $i$ is 1 if foot $i$ is in
    contact, else 0.

    **Guards:** guard $i$ is $\phi_i$ while foot $i$ is in the air, and $-\phi_i$ while
    it is in contact.

    ??? cite "Reference"

        After the soft biped of Council, Revzen, Burden, *Representing and computing the
        B-derivative of the piecewise-differentiable flow of a class of nonsmooth vector
        fields*, Section 3.2; problem P3 of the benchmarks.
    """

    mass: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    inertia: Float[Array, ""] = eqx.field(converter=parameter, default=0.1)
    half_width: Float[Array, ""] = eqx.field(converter=parameter, default=0.3)
    leg_length: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)
    stiffness: Float[Array, ""] = eqx.field(converter=parameter, default=300.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=2.0)
    tangential_damping: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)
    single_support: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)

    def feet(self, theta) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
        r"""The horizontal and the vertical offsets (m) of the feet from the centre."""
        side = jnp.stack([self.half_width, -self.half_width])
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        return (
            cos * side + sin * self.leg_length,
            sin * side - cos * self.leg_length,
        )

    def flow(self, t, x, mode, args):
        _, z, theta, vx, vz, omega = x
        rx, rz = self.feet(theta)
        beta = jnp.where(mode[0] != mode[1], self.single_support, 1.0)
        fz = -self.stiffness * (z + rz) - beta * self.damping * (vz + omega * rx)
        fx = -beta * self.tangential_damping * (vx - omega * rz)
        fz = jnp.where(mode == 1, fz, 0.0)
        fx = jnp.where(mode == 1, fx, 0.0)
        both = lambda a: a[0] + a[1]
        return jnp.stack(
            [
                vx,
                vz,
                omega,
                both(fx) / self.mass,
                both(fz) / self.mass - self.gravity,
                both(rx * fz - rz * fx) / self.inertia,
            ]
        )

    def guards(self, t, x, mode, args):
        _, rz = self.feet(x[2])
        heights = x[1] + rz
        return jnp.where(mode == 1, -heights, heights)

    def jump(self, t, x, mode, event, args):
        changes = jax.nn.one_hot(event, 2, dtype=bool)
        return x, jnp.where(changes, 1 - mode, mode)

    def links(self, x: Float[Array, "6"]) -> Float[Array, "3 2 2"]:
        """Where body and legs are, to be drawn by `ax.plot(*links.T)`. For several
        states: `jax.vmap`.

        **Returns:**

        The body, from hip to hip, and both legs, from hip to foot: for each two points,
        to the right and upwards, in m.
        """
        x = jnp.asarray(x)
        side = jnp.stack([self.half_width, -self.half_width])
        along = jnp.stack([jnp.cos(x[2]), jnp.sin(x[2])])
        hips = x[None, :2] + side[:, None] * along[None]
        feet = x[None, :2] + jnp.stack(self.feet(x[2]), axis=1)
        return jnp.concatenate([hips[None], jnp.stack([hips, feet], axis=1)])
