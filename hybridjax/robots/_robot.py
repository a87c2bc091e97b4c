from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from .._systems.parameter import parameter
from ._kinematics import Kinematics
from ._names import name_of
from ._transforms import picked


class Robot(eqx.Module):
    """A mechanical system from a file: made by `hj.robots.from_mjcf`.

    - `system`: the `hj.mechanics.MechanicalSystem`, to be passed to `hj.simulate`; or
        the `hj.mechanics.Multibody`, if there are no contacts.
    - `model`: the `mujoco.MjModel`, whose `qpos` and `qvel` are `q` and `v`: to look
        things up, and to render.
    - `contacts`: what the contacts are, in their order: those of geoms, then limits,
        then dry friction of joints.
    """

    system: Any
    kinematics: Kinematics
    model: Any = eqx.field(static=True)
    contacts: tuple[str, ...] = eqx.field(static=True)

    @property
    def x0(self) -> tuple[Float[Array, " q"], Float[Array, " v"]]:
        """The state `(q, v)` of the file, at rest. Nothing says that it touches the
        ground, or is above it."""
        return parameter(self.model.qpos0), parameter(np.zeros(self.model.nv))

    def keyframe(self, name: str) -> tuple[Float[Array, " q"], Float[Array, " v"]]:
        """The state `(q, v)` of a keyframe of the file.

        **Raises:**

        - `ValueError` if there is none of this name.
        """
        for i in range(self.model.nkey):
            if name_of(self.model, "keyframe", i) == name:
                return parameter(self.model.key_qpos[i]), parameter(
                    self.model.key_qvel[i]
                )
        raise ValueError(f"The model has no keyframe {name!r}.")

    def frames(
        self, q: Float[Array, " q"]
    ) -> tuple[Float[Array, "bodies 3"], Float[Array, "bodies 3 3"]]:
        """Positions, in m, and rotation matrices of all bodies, in the world.

        Differentiable. Body 0 is the world; numbers of others are
        `robot.model.body("name").id`.
        """
        transforms = self.kinematics.transforms(q)
        bodies = picked(self.kinematics.topology.bodies, transforms)
        return bodies[:, :3, 3], bodies[:, :3, :3]
