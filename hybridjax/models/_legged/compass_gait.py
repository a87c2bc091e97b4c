import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem, UNWATCHED


class CompassGait(AbstractHybridSystem):
    r"""Two stiff legs at a hip, that walk down a slope, without a motor or with two.

    Each leg has a mass $m$ at the distance $b$ from the hip and $a$ from the foot,
    $\ell = a + b$; the hip has the mass $m_H$. With the angles of the stance leg,
    $\theta_s$, and of the swing leg, $\theta_n$, to the vertical (positive where the
    hip is behind the foot, uphill), and $\theta = (\theta_n, \theta_s)$,

    $$M(\theta) \ddot\theta + N(\theta, \dot\theta) \dot\theta + G(\theta) =
    (u_H, u_A - u_H),$$

    $$M = \begin{pmatrix} m b^2 & -m \ell b \cos(\theta_s - \theta_n) \\
    \cdot & (m_H + m) \ell^2 + m a^2 \end{pmatrix}, \quad
    N = \begin{pmatrix} 0 & m \ell b \dot\theta_s \sin(\theta_s - \theta_n) \\
    -m \ell b \dot\theta_n \sin(\theta_s - \theta_n) & 0 \end{pmatrix}, \quad
    G = g \begin{pmatrix} m b \sin\theta_n \\
    -(m_H \ell + m a + m \ell) \sin\theta_s \end{pmatrix}.$$

    The swing foot is on the slope where $\theta_n + \theta_s = -2\gamma$, and also
    where the legs pass each other; it is assumed to clear the ground there. So it lands
    at the first of these only after the second. In that instant the other foot is
    released and the legs change their names: $\dot\theta^+ = Q_+^{-1} Q_-
    \dot\theta^-$, as neither the angular momentum about the landing foot changes, nor
    that of the leg which is lifted about the hip. With $c = \cos(\theta_s - \theta_n)$,

    $$Q_- = \begin{pmatrix} -m a b & -m a b + (m_H \ell^2 + 2 m a \ell) c \\
    0 & -m a b \end{pmatrix}, \quad
    Q_+ = \begin{pmatrix} m b (b - \ell c) & m \ell (\ell - b c) + m a^2 + m_H \ell^2 \\
    m b^2 & -m b \ell c \end{pmatrix}.$$

    **Arguments:**

    - `slope`: $\gamma$, in rad.
    - `leg_mass`, `hip_mass`: $m$ and $m_H$, in kg.
    - `lower`, `upper`: $a$ and $b$, in m.
    - `gravity`: $g$, in m/s².

    **args:** torques $u_H$ at the hip, of the stance leg on the swing leg, and $u_A$ at
    the ankle, of the ground on the stance leg, of shape `(2,)`, in N m: positive where
    they turn the leg that they act on to larger angles. `None` means none.

    **State:** an array of shape `(4,)`: $\theta_n, \theta_s$ (rad), and their rates
    (rad/s).

    **Mode:** a scalar integer: 0 while the swing leg is behind the stance leg, then 1.

    **Guards:** 0 is $\theta_s - \theta_n$, in mode 0: the legs pass each other. 1 is
    $\theta_n + \theta_s + 2\gamma$, in mode 1: the swing foot lands.

    ??? cite "Reference"

        Goswami, Thuilot, Espiau, *A study of the passive gait of a compass-like biped
        robot: symmetry and chaos* (1998).
    """

    slope: Float[Array, ""] = eqx.field(converter=parameter, default=0.05)
    leg_mass: Float[Array, ""] = eqx.field(converter=parameter, default=5.0)
    hip_mass: Float[Array, ""] = eqx.field(converter=parameter, default=10.0)
    lower: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)
    upper: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)
    gravity: Float[Array, ""] = eqx.field(converter=parameter, default=9.81)

    def flow(self, t, x, mode, args):
        swing, stance, swing_rate, stance_rate = x
        m, a, b, g = self.leg_mass, self.lower, self.upper, self.gravity
        length = a + b
        cos, sin = jnp.cos(stance - swing), jnp.sin(stance - swing)
        m11 = m * b**2
        m12 = -m * length * b * cos
        m22 = (self.hip_mass + m) * length**2 + m * a**2
        f1 = -m * length * b * sin * stance_rate**2 - g * m * b * jnp.sin(swing)
        f2 = m * length * b * sin * swing_rate**2
        f2 = f2 + g * (self.hip_mass * length + m * a + m * length) * jnp.sin(stance)
        if args is not None:
            hip, ankle = args
            f1, f2 = f1 + hip, f2 + ankle - hip
        det = m11 * m22 - m12**2
        return jnp.stack(
            [
                swing_rate,
                stance_rate,
                (m22 * f1 - m12 * f2) / det,
                (m11 * f2 - m12 * f1) / det,
            ]
        )

    def guards(self, t, x, mode, args):
        swing, stance, _, _ = x
        passing = jnp.where(mode == 0, stance - swing, UNWATCHED)
        landing = jnp.where(mode == 1, swing + stance + 2 * self.slope, UNWATCHED)
        return jnp.stack([passing, landing])

    def jump(self, t, x, mode, event, args):
        swing, stance, swing_rate, stance_rate = x
        m, hip, a, b = self.leg_mass, self.hip_mass, self.lower, self.upper
        length = a + b
        cos = jnp.cos(stance - swing)
        about_foot = (
            -m * a * b * swing_rate
            + ((hip * length**2 + 2 * m * a * length) * cos - m * a * b) * stance_rate
        )
        about_hip = -m * a * b * stance_rate
        q11 = m * b * (b - length * cos)
        q12 = m * length * (length - b * cos) + m * a**2 + hip * length**2
        q21, q22 = m * b**2, -m * b * length * cos
        det = q11 * q22 - q12 * q21
        new_swing_rate = (q22 * about_foot - q12 * about_hip) / det
        new_stance_rate = (q11 * about_hip - q21 * about_foot) / det
        landed = jnp.stack([stance, swing, new_swing_rate, new_stance_rate])
        return jnp.where(event == 1, landed, x), jnp.where(event == 1, 0, 1).astype(
            mode.dtype
        )

    def links(self, x: Float[Array, "4"]) -> Float[Array, "2 2 2"]:
        """Where the legs are, to be drawn by `ax.plot(*links.T)`. For several states:
        `jax.vmap`.

        **Returns:**

        The stance leg from its foot, which is at the origin, to the hip, and the swing
        leg from the hip to its foot: for each two points, to the right and upwards, in
        m. The slope falls to the right.
        """
        x = jnp.asarray(x)
        return (self.lower + self.upper) * legs(x[1], x[0])


def legs(stance, swing) -> Float[Array, "2 2 2"]:
    """Of unit length, at these angles to the vertical."""
    foot = jnp.zeros(2, stance.dtype)
    hip = jnp.stack([-jnp.sin(stance), jnp.cos(stance)])
    other = hip + jnp.stack([jnp.sin(swing), -jnp.cos(swing)])
    return jnp.stack([jnp.stack([foot, hip]), jnp.stack([hip, other])])
