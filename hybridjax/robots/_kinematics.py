r"""Where the frames of a robot are, and how velocities move them.

Everything is done for all frames at once. The transforms of joints are functions of
their own coordinates only; those in the world are products along the branches of the
tree, which take as many steps as its depth has binary digits: each frame is multiplied
with the one that is 1, 2, 4, ... generations above it. What is above what is in
constant matrices, so that no step is a gather, and none is repeated for each body: on a
CPU the gradient of a robot's acceleration compiles nine times as fast as with the scans
of MJX (docs/performance.md).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.dot import dot
from ..mechanics._dynamics.joints import rotation_matrix
from ._compile import load_mujoco
from ._topology import selection, Topology, topology_of
from ._transforms import compose, generator, transform


class Twists(eqx.Module):
    """How each velocity moves what it moves, as the world sees it: a point at $x$, from
    the root of its tree, with $\\omega \\times x + v$."""

    turning: Float[Array, "v 3"]
    moving: Float[Array, "v 3"]

    @property
    def matrices(self) -> Float[Array, "v 16"]:
        """Flat, as the transforms are."""
        (x, y, z), (a, b, c), zero = self.turning.T, self.moving.T, self.turning[:, 0]
        zero = jnp.zeros_like(zero)
        rows = [zero, -z, y, a, z, zero, -x, b, -y, x, zero, c, *[zero] * 4]
        return jnp.stack(rows, axis=1)


class Kinematics(eqx.Module):
    """The frames of a tree, and how they move."""

    topology: Topology = eqx.field(static=True)
    # The transform of a frame in the one before it, for an angle a and a length s:
    # at_rest + sin(a) turning + (1 - cos(a)) turning_twice + s sliding.
    at_rest: Float[Array, "frames 16"]
    turning: Float[Array, "frames 16"]
    turning_twice: Float[Array, "frames 16"]
    sliding: Float[Array, "frames 16"]
    before_quaternions: Float[Array, "quaternions 4 4"]
    reference: Float[Array, " q"]
    # Of velocities, in their frames: axes of rotation, points on them, directions.
    axes: Float[Array, "v 3"]
    anchors: Float[Array, "v 3"]
    directions: Float[Array, "v 3"]
    world_directions: Float[Array, "v 3"]

    def transforms(self, q: Float[Array, " q"]) -> Float[Array, "frames 4 4"]:
        """Of all frames, in the world."""
        tree = self.topology
        moved = q - self.reference
        angle = dot(self._pick(tree.q_of_hinges, q.dtype), moved)[:, None]
        length = dot(self._pick(tree.q_of_slides, q.dtype), moved)[:, None]
        local = self.at_rest + jnp.sin(angle) * self.turning
        local = local + (1 - jnp.cos(angle)) * self.turning_twice
        local = local + length * self.sliding
        if tree.quaternions:
            frames = [frame for frame, *_ in tree.quaternions]
            place = selection(frames, tree.n_frames).T.astype(q.dtype)
            turned = jnp.stack(
                [
                    compose(before, _of_quaternion(q, anchor, quaternion, position))
                    for before, (_, quaternion, position), anchor in zip(
                        self.before_quaternions,
                        tree.quaternions,
                        self._ball_anchors(),
                        strict=True,
                    )
                ]
            )
            local = local + dot(place, turned.reshape(-1, 16))
        for jump in tree.jumps:
            above = dot(jump.astype(q.dtype), local).reshape(-1, 4, 4)
            local = compose(above, local.reshape(-1, 4, 4)).reshape(-1, 16)
        return local.reshape(-1, 4, 4)

    def from_roots(self, transforms):
        """Transforms whose origins are the roots of their trees: far from the origin of
        the world, sums of moments would lose their digits."""
        tree = self.topology
        away = np.eye(tree.n_frames) - selection(tree.roots, tree.n_frames)
        positions = dot(away.astype(transforms.dtype), transforms[:, :3, 3])
        # Not `.at[...].set`: XLA makes a loop of each, which is a dozen kernels.
        ones = jnp.ones_like(positions[:, :1])
        positions = jnp.concatenate([positions, ones], axis=1)
        return jnp.concatenate([transforms[:, :, :3], positions[:, :, None]], axis=2)

    def twists(self, transforms) -> Twists:
        """Of all velocities, of transforms from the roots."""
        tree = self.topology
        own = selection(tree.frames, tree.n_frames).astype(transforms.dtype)
        frames = dot(own, transforms.reshape(-1, 16)).reshape(-1, 4, 4)
        rotation, origin = frames[:, :3, :3], frames[:, :3, 3]
        turn = lambda vectors: jnp.sum(rotation * vectors[:, None, :], axis=2)
        axes, points = turn(self.axes), turn(self.anchors) + origin
        moving = turn(self.directions) + self.world_directions
        return Twists(axes, moving + jnp.cross(points, axes))

    def _pick(self, places, dtype):
        pick = np.zeros((self.topology.n_frames, self.topology.n_q), dtype)
        for frame, place in places:
            pick[frame, place] = 1
        return pick

    def _ball_anchors(self):
        first = [self.topology.frames.index(f) for f, *_ in self.topology.quaternions]
        return [self.anchors[i] for i in first]


def _of_quaternion(q, anchor, quaternion: int, position: int):
    """The transform of a free joint, or that of a ball joint about its anchor."""
    rotation = rotation_matrix(q[quaternion : quaternion + 4])
    if position < 0:
        place = anchor - dot(rotation, anchor)
    else:
        place = q[position : position + 3]
    upper = jnp.concatenate([rotation, place[:, None]], axis=1)
    return jnp.concatenate([upper, np.eye(4, dtype=q.dtype)[3:]])


def kinematics_of(model: Any) -> Kinematics:
    tree, joint = topology_of(model), load_mujoco().mjtJoint
    n = tree.n_frames
    rest = np.tile(np.eye(4), (n, 1, 1))
    joint_of = dict(zip(tree.frames, model.dof_jntid, strict=True))
    for body in range(1, model.nbody):
        first = tree.bodies[body] - max(int(model.body_jntnum[body]) - 1, 0)
        rest[first] = transform(model.body_pos[body], model.body_quat[body])
    turning, twice, sliding = np.zeros((3, n, 4, 4))
    before = []
    for frame, j in joint_of.items():
        kind, anchor, axis = model.jnt_type[j], model.jnt_pos[j], model.jnt_axis[j]
        if kind == joint.mjJNT_HINGE:
            spin = generator(axis, -np.cross(axis, anchor))
            turning[frame] = rest[frame] @ spin
            twice[frame] = rest[frame] @ spin @ spin
        elif kind == joint.mjJNT_SLIDE:
            sliding[frame] = rest[frame] @ generator(np.zeros(3), axis)
        else:
            free = kind == joint.mjJNT_FREE
            before.append((j, np.eye(4) if free else rest[frame].copy()))
            rest[frame] = 0
    before = [matrix for _, matrix in sorted(before, key=lambda pair: pair[0])]

    axes, anchors, directions, world = np.zeros((4, tree.n_v, 3))
    for i, j in enumerate(model.dof_jntid):
        kind, k = model.jnt_type[j], i - model.jnt_dofadr[j]
        if kind == joint.mjJNT_FREE:
            (world if k < 3 else axes)[i, k % 3] = 1
            continue
        anchors[i] = model.jnt_pos[j]
        if kind == joint.mjJNT_BALL:
            axes[i, k] = 1
        else:
            (axes if kind == joint.mjJNT_HINGE else directions)[i] = model.jnt_axis[j]
    reference = np.zeros(tree.n_q)
    for _, place in (*tree.q_of_hinges, *tree.q_of_slides):
        reference[place] = model.qpos0[place]
    flat = lambda a: parameter(a.reshape(n, 16))
    return Kinematics(
        topology=tree,
        at_rest=flat(rest),
        turning=flat(turning),
        turning_twice=flat(twice),
        sliding=flat(sliding),
        before_quaternions=parameter(np.reshape(before, (-1, 4, 4))),
        reference=parameter(reference),
        axes=parameter(axes),
        anchors=parameter(anchors),
        directions=parameter(directions),
        world_directions=parameter(world),
    )
