from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ...mechanics import MechanicalSystem


def point_mass_on_slope(
    angle: ArrayLike,
    friction: ArrayLike = 0.0,
    static_friction: ArrayLike | None = None,
    restitution: ArrayLike | Callable = 0.0,
    mass: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A point mass that drops on a slope, and bounces, slides or sticks there.

    With the tangent $\tau = (\cos\beta, -\sin\beta)$ and the normal $n = (\sin\beta,
    \cos\beta)$ of a slope that goes down to the right,

    $$m \ddot q = -(0, m g) + \lambda_n n + \lambda_t \tau, \qquad n^\top q \ge 0.$$

    **Arguments:**

    - `angle`: $\beta$, in rad.
    - `friction`, `static_friction`: $\mu_k$ and $\mu_s$; `None` is the same.
    - `restitution`: $e$, from 0 to 1, or a function: see
        `hj.mechanics.MechanicalSystem`.
    - `mass`: $m$, in kg.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $q$, horizontal
    and vertical position in m, and one contact.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Section IV; here also with friction.
    """
    body = _PointMass(parameter(mass), parameter(gravity), parameter(angle))
    return MechanicalSystem(
        body.mass_matrix,
        body.effort,
        body.gap,
        1,
        tangents=body.tangents,
        friction=friction,
        static_friction=static_friction,
        restitution=restitution,
        **kwargs,
    )


def block_on_incline(
    angle: ArrayLike = 0.0,
    friction: ArrayLike = 0.2,
    static_friction: ArrayLike | None = 0.3,
    stiffness: ArrayLike = 10.0,
    speed: ArrayLike = 0.1,
    mass: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A block on an incline, pulled by a spring whose end moves: stick and slip.

    In coordinates along the incline (upwards) and normal to it,

    $$m \ddot s = k (w t - s) - m g \sin\beta + \lambda_t, \qquad
    m \ddot n = -m g \cos\beta + \lambda_n, \qquad n \ge 0.$$

    While the block sticks the spring is drawn out, until it overcomes the static
    friction; while it slides, it oscillates about the point where the spring balances
    the kinetic one. If $\mu_s > \mu_k$ this goes on for ever at low speeds.

    **Arguments:**

    - `angle`: $\beta$, in rad.
    - `friction`, `static_friction`: $\mu_k$ and $\mu_s$; `None` is the same.
    - `stiffness`: $k$, in N/m.
    - `speed`: $w$, of the end of the spring, in m/s.
    - `mass`: $m$, in kg.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(s, n)$ in m,
    and one contact. The spring is unstretched at $t = 0$, $s = 0$.
    """
    body = _Pulled(
        _PointMass(parameter(mass), parameter(gravity), parameter(0.0)),
        parameter(angle),
        parameter(stiffness),
        parameter(speed),
    )
    return MechanicalSystem(
        body.mass.mass_matrix,
        body.effort,
        body.mass.gap,
        1,
        tangents=body.mass.tangents,
        friction=friction,
        static_friction=static_friction,
        **kwargs,
    )


class _PointMass(eqx.Module):
    mass: Float[Array, ""]
    gravity: Float[Array, ""]
    angle: Float[Array, ""]

    def mass_matrix(self, q, args):
        return jnp.stack([self.mass, self.mass])

    def effort(self, t, q, v, args):
        return jnp.stack([jnp.zeros_like(self.mass), -self.mass * self.gravity])

    def gap(self, q, args):
        normal = jnp.stack([jnp.sin(self.angle), jnp.cos(self.angle)])
        return jnp.sum(normal * q)[None]

    def tangents(self, q, args):
        return jnp.stack([jnp.cos(self.angle), -jnp.sin(self.angle)])[None]


class _Pulled(eqx.Module):
    mass: _PointMass
    angle: Float[Array, ""]
    stiffness: Float[Array, ""]
    speed: Float[Array, ""]

    def effort(self, t, q, v, args):
        weight = self.mass.mass * self.mass.gravity
        spring = self.stiffness * (self.speed * t - q[0])
        along = spring - weight * jnp.sin(self.angle)
        return jnp.stack([along, -weight * jnp.cos(self.angle)])
