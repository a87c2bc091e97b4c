import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ...mechanics import MechanicalSystem


def rigid_trotter(
    mass: ArrayLike = 1.0,
    inertia: ArrayLike = 0.15,
    half_length: ArrayLike = 0.3,
    leg_length: ArrayLike = 0.5,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A body that lands on two rigid legs, front and rear.

    The legs are massless, vertical, and $\ell$ long, at $\pm a$ along the body:

    $$m \ddot z = -m g + \sum_i \lambda_i, \qquad
    I \ddot\theta = \sum_i \pm a \cos\theta\, \lambda_i, \qquad
    z \pm a \sin\theta - \ell \ge 0.$$

    An impact of one leg moves the other side, in proportion to $\frac1m - \frac{a^2
    \cos^2\theta}{I}$: unless that is zero, the outcome of a landing depends on which
    leg is first, and jumps where both land in the same instant.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `inertia`: $I$, in kg m².
    - `half_length`: $a$, in m.
    - `leg_length`: $\ell$, in m.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(z, \theta)$ in
    m and rad; contact 0 is the leg at $+a$, 1 that at $-a$.

    ??? cite "Reference"

        Pace, Burden, *Decoupled limbs yield differentiable trajectory outcomes through
        intermittent contact in locomotion and manipulation*, Figure 1 (left), which
        does not give the numbers.
    """
    body = _Body(
        parameter(mass),
        parameter(inertia),
        parameter(half_length),
        parameter(leg_length),
        parameter(gravity),
    )
    return MechanicalSystem(body.mass_matrix, body.effort, body.feet, 2, **kwargs)


def soft_trotter(
    mass: ArrayLike = 1.0,
    inertia: ArrayLike = 0.05,
    foot_mass: ArrayLike = 0.1,
    half_length: ArrayLike = 0.3,
    leg_length: ArrayLike = 0.5,
    stiffness: ArrayLike = 200.0,
    damping: ArrayLike = 4.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A body that lands on two legs with springs, dampers and heavy feet.

    The hips are at the heights $h_i = z \pm a \sin\theta$, the feet at $y_i \ge 0$, and
    the legs push with $F_i = k (\ell - h_i + y_i) - c (\dot h_i - \dot y_i)$:

    $$m \ddot z = -m g + \sum_i F_i, \quad
    I \ddot\theta = \sum_i \pm a \cos\theta\, F_i, \quad
    m_f \ddot y_i = -m_f g - F_i + \lambda_i.$$

    The limbs are decoupled through the body: an impact changes the velocity of its own
    foot only, and a foot acts on the body by a force that knows nothing of the other.
    So outcomes are differentiable, also where both feet land in the same instant.

    **Arguments:**

    - `mass`, `inertia`: $m$ and $I$ of the body, in kg and kg m².
    - `foot_mass`: $m_f$ of each foot, in kg.
    - `half_length`: $a$, in m.
    - `leg_length`: $\ell$, in m.
    - `stiffness`, `damping`: $k$ and $c$ of each leg, in N/m and N s/m.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(z, \theta,
    y_0, y_1)$ in m and rad; contact 0 is the foot at $+a$, 1 that at $-a$.

    ??? cite "Reference"

        Pace, Burden, *Decoupled limbs yield differentiable trajectory outcomes through
        intermittent contact in locomotion and manipulation*, Figure 1 (right), which
        does not give the numbers.
    """
    body = _Body(
        parameter(mass),
        parameter(inertia),
        parameter(half_length),
        parameter(leg_length),
        parameter(gravity),
    )
    legs = _SoftLegs(
        body, parameter(foot_mass), parameter(stiffness), parameter(damping)
    )
    return MechanicalSystem(legs.mass_matrix, legs.effort, legs.feet, 2, **kwargs)


class _Body(eqx.Module):
    mass: Float[Array, ""]
    inertia: Float[Array, ""]
    half_length: Float[Array, ""]
    leg_length: Float[Array, ""]
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args):
        return jnp.stack([self.mass, self.inertia])

    def effort(self, t, q, v, args):
        return jnp.stack([-self.mass * self.gravity, jnp.zeros_like(self.mass)])

    def sides(self):
        return jnp.stack([self.half_length, -self.half_length])

    def feet(self, q, args):
        return q[0] + self.sides() * jnp.sin(q[1]) - self.leg_length


class _SoftLegs(eqx.Module):
    body: _Body
    foot_mass: Float[Array, ""]
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]

    def mass_matrix(self, q, args):
        feet = jnp.stack([self.foot_mass, self.foot_mass])
        return jnp.concatenate([self.body.mass_matrix(q, args), feet])

    def effort(self, t, q, v, args):
        body, sides = self.body, self.body.sides()
        arms = sides * jnp.cos(q[1])
        pressed = q[2:] - body.feet(q, args)
        rate = v[2:] - v[0] - arms * v[1]
        push = self.stiffness * pressed + self.damping * rate
        on_body = body.effort(t, q, v, args)
        on_body = on_body + jnp.stack([jnp.sum(push), jnp.sum(arms * push)])
        return jnp.concatenate([on_body, -push - self.foot_mass * body.gravity])

    def feet(self, q, args):
        return q[2:]
