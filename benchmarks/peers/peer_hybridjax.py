"""hybridjax."""

import diffrax
import hybridjax as hj
from jax_models import MODELS, program
from problems import Problem, TOLERANCE


PACKAGES = ("hybridjax", "jax", "jaxlib", "diffrax", "equinox")

# More than there are.
_MAX_STEPS = {"ball": 32, "balls": 256, "hopper": 128, "legs": 128}


def build(problem: Problem, what: str):
    def solve(system, t1, x0, mode0):
        sol = hj.simulate(
            system,
            0.0,
            t1,
            x0,
            mode0,
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
            max_steps=_MAX_STEPS[problem.kind],
            max_events=MODELS[problem.kind].max_events,
            # As in the diffrax loop: failures show as errors in the table.
            throw=False,
        )
        return sol.x1

    return program(problem, what, solve)
