import os
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import ArrayLike

from ..mechanics import MechanicalSystem
from ._actuators import actuators_of
from ._compile import compiled, load_mujoco
from ._contacts import contacts_of
from ._dry_friction import dry_friction_of
from ._equalities import equalities_of
from ._forces import Forces
from ._inertia import inertia_of
from ._kinematics import kinematics_of
from ._passive import passive_of
from ._planar import plane_of_motion
from ._rates import Rates
from ._robot import Robot
from ._unsupported import check_supported


def from_mjcf(
    model: str | os.PathLike | Any,
    *,
    control: Callable | None = None,
    ground: Callable | None = None,
    contacts: str | Sequence[str | tuple[str, str]] = "ground",
    friction: ArrayLike | None = None,
    **kwargs: Any,
) -> Robot:
    r"""A robot from a file, as a mechanical system with rigid contacts.

    MuJoCo compiles the file, an MJCF or URDF; what follows is done in JAX, and
    differentiable. The state is MuJoCo's: `q` is `qpos`, and `v` is `qvel`, with unit
    quaternions, linear velocities of free joints in the frame of the world, and angular
    ones in that of the body.

    - *Dynamics*: joints of all four kinds, armature, damping, springs of hinges, slides
        and fixed tendons, weights.
    - *Actuators*: motors, and servos of position and velocity, of joints and fixed
        tendons, with gears; controls and forces are clamped to their ranges, which is a
        kink in the forces.
    - *Contacts* of geoms with planes, and of spheres with each other. Capsules are two
        spheres, boxes their corners, cylinders eight points on each rim. Friction is
        that of the geoms; restitution is 0 unless it is said. Contacts are rigid:
        MuJoCo's `solref` and `solimp` mean nothing here.
    - *Limits* of hinges, slides and fixed tendons are contacts without friction.
    - *Dry friction* of joints (`frictionloss`) holds them, or opposes their motion:
        contacts without a gap, the last ones. See `hj.mechanics.MechanicalSystem`.
    - *Equality constraints* hold exactly: connect, weld, joint, tendon.

    Where the whole model moves in a plane (its hinges are parallel, and its slides
    normal to them) contacts have one tangential direction, and elsewhere two. What
    moves beside such a plane touches no wall that is parallel to it.

    **Arguments:**

    - `model`: path of a file, or its text; or a `mujoco.MjModel`, from which one has
        taken what is not supported.
    - `control`: callable `(t, q, v, args) -> u`, of shape `(nu,)`: the controls of the
        actuators. `None`: they are the `args` of the simulation, and zero if these are
        `None`.
    - `ground`: callable `(x, y) -> z` (m), differentiable: the ground is the graph of
        this function, for all geoms that touch a plane of the file. `None`: it is these
        planes.
    - `contacts`: `"ground"`: all pairs, by contype and conaffinity, in which one geom
        is at rest, and the pairs that the file lists. `"all"`: also those of moving
        geoms. Or a sequence: the name of a geom is all its pairs with what is at rest,
        a pair of names is this pair.
    - `friction`: of all contacts of geoms, one number or one for each, in the order of
        `robot.contacts`. `None`: that of the file.
    - `kwargs`: any other argument of `hj.mechanics.MechanicalSystem`: `restitution`,
        `rest_speed`, `most_closed`, ...

    **Returns:**

    A `hj.robots.Robot`. If it has no contacts, its system is a
    `hj.mechanics.Multibody`.

    **Raises:**

    - `ValueError` that names the element, for what is not supported: fluids, spatial
        tendons with forces, states and muscles of actuators, friction of tendons,
        torsional and rolling friction, shapes without contact points (meshes, height
        fields, ellipsoids), other pairs of shapes, ...
    - `ImportError` if MuJoCo is not installed: `pip install 'hybridjax[robots]'`.
    - What MuJoCo raises for a file that it cannot compile.
    """
    model = compiled(model)
    check_supported(model)
    data = load_mujoco().MjData(model)
    load_mujoco().mj_kinematics(model, data)
    kinematics = kinematics_of(model)
    inertia = inertia_of(model, kinematics)
    plane = plane_of_motion(model, data)
    touching, names, mu = contacts_of(
        model, data, kinematics, plane, ground, contacts, friction
    )
    dry_friction, of_joints = dry_friction_of(model)
    tree = kinematics.topology
    system = MechanicalSystem(
        inertia.mass_matrix,
        Forces(actuators_of(model), passive_of(model), control),
        touching.gap,
        len(names),
        normals=touching.normals,
        tangents=touching.tangents if (mu > 0).any() else None,
        friction=mu,
        dry_friction=dry_friction,
        constraints=equalities_of(model, kinematics, plane),
        velocity_to_qdot=Rates(tree) if tree.quaternions else None,
        bias=inertia.bias,
        **kwargs,
    )
    names = (*names, *of_joints)
    if not names:
        system = system.body
    return Robot(system, kinematics, model, names)
