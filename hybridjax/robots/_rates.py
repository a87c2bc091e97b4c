"""The rate of the configuration: that of joints with quaternions is not `v`."""

import equinox as eqx
import jax.numpy as jnp

from ..mechanics._dynamics.joints import ball_joint, free_joint
from ._topology import Topology


class Rates(eqx.Module):
    """Those of all joints, a `velocity_to_qdot`."""

    topology: Topology = eqx.field(static=True)

    def __call__(self, q, v):
        tree, parts, at = self.topology, [], 0
        for frame, quaternion, position in tree.quaternions:
            first = tree.frames.index(frame)
            parts.append(v[at:first])
            if position < 0:
                at = first + 3
                parts.append(ball_joint(q[quaternion : quaternion + 4], v[first:at]))
            else:
                at = first + 6
                parts.append(free_joint(q[position : position + 7], v[first:at]))
        return jnp.concatenate([*parts, v[at:]])
