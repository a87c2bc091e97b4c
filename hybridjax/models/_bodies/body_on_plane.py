from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ...mechanics import free_joint, MechanicalSystem
from ...mechanics._dynamics.cross import cross
from ...mechanics._dynamics.joints import rotation_matrix


def body_on_plane(
    points: ArrayLike | Sequence = ((0.0, 0.0, 0.0),),
    radius: ArrayLike = 0.0,
    mass: ArrayLike = 1.0,
    inertia: ArrayLike | Sequence = (1.0, 1.0, 1.0),
    slope: ArrayLike = 0.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A free rigid body in space, with contact points (or balls) above a plane.

    $$m \dot v = m g (\sin\gamma, 0, -\cos\gamma) + \sum_i \lambda_i, \qquad
    I \dot\omega + \omega \times I \omega = \sum_i Q^\top (r_i \times \lambda_i),
    \qquad a_i = (x + Q p_i)_3 - \rho,$$

    with $Q$ the rotation of the body, and the arm $r_i = Q p_i - \rho e_3$ to contact
    $i$. One point at the centre is a mass that slides, with $\rho > 0$ a ball that
    rolls; eight corners are a box.

    **Arguments:**

    - `points`: $p_i$, in m, in the frame of the body: of shape `(n, 3)`.
    - `radius`: $\rho$ of the balls around them, in m.
    - `mass`: $m$, in kg.
    - `inertia`: $I$, the three principal moments of inertia about the centre of mass,
        in kg m².
    - `slope`: $\gamma$ of the plane, in rad; its first direction points downhill.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`, `friction` among them.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration of
    `hj.mechanics.free_joint`: the position in m, in the frame of the plane, and a
    quaternion; velocities in m/s and, in the frame of the body, rad/s.
    """
    body = _Body(*map(parameter, (points, radius, mass, inertia, slope, gravity)))
    return MechanicalSystem(
        body.mass_matrix,
        body.effort,
        body.gap,
        body.points.shape[0],
        normals=body.normals,
        tangents=body.tangents,
        velocity_to_qdot=free_joint,
        bias=body.bias,
        **kwargs,
    )


class _Body(eqx.Module):
    points: Float[Array, "n 3"]
    radius: Float[Array, ""]
    mass: Float[Array, ""]
    inertia: Float[Array, " 3"]
    slope: Float[Array, ""]
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args):
        return jnp.concatenate([jnp.broadcast_to(self.mass, (3,)), self.inertia])

    def bias(self, q, v, args):
        spin = v[3:]
        return jnp.concatenate([0 * v[:3], cross(spin, self.inertia * spin)])

    def effort(self, t, q, v, args):
        down = jnp.stack([jnp.sin(self.slope), 0 * self.slope, -jnp.cos(self.slope)])
        return jnp.concatenate([self.mass * self.gravity * down, jnp.zeros_like(v[3:])])

    def gap(self, q, args):
        up = rotation_matrix(q[3:])[2]
        return q[2] + jnp.sum(self.points * up[None], axis=1) - self.radius

    def normals(self, q, args):
        up = rotation_matrix(q[3:])[2]
        return self._rows(2, up, jnp.zeros_like(up))

    def tangents(self, q, args):
        axes = rotation_matrix(q[3:])
        rows = [self._rows(0, axes[0], axes[1]), self._rows(1, axes[1], -axes[0])]
        return jnp.stack(rows, axis=1)

    def _rows(self, axis: int, e, moment):
        """Of forces along an axis of the plane, e = Q^T e_i as the body sees it: a row
        of the rotation matrix. Such a force has the moment Q^T (r x e_i) = p x e - rho
        Q^T (e_3 x e_i)."""
        turn = cross(self.points, e[None]) - self.radius * moment[None]
        push = jnp.broadcast_to(jnp.asarray(np.eye(3)[axis], e.dtype), turn.shape)
        return jnp.concatenate([push, turn], axis=1)
