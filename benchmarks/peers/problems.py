"""The problems that all peers solve, without any solver. Needs NumPy only.

In all of them rtol = atol = 1e-8, in float64, and the solve begins at t = 0.
"""

from typing import Literal, NamedTuple

import numpy as np


TOLERANCE = 1e-8
GRAVITY = 9.81
RESTITUTION = 0.8
HOPPER_HEIGHT = 2.0
# Mass 1, leg 1.
HOPPER_STIFFNESSES = (100.0, 1000.0)
# Body with two legs: mass 1.
INERTIA = 0.1
HALF_WIDTH, LEG_LENGTH = 0.3, 0.5
STIFFNESS, DAMPING, TANGENTIAL_DAMPING = 300.0, 2.0, 1.0


class Problem(NamedTuple):
    """What is solved, and what it is differentiated by.

    **Fields:**

    - `name`: of the column.
    - `kind`:
        - `"ball"`: q' = v, v' = -g, and v becomes -e v where q = 0 and v < 0. `theta`
            is (q0, v0, g, e), the state (q, v), the objective the final q.
        - `"hopper"`: z'' = -g where z > 1 and -g + k (1 - z) below. `theta` is
            (z0, k), the state (z, v), from rest; the objective is the final z.
        - `"legs"`: a body in the plane on two massless legs, state (x, z, angle, vx,
            vz, omega). Foot i is at r_i = R(angle) (s_i, -LEG_LENGTH) from the centre,
            s = (+HALF_WIDTH, -HALF_WIDTH), at the height phi_i = z + r_iz, and in
            contact where that is negative. Then it adds the force
            Fz = -STIFFNESS phi_i - DAMPING (vz + omega r_ix),
            Fx = -TANGENTIAL_DAMPING (vx - omega r_iz) and the torque
            r_ix Fz - r_iz Fx. The force jumps, as the dampers do. `theta` is the
            initial state, the objective the sum of the final state.
        - `"balls"`: n balls in one state, heights and then speeds. `theta` is the
            initial heights; they start at rest; the objective is the sum of the final
            heights.
    - `theta`: shape `(p,)`, or `(lanes, p)` for a batch of problems.
    - `t1`: the final time.
    """

    name: str
    kind: Literal["ball", "hopper", "legs", "balls"]
    theta: np.ndarray
    t1: float

    @property
    def batched(self) -> bool:
        return self.theta.ndim == 2

    @property
    def lanes(self) -> int:
        return self.theta.shape[0] if self.batched else 1


def _balls_in_a_batch(lanes: int) -> Problem:
    heights = np.linspace(0.5, 1.5, lanes + 2)[1:-1]
    others = np.broadcast_to([0.0, GRAVITY, RESTITUTION], (lanes, 3))
    theta = np.concatenate([heights[:, None], others], axis=1)
    return Problem(
        f"P5, {lanes} lanes".replace("1 lanes", "1 lane"), "ball", theta, 2.0
    )


PROBLEMS = [
    Problem("P1", "ball", np.array([1.0, 0.0, GRAVITY, RESTITUTION]), 2.0),
    *(
        Problem(f"P2, k = {k:.0f}", "hopper", np.array([HOPPER_HEIGHT, k]), 2.0)
        for k in HOPPER_STIFFNESSES
    ),
    Problem("P3", "legs", np.array([0.0, 0.9, 0.15, 0.5, 0.0, -0.2]), 1.0),
    Problem("P4", "balls", np.linspace(0.40, 0.58, 10), 2.0),
    *(_balls_in_a_batch(lanes) for lanes in (1, 100, 1000, 10_000)),
]
