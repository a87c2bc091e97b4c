"""The nearest models in MuJoCo to the hopper and the plate on springs.

A spring that pushes and a damper, without friction, are a contact whose force is a
given function of its depth and the rate of that. MuJoCo's contacts are something else,
but in the limit of a small impedance their force is `(k r + b v) / w`, with `(-k, -b)`
in `solref` and `w` its estimate of the inverse inertia at the contact. What remains of
the difference: MuJoCo's springs push along the normal of the plate, ours upwards.
"""

import mujoco
import mujoco.rollout
import numpy as np


_IMPEDANCE = 1e-4  # the least that MuJoCo allows


def _contact(name: str, stiffness: float, damping: float, weight: float) -> str:
    return (
        f'<pair geom1="body" geom2="{name}" condim="1" '
        f'solref="{-stiffness * weight} {-damping * weight}" '
        f'solimp="{_IMPEDANCE} {_IMPEDANCE} 0.001 0.5 1"/>'
    )


def _xml(dt: float, joints: str, geom: str, springs: str, contacts: str) -> str:
    return f"""<mujoco>
<compiler inertiafromgeom="false"/>
<option timestep="{dt}" gravity="0 0 -9.81"/>
<worldbody>
{springs}
<body><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
{joints}
{geom}
</body>
</worldbody>
<contact>{contacts}</contact>
</mujoco>"""


def _compile(xml) -> mujoco.MjModel:
    # The weight of the contacts is known once there is a model.
    weight = mujoco.MjModel.from_xml_string(xml(1.0)).body_invweight0[1, 0]
    return mujoco.MjModel.from_xml_string(xml(weight))


def plate(n: int, dt: float) -> mujoco.MjModel:
    """Problem P6; its coordinates are those of `models.plate_on_springs`."""
    places = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    radius = 0.02
    names = [f"spring{i}" for i in range(n)]
    passive = 'contype="0" conaffinity="0"'
    springs = "\n".join(
        f'<geom name="{name}" size="{radius}" pos="{x} 0 {1 - radius}" {passive}/>'
        for name, x in zip(names, places, strict=True)
    )
    joints = (
        '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>'
        '<joint type="hinge" axis="0 -1 0"/>'
    )
    # Its lower side goes through the centre of mass.
    geom = f'<geom name="body" type="box" size="20 1 .5" pos="0 0 .5" {passive}/>'

    def xml(weight):
        contacts = [_contact(name, 1000 / n, 30 / n, weight) for name in names]
        return _xml(dt, joints, geom, springs, "".join(contacts))

    return _compile(xml)


def hopper(stiffness: float, dt: float) -> mujoco.MjModel:
    """Problem P2; its coordinate is the height."""
    passive = 'contype="0" conaffinity="0"'
    ground = f'<geom name="ground" type="plane" size="1 1 1" {passive}/>'
    geom = f'<geom name="body" size=".1" pos="0 0 -.9" {passive}/>'
    joint = '<joint type="slide" axis="0 0 1"/>'
    return _compile(
        lambda w: _xml(dt, joint, geom, ground, _contact("ground", stiffness, 0, w))
    )


class Rollout:
    """Simulates from given configurations, at rest, by MuJoCo's own loop in C."""

    def __init__(self, model: mujoco.MjModel, t1: float, threads: int = 1):
        self._model = model
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._steps = round(t1 / model.opt.timestep)

    def __call__(self, starts: np.ndarray) -> np.ndarray:
        """From `(lanes, d)` to positions and velocities `(lanes, steps, 2 d)`."""
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        initial = np.zeros((len(starts), mujoco.mj_stateSize(self._model, kind)))
        initial[:, 1 : 1 + starts.shape[1]] = starts
        states, _ = mujoco.rollout.rollout(
            self._model, self._data, initial, nstep=self._steps
        )
        return states[:, :, 1 : 1 + 2 * starts.shape[1]]
