"""The problems as systems of `hybridjax.models`, for both peers that use them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax_program
from hybridjax.models import Balls, BouncingBall, spring_hopper, TwoLegs
from jax_program import Program
from problems import (
    DAMPING,
    GRAVITY,
    HALF_WIDTH,
    INERTIA,
    LEG_LENGTH,
    Problem,
    RESTITUTION,
    STIFFNESS,
    TANGENTIAL_DAMPING,
)


jax.config.update("jax_enable_x64", True)


class Model(NamedTuple):
    """**Fields:**

    - `start(theta)`: the system, the initial state and the initial mode.
    - `objective`: of the final state.
    - `max_events`: more than there are.
    """

    start: Callable
    objective: Callable
    max_events: int


def program(problem: Problem, what: str, solve: Callable) -> Program:
    """What a peer returns, from `solve(system, t1, x0, mode0)`."""
    model = MODELS[problem.kind]

    def value(theta):
        system, x0, mode0 = model.start(theta)
        return solve(system, problem.t1, x0, mode0)

    return jax_program.program(problem, what, value, model.objective)


def _ball(theta):
    return BouncingBall(gravity=theta[2], restitution=theta[3]), theta[:2], 0


def _balls(heights):
    system = Balls(gravity=GRAVITY, restitution=RESTITUTION)
    return system, jnp.concatenate([heights, jnp.zeros_like(heights)]), 0


def _hopper(theta):
    system = spring_hopper(stiffness=theta[1], gravity=GRAVITY)
    return system, jnp.stack([theta[0], 0.0]), jnp.asarray([-1, 1])


def _legs(x0):
    system = TwoLegs(
        inertia=INERTIA,
        half_width=HALF_WIDTH,
        leg_length=LEG_LENGTH,
        stiffness=STIFFNESS,
        damping=DAMPING,
        tangential_damping=TANGENTIAL_DAMPING,
        gravity=GRAVITY,
    )
    return system, x0, jnp.zeros(2, jnp.int32)


MODELS = {
    "ball": Model(_ball, lambda x: x[0], 8),
    "balls": Model(_balls, lambda x: jnp.sum(x[: x.size // 2]), 64),
    "hopper": Model(_hopper, lambda x: x[0], 8),
    "legs": Model(_legs, jnp.sum, 12),
}
