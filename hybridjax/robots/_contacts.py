"""All contacts of a robot: of geoms, and its limits."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._systems.parameter import parameter
from ._attached import attached
from ._compile import load_mujoco
from ._grounds import Heights, Planes
from ._kinematics import Kinematics
from ._limits import Limits, limits_of
from ._names import described, name_of
from ._pairs import Pair, pairs_of
from ._points import points_of
from ._spheres import Spheres
from ._tangent_frames import TangentFrames


class Contacts(eqx.Module):
    """Gaps, normals and tangents: those of geoms first, then those of limits."""

    kinematics: Kinematics
    parts: tuple
    limits: Limits
    frame: TangentFrames

    def gap(self, q, args):
        del args
        if not self.parts:
            return self.limits.gap(q)
        transforms = self.kinematics.transforms(q)
        gaps = [part.gap(transforms) for part in self.parts]
        return jnp.concatenate([*gaps, self.limits.gap(q)])

    def normals(self, q, args):
        del args
        if not self.parts:
            return self.limits.of_v
        motion = self._motion(q)
        return jnp.concatenate(
            [*[part.normals(*motion) for part in self.parts], self.limits.of_v]
        )

    def tangents(self, q, args):
        del args
        motion = self._motion(q)
        rows = [
            jnp.stack(part.tangents(*motion, self.frame), axis=1) for part in self.parts
        ]
        n_directions = 2 if self.frame.plane is None else 1
        n_limits, n_v = self.limits.of_v.shape
        none = jnp.zeros((n_limits, n_directions, n_v), q.dtype)
        rows = jnp.concatenate([*rows, none])
        return rows if self.frame.plane is None else rows[:, 0]

    def _motion(self, q):
        transforms = self.kinematics.transforms(q)
        from_roots = self.kinematics.from_roots(transforms)
        return transforms, from_roots, self.kinematics.twists(from_roots)


def contacts_of(
    model: Any,
    data: Any,
    kinematics: Kinematics,
    plane: np.ndarray | None,
    ground: Callable | None,
    contacts: str | Sequence[str | tuple[str, str]],
    friction: ArrayLike | None,
) -> tuple[Contacts, list[str], Any]:
    """Them, their names, and their friction."""
    pairs = pairs_of(model, contacts, friction is None)
    kinds = load_mujoco().mjtGeom
    is_ = lambda geom, kind: model.geom_type[geom] == kind
    sphere = kinds.mjGEOM_SPHERE
    flat = [p for p in pairs if is_(p.first, kinds.mjGEOM_PLANE)]
    round_ = [p for p in pairs if is_(p.first, sphere) and is_(p.second, sphere)]
    for p in pairs:
        if p not in flat and p not in round_:
            raise ValueError(
                f"The model has a contact of {described(model, 'geom', p.first)} and "
                f"{described(model, 'geom', p.second)}. Supported are contacts with "
                "planes, and of spheres with each other; which geoms touch is chosen "
                "by `contacts`: none with `[]`."
            )
    if plane is not None:
        flat = [p for p in flat if not _is_out_of_reach(model, data, p, plane)]
        if not _in_plane(data, flat, ground, plane):
            plane = None
    parts, names, frictions = [], [], []
    static = None if plane is None else tuple(float(a) for a in plane)
    if flat:
        spots = [
            (p, place, radius)
            for p in (flat if ground is None else _one_for_each(flat))
            for place, radius in points_of(model, data, p.second, plane)
        ]
        points = attached(
            kinematics,
            [_frame(model, kinematics, p.second) for p, _, _ in spots],
            [place for _, place, _ in spots],
            [radius for *_, radius in spots],
        )
        margins = np.array([p.margin for p, _, _ in spots])
        if ground is None:
            normals, through = _planes(data, [p for p, _, _ in spots])
            offsets = np.sum(normals * through, axis=1) + margins
            parts.append(Planes(points, parameter(normals), parameter(offsets)))
        else:
            parts.append(Heights(points, ground, parameter(margins), static))
        names += _names(model, spots)
        frictions += [p.friction for p, _, _ in spots]
    if round_:
        parts.append(
            Spheres(
                _centres(model, kinematics, [p.first for p in round_]),
                _centres(model, kinematics, [p.second for p in round_]),
                parameter([p.margin for p in round_]),
            )
        )
        names += [_name(model, p) for p in round_]
        frictions += [p.friction for p in round_]
    limits, of_limits = limits_of(model)
    of_geoms = np.array(frictions) if friction is None else parameter(friction)
    of_geoms = jnp.broadcast_to(of_geoms, (len(names),))
    frictions = jnp.concatenate([parameter(of_geoms), jnp.zeros(len(of_limits))])
    made = Contacts(kinematics, tuple(parts), limits, TangentFrames(static))
    return made, [*names, *of_limits], frictions


def _frame(model, kinematics, geom) -> int:
    return kinematics.topology.bodies[model.geom_bodyid[geom]]


def _centres(model, kinematics, geoms):
    frames = [_frame(model, kinematics, geom) for geom in geoms]
    return attached(
        kinematics, frames, model.geom_pos[geoms], model.geom_size[geoms, 0]
    )


def _one_for_each(pairs: list[Pair]) -> list[Pair]:
    """One pair for each geom: above a height function there is no other plane."""
    return list({pair.second: pair for pair in reversed(pairs)}.values())[::-1]


def _name(model, pair) -> str:
    return (
        f"{name_of(model, 'geom', pair.second)} on {name_of(model, 'geom', pair.first)}"
    )


def _names(model, spots) -> list[str]:
    names = [_name(model, p) for p, _, _ in spots]
    many = [names.count(name) > 1 for name in names]
    return [
        f"{name}, point {names[:i].count(name)}" if many[i] else name
        for i, name in enumerate(names)
    ]


def _planes(data, pairs) -> tuple[np.ndarray, np.ndarray]:
    """Their normals, and a point on each."""
    planes = [pair.first for pair in pairs]
    return data.geom_xmat[planes].reshape(-1, 3, 3)[:, :, 2], data.geom_xpos[planes]


def _is_out_of_reach(model, data, pair, plane) -> bool:
    """Is it a plane that no motion comes nearer to, as the wall behind it?"""
    (normal,), (through,) = _planes(data, [pair])
    if np.linalg.norm(np.cross(normal, plane)) > 1e-9:
        return False
    body = model.geom_bodyid[pair.second]
    turn = data.xmat[body].reshape(3, 3)
    gaps = [
        normal @ (data.xpos[body] + turn @ place - through) - radius
        for place, radius in points_of(model, data, pair.second, None)
    ]
    return min(gaps) > pair.margin


def _in_plane(data, pairs, ground, plane) -> bool:
    """Do contacts stay in the plane of motion? A puck's do not, on its table."""
    normals, _ = _planes(data, pairs)
    normals = [*normals, np.array([0, 0, 1.0])] if ground else normals
    return all(abs(normal @ plane) < 1e-9 for normal in normals)
