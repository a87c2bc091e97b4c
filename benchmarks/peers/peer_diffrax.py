"""diffrax: the loop that a careful user writes around its `diffeqsolve`."""

from _diffrax_loop import DiffraxLoop, many_guards, one_guard
from jax_models import MODELS, program
from problems import Problem, TOLERANCE


PACKAGES = ("diffrax", "jax", "jaxlib", "equinox", "optimistix")


def build(problem: Problem, what: str):
    max_events = MODELS[problem.kind].max_events
    kind = "reverse" if what in ("gradient", "jacrev") else "forward"
    if problem.kind == "ball":
        loop = one_guard(kind, max_events)
    else:
        loop = many_guards(kind, max_events)
    if problem.kind in ("hopper", "legs"):
        # Longer arcs than those of a ball, which are exact in one step.
        loop = DiffraxLoop(kind, loop.root_finder, loop.max_arcs, 64, 64)

    def solve(system, t1, x0, mode0):
        return loop(system, 0.0, t1, x0, mode0, None, TOLERANCE, TOLERANCE)

    return program(problem, what, solve)
