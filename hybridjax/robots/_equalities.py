"""Equality constraints: connections of points, welds, and coupled joints."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ..mechanics._dynamics.dot import dot
from ._attached import Attached, attached
from ._compile import load_mujoco
from ._coordinates import joint_rows, stacked, tendon_rows
from ._kinematics import Kinematics
from ._names import described
from ._transforms import picked, transform


class Connections(eqx.Module):
    """Points of two bodies that coincide."""

    first: Attached
    second: Attached
    directions: Float[Array, "k 3"]

    def residual(self, transforms):
        apart = self.first.at(transforms) - self.second.at(transforms)
        return dot(apart, self.directions.T).reshape(-1)


class Welds(eqx.Module):
    """Orientations of two bodies that do not change towards each other."""

    first: tuple[int, ...] = eqx.field(static=True)
    second: tuple[int, ...] = eqx.field(static=True)
    turned: Float[Array, "welds 3 3"]  # the second one, as the first one sees it
    axes: Float[Array, "k 3"]

    def residual(self, transforms):
        pick = lambda frames: picked(frames, transforms)[:, :3, :3]
        # The sines of the angles by which the second one is turned from where it is
        # to be, about its axes.
        one, two = pick(self.first), pick(self.second)
        aim = jnp.sum(one[:, :, :, None] * self.turned[:, None, :, :], axis=2)
        off = jnp.sum(two[:, :, :, None] * aim[:, :, None, :], axis=1)
        skew = off - jnp.swapaxes(off, 1, 2)
        sines = jnp.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], axis=1) / 2
        world = jnp.sum(two * sines[:, None, :], axis=2)
        return dot(world, self.axes.T).reshape(-1)


class Couplings(eqx.Module):
    """Lengths that are polynomials of others."""

    first: Float[Array, "couplings q"]
    second: Float[Array, "couplings q"]
    references: Float[Array, "2 couplings"]
    coefficients: Float[Array, "5 couplings"]

    def residual(self, q):
        x = dot(self.second, q) - self.references[1]
        value = jnp.zeros_like(x)
        for coefficient in self.coefficients[::-1]:
            value = value * x + coefficient
        return dot(self.first, q) - self.references[0] - value


class Equalities(eqx.Module):
    """All of them."""

    kinematics: Kinematics
    parts: tuple[Connections | Welds, ...]
    couplings: Couplings

    def __call__(self, t, q, args):
        del t, args
        residuals = [self.couplings.residual(q)]
        if self.parts:
            transforms = self.kinematics.transforms(q)
            residuals = [*(p.residual(transforms) for p in self.parts), *residuals]
        return jnp.concatenate(residuals)


def equalities_of(
    model: Any, kinematics: Kinematics, plane: np.ndarray | None
) -> Equalities | None:
    """`None` if there are none. Those that are inactive at the start are left out."""
    mujoco = load_mujoco()
    kinds, off = mujoco.mjtEq, mujoco.mjtDisableBit.mjDSBL_EQUALITY
    points, welds, couplings = [], [], []
    for i in range(model.neq):
        if not model.eq_active0[i] or model.opt.disableflags & off:
            continue
        kind = model.eq_type[i]
        if kind == kinds.mjEQ_CONNECT:
            points.append(_ends(model, kinematics, i)[0])
        elif kind == kinds.mjEQ_WELD:
            both, weld = _ends(model, kinematics, i)
            points.append(both)
            welds.append(weld)
        elif kind == kinds.mjEQ_JOINT or kind == kinds.mjEQ_TENDON:
            couplings.append(_coupling(model, i, kind == kinds.mjEQ_JOINT))
        else:
            raise ValueError(
                f"The model has {described(model, 'equality', i)} of a kind that is "
                "not supported. Supported are connect, weld, joint and tendon."
            )
    if not points and not couplings:
        return None
    directions, axes = np.eye(3), np.eye(3)
    if plane is not None:
        # What cannot move needs no constraint, and a redundant one has no solution.
        axes, directions = plane[None], np.linalg.svd(plane[None])[2][1:]
    parts = []
    if points:
        first, second = (
            attached(
                kinematics,
                [pair[side][0] for pair in points],
                [pair[side][1] for pair in points],
                np.zeros(len(points)),
            )
            for side in (0, 1)
        )
        parts.append(Connections(first, second, parameter(directions)))
    if welds:
        first, second, turned = zip(*welds, strict=True)
        parts.append(Welds(first, second, parameter(np.array(turned)), parameter(axes)))
    one, two, references, coefficients = (
        zip(*couplings, strict=True) if couplings else [()] * 4
    )
    coupled = Couplings(
        parameter(stacked(one, model.nq)),
        parameter(stacked(two, model.nq)),
        parameter(np.reshape(references, (-1, 2)).T),
        parameter(np.reshape(coefficients, (-1, 5)).T),
    )
    return Equalities(kinematics, tuple(parts), coupled)


def _ends(model, kinematics, i):
    """Of a connection or weld: frame and place of two points, and of a weld the frames
    and the orientation of the second in the first."""
    mujoco, data = load_mujoco(), model.eq_data[i]
    bodies = kinematics.topology.bodies
    one, two = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
    if model.eq_objtype[i] == mujoco.mjtObj.mjOBJ_SITE:
        frames = [
            transform(model.site_pos[site], model.site_quat[site])
            for site in (one, two)
        ]
        first, second = (bodies[model.site_bodyid[site]] for site in (one, two))
        places = [frame[:3, 3] for frame in frames]
        turned = frames[0][:3, :3] @ frames[1][:3, :3].T
    else:
        first, second = bodies[one], bodies[two]
        if model.eq_type[i] == mujoco.mjtEq.mjEQ_WELD:
            places = [data[3:6], data[0:3]]
            turned = transform(np.zeros(3), data[6:10])[:3, :3]
        else:
            places, turned = [data[0:3], data[3:6]], np.eye(3)
    both = (first, places[0]), (second, places[1])
    return both, (first, second, turned)


def _coupling(model, i, of_joints: bool):
    rows, references = [], []
    for k in (int(model.eq_obj1id[i]), int(model.eq_obj2id[i])):
        if k < 0:
            rows.append(np.zeros(model.nq))
            references.append(0.0)
        elif not of_joints:
            rows.append(tendon_rows(model, k)[0])
            references.append(model.tendon_length0[k])
        else:
            rows.append(joint_rows(model, k)[0])
            references.append(model.qpos0[model.jnt_qposadr[k]])
    return rows[0], rows[1], references, model.eq_data[i, :5]
