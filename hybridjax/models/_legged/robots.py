from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ..._systems.parameter import parameter
from ...mechanics import MechanicalSystem
from ...mechanics._dynamics.dot import dot


def planar_monoped(
    torques: Callable | None = None,
    ground: Callable | None = None,
    masses: ArrayLike | Sequence[float] = (2.0, 0.5, 0.3),
    lengths: ArrayLike | Sequence[float] = (0.3, 0.25, 0.25),
    gravity: ArrayLike = 9.81,
    friction: ArrayLike = 0.8,
    **kwargs,
) -> MechanicalSystem:
    r"""A planar hopper: a torso and one leg with a knee and a point foot.

    Each link is a uniform rod: the torso upwards from the hip, the thigh
    down from the hip, the shank down from the knee. With the hip at $(x, z)$ and the
    angles $\theta_0, \theta_1, \theta_2$ of the links to the vertical (anticlockwise),
    the foot is at

    $$(x, z) + \ell_1 (\sin\theta_1, -\cos\theta_1) + \ell_2 (\sin\theta_2,
    -\cos\theta_2),$$

    and $M(q) = \sum_i m_i J_i^\top J_i + \operatorname{diag}(0, 0, I_0, I_1, I_2)$ with
    the Jacobians $J_i$ of the centres of mass and $I_i = m_i \ell_i^2 / 12$. The
    torques at hip and knee, $u_1$ and $u_2$, are those on the lower link, and their
    opposites act on the upper one: $f = (0, -\sum_i m_i g, -u_1, u_1 - u_2, u_2)$ and
    the weight of the links.

    **Arguments:**

    - `torques`: callable `(t, q, v, args) -> u`, of shape `(2,)`: hip and knee, in N m.
        `None` means none.
    - `ground`: callable `x -> height` (m), differentiable. `None` is level ground at 0.
    - `masses`: of torso, thigh and shank, in kg.
    - `lengths`: $\ell_i$ of torso, thigh and shank, in m.
    - `gravity`: $g$, in m/s².
    - `friction`: $\mu$ of the foot, static and kinetic.
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(x, z,
    \theta_0, \theta_1, \theta_2)$ in m and rad, and one contact: the gap is the height
    of the foot above the ground below it.
    """
    return _legged(
        1, torques, ground, masses, lengths, gravity, friction=friction, **kwargs
    )


def planar_biped(
    torques: Callable | None = None,
    ground: Callable | None = None,
    masses: ArrayLike | Sequence[float] = (10.0, 3.0, 2.0),
    lengths: ArrayLike | Sequence[float] = (0.6, 0.4, 0.4),
    gravity: ArrayLike = 9.81,
    friction: ArrayLike = 0.8,
    **kwargs,
) -> MechanicalSystem:
    r"""A planar biped: a torso and two legs with knees and point feet.

    As `hj.models.planar_monoped`, with a second leg at the same hip: five
    links, seven degrees of freedom.

    **Arguments:**

    - `torques`: callable `(t, q, v, args) -> u`, of shape `(4,)`: hip and knee of the
        first leg, then of the second, in N m. `None` means none.
    - `ground`: callable `x -> height` (m), differentiable. `None` is level ground at 0.
    - `masses`: of torso, thighs and shanks, in kg, of shape `(3,)`.
    - `lengths`: of torso, thighs and shanks, in m, of shape `(3,)`.
    - `gravity`: $g$, in m/s².
    - `friction`: $\mu$ of the feet, static and kinetic.
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(x, z,
    \theta_0, \theta_1, \theta_2, \theta_3, \theta_4)$: the hip, and the angles of
    torso, thigh and shank of the first leg, thigh and shank of the second, in m and
    rad. Contact $j$ is the foot of leg $j$.
    """
    return _legged(
        2, torques, ground, masses, lengths, gravity, friction=friction, **kwargs
    )


def planar_links(
    q: Float[Array, " dofs"], lengths: ArrayLike | Sequence[float]
) -> Float[Array, "links 2 2"]:
    """Where the links of `hj.models.planar_monoped` or `hj.models.planar_biped` are, to
    be drawn by `ax.plot(*links.T)`. For several configurations: `jax.vmap`.

    **Arguments:**

    - `q`: the configuration.
    - `lengths`: of torso, thigh and shank, in m, as for the robot.

    **Returns:**

    Torso, thigh and shank of the first leg, and of the second: for each of them two
    points in m, from the hip outwards. Hence feet are `links[2::2, 1]`.
    """
    q = jnp.asarray(q)
    links = _link_numbers((q.size - 3) // 2)
    return jnp.stack(_ends(q, parameter(lengths)[links]), axis=1)


def _link_numbers(legs: int) -> Int[np.ndarray, " links"]:
    return np.array([0] + [1, 2] * legs)


def _legged(legs, torques, ground, masses, lengths, gravity, **kwargs):
    lengths = parameter(lengths)
    links = _link_numbers(legs)
    body = _Links(parameter(masses)[links], lengths[links], parameter(gravity), torques)
    feet = _Feet(body, ground)
    return MechanicalSystem(
        body.mass_matrix, body.effort, feet.gap, legs, tangents=feet.tangents, **kwargs
    )


def _ends(q, lengths) -> tuple[Array, Array]:
    """Where the links begin and end, of shape `(links, 2)` each."""
    hip, angles = q[:2], q[2:]
    down = jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=1)
    # The torso is upwards. Shanks begin where thighs end.
    links, dtype = angles.size, down.dtype
    up = np.where(np.arange(links) == 0, -1, 1).astype(dtype)
    reach = (lengths * up)[:, None] * down
    above = np.zeros((links, links), dtype)
    above[np.arange(2, links, 2), np.arange(1, links, 2)] = 1
    begin = hip[None] + dot(above, reach)
    return begin, begin + reach


class _Links(eqx.Module):
    """A torso and legs of two links each, at a hip."""

    masses: Float[Array, " links"]
    lengths: Float[Array, " links"]
    gravity: Float[Array, ""]
    torques: Callable | None

    def _centres(self, q):
        begin, end = _ends(q, self.lengths)
        return (begin + end) / 2

    def mass_matrix(self, q, args):
        jacobian = jax.jacfwd(self._centres)(q)
        rows = jacobian.reshape(-1, q.size)
        weighted = (self.masses[:, None, None] * jacobian).reshape(-1, q.size)
        moving = dot(rows.T, weighted)
        turning = self.masses * self.lengths**2 / 12
        return moving + jnp.diag(jnp.concatenate([jnp.zeros_like(q[:2]), turning]))

    def effort(self, t, q, v, args):
        weight = lambda q: self.gravity * jnp.sum(self.masses * self._centres(q)[:, 1])
        force = -jax.grad(weight)(q)
        if self.torques is None:
            return force
        u = self.torques(t, q, v, args)
        hips, knees = u[0::2], u[1::2]
        legs = jnp.stack([hips - knees, knees], axis=1).reshape(-1)
        return force + jnp.concatenate(
            [jnp.zeros_like(q[:2]), -jnp.sum(hips)[None], legs]
        )


class _Feet(eqx.Module):
    links: _Links
    ground: Callable | None

    def _place(self, q):
        return _ends(q, self.links.lengths)[1][2::2]

    def gap(self, q, args):
        feet = self._place(q)
        if self.ground is None:
            return feet[:, 1]
        return feet[:, 1] - jax.vmap(self.ground)(feet[:, 0])

    def tangents(self, q, args):
        jacobian = jax.jacfwd(self._place)(q)
        if self.ground is None:
            return jacobian[:, 0]
        slope = jax.vmap(jax.grad(self.ground))(self._place(q)[:, 0])[:, None]
        along = jacobian[:, 0] + slope * jacobian[:, 1]
        return along / jnp.sqrt(1 + slope**2)
