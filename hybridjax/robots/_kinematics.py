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
from ..mechanics._dynamics.cross import cross
from ..mechanics._dynamics.dot import dot
from ..mechanics._dynamics.joints import rotation_matrix
from ._compile import load_mujoco
from ._topology import selection, Topology, topology_of
from ._transforms import compose, generator, picked, transform


class Twists(eqx.Module):
    """How each velocity moves what it moves, as the world sees it: a point at $x$, from
    the root of its tree, with $\\omega \\times x + v$."""

    both: Float[Array, "v 6"]  # omega and v

    @property
    def matrices(self) -> Float[Array, "v 16"]:
        """Flat, as the transforms are."""
        return dot(self.both, _GENERATORS)


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
    own: Float[Array, "v 4 3"]
    world_directions: Float[Array, "v 3"]

    def transforms(self, q: Float[Array, " q"]) -> Float[Array, "frames 4 4"]:
        """Of all frames, in the world."""
        tree = self.topology
        moved = q - self.reference
        places = [self._pick(places) for places in (tree.q_of_hinges, tree.q_of_slides)]
        both = dot(np.concatenate(places).astype(q.dtype), moved)
        angle, length = both[: tree.n_frames, None], both[tree.n_frames :, None]
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
        roots = picked(self.topology.roots, transforms)
        return transforms - _POSITION.astype(transforms.dtype) * roots

    def twists(self, transforms) -> Twists:
        """Of all velocities, of transforms from the roots."""
        frames = picked(self.topology.frames, transforms)
        axes, points, moving = jnp.moveaxis(compose(frames, self.own)[:, :3], 2, 0)
        moving = moving + self.world_directions + cross(points, axes)
        return Twists(jnp.concatenate([axes, moving], axis=1))

    def _pick(self, places):
        pick = np.zeros((self.topology.n_frames, self.topology.n_q))
        for frame, place in places:
            pick[frame, place] = 1
        return pick

    def _ball_anchors(self):
        first = [self.topology.frames.index(f) for f, *_ in self.topology.quaternions]
        return [self.own[i, :3, 1] for i in first]


_POSITION = np.zeros((1, 4, 4))
_POSITION[0, :3, 3] = 1
# With entries that are exact in any precision, which is that of what they meet.
_GENERATORS = np.array(
    [generator(*np.split(row, 2)).reshape(16) for row in np.eye(6)], np.float32
)


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

    own, world = np.zeros((tree.n_v, 4, 3)), np.zeros((tree.n_v, 3))
    own[:, 3, 1] = 1
    for i, j in enumerate(model.dof_jntid):
        kind, k = model.jnt_type[j], i - model.jnt_dofadr[j]
        if kind == joint.mjJNT_FREE:
            (world[i] if k < 3 else own[i, :3, 0])[k % 3] = 1
            continue
        own[i, :3, 1] = model.jnt_pos[j]
        if kind == joint.mjJNT_BALL:
            own[i, k, 0] = 1
        else:
            own[i, :3, 0 if kind == joint.mjJNT_HINGE else 2] = model.jnt_axis[j]
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
        own=parameter(own),
        world_directions=parameter(world),
    )
