r"""The mass matrix of a robot, and its Coriolis forces and weight.

With the second moments $\Sigma = \int x x^\top \mathrm dm$ of a body, in homogeneous
coordinates, and the matrices $S_i$ of the twists of the velocities, a body that moves
with $V = \sum_i S_i v_i$ has the kinetic energy $\tfrac12 \operatorname{tr} V \Sigma
V^\top$. Hence $M_{ij} = \operatorname{tr} S_i \Sigma S_j^\top$, with the sum of the
moments of all bodies that both of them move (the composite inertia); and with $\dot v =
0$ a point of a body has the acceleration $(\dot V + V V)\, x$ with $\dot V = \sum_i
[V_i, S_i]\, v_i$, $V_i$ being that with which the axis of $v_i$ turns: the forces for
it are those of recursive Newton-Euler, summed from the leaves to the root.

??? cite "Reference"

    Featherstone, *Rigid body dynamics algorithms* (2008), 5.3, 6.2; in matrices of
    shape (4, 4): Legnani, Casolo, Righettini, Zappa, *A homogeneous matrix approach to
    3D kinematics and dynamics* (1996).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.dot import dot
from ._compile import load_mujoco
from ._kinematics import Kinematics
from ._topology import selection
from ._transforms import compose, transform


class Inertia(eqx.Module):
    """Mass matrix, and what stands beside it."""

    kinematics: Kinematics
    moments: Float[Array, "frames 4 4"]  # of each body, in its own frame
    armature: Float[Array, " v"]
    gravity: Float[Array, "frames 3"]  # as each body feels it

    def mass_matrix(self, q, args):
        del args
        _, twists, moments = self._at(q)
        tree, dtype = self.kinematics.topology, q.dtype
        below = tree.moves.T.astype(dtype)
        composite = dot(below, moments.reshape(-1, 16)).reshape(-1, 4, 4)
        momenta = compose(twists.reshape(-1, 4, 4), composite).reshape(-1, 16)
        products = dot(momenta, twists.T)
        above = tree.above.astype(dtype) * products
        own = tree.beside.astype(dtype) * products
        return above + above.T + own + jnp.diag(self.armature)

    def bias(self, q, v, args):
        """Coriolis forces and weight: MuJoCo's `qfrc_bias`."""
        del args
        _, twists, moments = self._at(q)
        tree, dtype = self.kinematics.topology, q.dtype
        square = lambda a: a.reshape(-1, 4, 4)
        own = twists * v[:, None]
        velocity = square(dot(tree.moves.astype(dtype), own))
        turns = square(dot(tree.turns.astype(dtype), own))
        turned = compose(turns, square(own)) - compose(square(own), turns)
        acceleration = dot(tree.moves.astype(dtype), turned.reshape(-1, 16))
        acceleration = square(acceleration) + compose(velocity, velocity)
        fall = jnp.pad(self.gravity[:, :, None], ((0, 0), (0, 1), (3, 0)))
        acceleration = acceleration - fall
        forces = compose(acceleration, moments).reshape(-1, 16)
        return jnp.sum(twists * dot(tree.moves.T.astype(dtype), forces), axis=1)

    def _at(self, q):
        """Transforms, twists (flat), and moments of the frames, from the roots."""
        transforms = self.kinematics.from_roots(self.kinematics.transforms(q))
        twists = self.kinematics.twists(transforms).matrices
        turned = jnp.swapaxes(transforms, 1, 2)
        return transforms, twists, compose(compose(transforms, self.moments), turned)


def inertia_of(model: Any, kinematics: Kinematics) -> Inertia:
    moments = np.zeros((model.nbody, 4, 4))
    for body in range(1, model.nbody):
        frame = transform(model.body_ipos[body], model.body_iquat[body])
        principal = model.body_inertia[body]
        own = np.diag([*(principal.sum() / 2 - principal), model.body_mass[body]])
        moments[body] = frame @ own @ frame.T
    off = load_mujoco().mjtDisableBit.mjDSBL_GRAVITY
    gravity = np.zeros(3) if model.opt.disableflags & off else model.opt.gravity
    felt = np.outer(1 - model.body_gravcomp, gravity)
    place = selection(kinematics.topology.bodies, kinematics.topology.n_frames).T
    return Inertia(
        kinematics=kinematics,
        moments=parameter(np.einsum("fb,bij->fij", place, moments)),
        armature=parameter(model.dof_armature),
        gravity=parameter(place @ felt),
    )
