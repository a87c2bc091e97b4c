"""How the joints of a model are connected."""

import dataclasses
import functools
from typing import Any

import numpy as np

from ._compile import load_mujoco


@dataclasses.dataclass(frozen=True)
class Topology:
    """A tree of frames: one for each joint, which moves it in the frame before it, and
    one for each body without joints. Frame 0 is the world.

    Only integers, that are known while a program is traced; and what follows of them.
    """

    parents: tuple[int, ...]  # of frames; that of the world is itself
    roots: tuple[int, ...]  # of frames: that of the first body of their tree
    bodies: tuple[int, ...]  # the last frame of each body, which is the body's own
    frames: tuple[int, ...]  # of velocities: the frame which each of them moves
    carried: tuple[int, ...]  # of velocities: that before which their axes do not turn
    q_of_hinges: tuple[tuple[int, int], ...]  # frame, and place in the configuration
    q_of_slides: tuple[tuple[int, int], ...]
    quaternions: tuple[tuple[int, int, int], ...]  # and that of the position, or -1
    n_q: int

    @property
    def n_frames(self) -> int:
        return len(self.parents)

    @property
    def n_v(self) -> int:
        return len(self.frames)

    @functools.cached_property
    def moves(self) -> np.ndarray:
        """Which velocities move which frames, of shape `(n_frames, n_v)`."""
        moves = np.zeros((self.n_frames, self.n_v))
        for frame, parent in enumerate(self.parents):
            own = np.asarray(self.frames, int) == frame
            moves[frame] = np.where(own, frame > 0, moves[parent])
        return moves

    @functools.cached_property
    def turns(self) -> np.ndarray:
        """Which velocities turn the axes of which, of shape `(n_v, n_v)`."""
        return self.moves[np.asarray(self.carried, int)]

    @functools.cached_property
    def above(self) -> np.ndarray:
        """Of velocities: whether the second one moves the frame of the first one and is
        of another joint; of shape `(n_v, n_v)`."""
        return self.moves[np.asarray(self.frames, int)] - self.beside

    @functools.cached_property
    def beside(self) -> np.ndarray:
        """Which velocities are of the same joint."""
        frames = np.asarray(self.frames, int)
        return (frames[:, None] == frames).astype(float)

    @functools.cached_property
    def jumps(self) -> list[np.ndarray]:
        """Selections of frames 1, 2, 4, ... generations further up, until all are the
        world, each of shape `(n_frames, n_frames)`."""
        parents, jumps = np.asarray(self.parents), []
        while parents.any():
            jumps.append(selection(parents, self.n_frames))
            parents = parents[parents]
        return jumps


def selection(picked, n: int) -> np.ndarray:
    """The rows of an identity matrix: a product with it is a gather, whose transpose is
    not a scatter. On CPUs these are slow, to compile and to run."""
    return np.eye(n)[np.asarray(picked, int)]


def topology_of(model: Any) -> Topology:
    joint = load_mujoco().mjtJoint
    parents, trees, bodies = [0], [0], [0]
    frame_of_joint = {}
    for body in range(1, model.nbody):
        above = bodies[model.body_parentid[body]]
        joints = range(model.body_jntadr[body], _end(model, body))
        for j in joints or [None]:
            parents.append(above)
            trees.append(model.body_rootid[body])
            above = len(parents) - 1
            if j is not None:
                frame_of_joint[j] = above
        bodies.append(above)

    frames, carried = [], []
    hinges, slides, quaternions = [], [], []
    for j in range(model.njnt):
        kind, frame = model.jnt_type[j], frame_of_joint[j]
        place = int(model.jnt_qposadr[j])
        if kind == joint.mjJNT_FREE:
            quaternions.append((frame, place + 3, place))
            frames += [frame] * 6
            carried += [0] * 3 + [frame] * 3
        elif kind == joint.mjJNT_BALL:
            quaternions.append((frame, place, -1))
            frames += [frame] * 3
            carried += [frame] * 3
        else:
            hinge = kind == joint.mjJNT_HINGE
            (hinges if hinge else slides).append((frame, place))
            frames.append(frame)
            carried.append(frame)
    return Topology(
        parents=tuple(parents),
        roots=tuple(bodies[body] for body in trees),
        bodies=tuple(bodies),
        frames=tuple(frames),
        carried=tuple(carried),
        q_of_hinges=tuple(hinges),
        q_of_slides=tuple(slides),
        quaternions=tuple(quaternions),
        n_q=int(model.nq),
    )


def _end(model, body) -> int:
    return model.body_jntadr[body] + model.body_jntnum[body]
