"""Points, with a radius, that stand for geoms."""

from typing import Any

import numpy as np

from ._compile import load_mujoco
from ._names import described
from ._transforms import transform


# How many points stand for the rim of a cylinder.
_RIM = 8
# Points that are nearer to each other than this, in m, are one.
_SAME = 1e-9


def points_of(
    model: Any, data: Any, geom: int, plane: np.ndarray | None
) -> list[tuple[np.ndarray, float]]:
    """Their places in the frame of the body, and their radii.

    **Arguments:**

    - `model`, `data`: compiled model, and its kinematics at `qpos0`.
    - `plane`: the normal of the plane of motion, or `None`.

    **Raises:**

    - `ValueError` that names the geom, if no points stand for it.
    """
    kinds, size = load_mujoco().mjtGeom, model.geom_size[geom]
    kind = model.geom_type[geom]
    world = data.geom_xmat[geom].reshape(3, 3)
    if kind == kinds.mjGEOM_SPHERE:
        points, radius = [np.zeros(3)], size[0]
    elif kind == kinds.mjGEOM_CAPSULE:
        ends = size[1] * np.array([[0, 0, -1.0], [0, 0, 1]])
        points, radius = list(ends), size[0]
    elif kind == kinds.mjGEOM_BOX:
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3, indexing="ij"), -1)
        points, radius = list(size * signs.reshape(-1, 3)), 0.0
    elif kind == kinds.mjGEOM_CYLINDER:
        points, radius = _cylinder(size, world, plane)
    else:
        raise ValueError(
            f"The model has a contact of {described(model, 'geom', geom)}, of a shape "
            "for which no contact points are known. Supported are spheres, capsules, "
            "boxes and cylinders; which geoms touch is chosen by `contacts`: "
            "none with `[]`."
        )
    if plane is not None:
        points = _one_of_each(points, world, plane)
    own = transform(model.geom_pos[geom], model.geom_quat[geom])
    return [(own[:3, :3] @ point + own[:3, 3], float(radius)) for point in points]


def _cylinder(size, world, plane):
    """The rims of both ends; in a plane, a disc or the four corners of its section."""
    radius, half = size[:2]
    if plane is None:
        angles = 2 * np.pi * np.arange(_RIM) / _RIM
        rim = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    else:
        normal = world.T @ plane
        if abs(abs(normal[2]) - 1) < _SAME:
            return [np.zeros(3)], radius
        across = np.cross([0, 0, 1.0], normal)
        across = across / np.linalg.norm(across)
        rim = np.array([across, -across])
    ends = half * np.array([[0, 0, -1.0], [0, 0, 1]])
    return [radius * point + end for end in ends for point in rim], 0.0


def _one_of_each(points, world, plane):
    """Of points that cover each other, seen along the normal of the plane, one."""
    project = np.eye(3) - np.outer(plane, plane)
    kept, seen = [], []
    for point in points:
        place = project @ world @ point
        if all(np.linalg.norm(place - other) > _SAME for other in seen):
            kept.append(point)
            seen.append(place)
    return kept
