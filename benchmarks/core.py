"""The core against the diffrax loop: one ball, ten balls, a thousand balls.

    python benchmarks/core.py [--only diffrax] [--problems P1 P5] [--rounds 15]

Balls fall, bounce and are observed at t = 2 (float64, rtol = atol = 1e-8, Tsit5):

- P1: one ball; the gradient of its final height with respect to (q0, v0, g, e).
- P4: ten balls in one state, 56 impacts; the gradient of the sum of the final heights
  with respect to the initial ones.
- P5: P1 for 1000 initial heights, under `vmap`.

For each: the final state (forward), value and gradient in reverse mode, one tangent in
forward mode, and the time to trace and compile. Errors are the largest deviations from
the closed form. Prints a Markdown table, writes nothing, takes about five minutes,
nearly all of it to compile: `--problems` and `--only` make it shorter.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _ball_exact import ball_and_gradient
from _diffrax_loop import Kind, many_guards, one_guard
from _timing import compile_timed, machine, show_seconds, time_in_turns, Timing
from _traces import traces_of_diffrax, traces_of_hybridjax, VALUES
from hybridjax.models import Balls, BouncingBall


jax.config.update("jax_enable_x64", True)

HYBRIDJAX = "hybridjax"
DIFFRAX = "diffrax loop"
DIFFRAX_VMAP = "diffrax loop, vmap of one ball"
T1 = 2.0
TOLERANCE = 1e-8
GRAVITY, RESTITUTION = 9.81, 0.8
# More than enough: P5 has 5 impacts at most, P4 has 56.
MAX_IMPACTS = {"P1": 8, "P4": 64, "P5": 8}
# Of the whole solve. The diffrax loop bounds each flight, by 16: less than this in all
# for one ball, a little more for ten.
MAX_STEPS = {"P1": 256, "P4": 1024, "P5": 256}
# What a proof of concept of hybridjax took, on two cores shared with others.
PROOF_OF_CONCEPT = {
    ("P1", "forward"): "25 µs",
    ("P1", "value and gradient"): "55 µs",
    ("P1", "compile value"): "0.8 s",
    ("P1", "compile gradient"): "1.5 s",
    ("P5", "forward"): "5 ms",
    ("P5", "value and gradient"): "5 to 9 ms",
}


class Problem(NamedTuple):
    """**Fields:**

    - `theta`: what to differentiate by; a batch of it where `batched`.
    - `objective`: from a final state to the scalar that is differentiated.
    - `solvers`: name -> kind -> solve, where `solve(theta)` is the final state of one
        lane, differentiable in forward or reverse mode as `kind` says.
    - `state`, `gradient`: the exact final states and gradients.
    """

    name: str
    theta: jax.Array
    batched: bool
    objective: Callable
    solvers: Mapping[str, Callable[[Kind], Callable]]
    state: np.ndarray
    gradient: np.ndarray


#
# Problems
#


def _hybridjax(system, x0, problem: str, t1=T1, tolerance=TOLERANCE):
    sol = hj.simulate(
        system,
        0.0,
        t1,
        x0,
        0,
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=MAX_STEPS[problem],
        max_events=MAX_IMPACTS[problem],
        # As in the diffrax loop: failures show as errors in the table.
        throw=False,
    )
    return sol.x1


def _ball(name: str, theta: jax.Array) -> Problem:
    def diffrax_solver(kind: Kind):
        loop = one_guard(kind, MAX_IMPACTS[name])

        def solve(theta):
            ball = BouncingBall(gravity=theta[2], restitution=theta[3])
            return loop(ball, 0.0, T1, theta[:2], 0)

        return solve

    def hybridjax_solver(kind: Kind):
        del kind

        def solve(theta):
            ball = BouncingBall(gravity=theta[2], restitution=theta[3])
            return _hybridjax(ball, theta[:2], name)

        return solve

    state, gradient = ball_and_gradient(theta, T1)
    return Problem(
        name,
        theta,
        theta.ndim == 2,
        lambda x1: x1[0],
        {DIFFRAX: diffrax_solver, HYBRIDJAX: hybridjax_solver},
        state,
        gradient,
    )


def _one_ball() -> Problem:
    return _ball("P1", jnp.array([1.0, 0.0, GRAVITY, RESTITUTION]))


def _thousand_balls() -> Problem:
    heights = jnp.linspace(0.5, 1.5, 1002)[1:-1]
    rest = jnp.array([0.0, GRAVITY, RESTITUTION])
    rest = jnp.broadcast_to(rest, (heights.size, 3))
    return _ball("P5", jnp.concatenate([heights[:, None], rest], axis=1))


def _ten_balls() -> Problem:
    heights = jnp.linspace(0.40, 0.58, 10)
    balls = Balls(gravity=GRAVITY, restitution=RESTITUTION)
    ball = BouncingBall(gravity=GRAVITY, restitution=RESTITUTION)

    def at_rest(heights):
        return jnp.concatenate([heights, jnp.zeros_like(heights)])

    def diffrax_solver(kind: Kind):
        loop = many_guards(kind, MAX_IMPACTS["P4"])
        return lambda heights: loop(balls, 0.0, T1, at_rest(heights), 0)

    def diffrax_vmap_solver(kind: Kind):
        loop = one_guard(kind, MAX_IMPACTS["P1"])

        def solve(heights):
            x0 = at_rest(heights).reshape(2, -1).T
            return jax.vmap(lambda x0: loop(ball, 0.0, T1, x0, 0))(x0).T.ravel()

        return solve

    def hybridjax_solver(kind: Kind):
        del kind
        return lambda heights: _hybridjax(balls, at_rest(heights), "P4")

    theta = np.array([[q0, 0.0, GRAVITY, RESTITUTION] for q0 in np.asarray(heights)])
    state, gradient = ball_and_gradient(theta, T1)
    return Problem(
        "P4",
        heights,
        False,
        lambda x1: jnp.sum(x1[: heights.size]),
        {
            DIFFRAX: diffrax_solver,
            DIFFRAX_VMAP: diffrax_vmap_solver,
            HYBRIDJAX: hybridjax_solver,
        },
        state.T.ravel(),
        gradient[:, 0],
    )


PROBLEMS = {"P1": _one_ball, "P4": _ten_balls, "P5": _thousand_balls}


#
# What is measured
#


def _forward(problem: Problem, solver):
    del problem
    return solver("forward")


def _value_and_gradient(problem: Problem, solver):
    solve = solver("reverse")
    return jax.value_and_grad(lambda theta: problem.objective(solve(theta)))


def _jvp(problem: Problem, solver):
    solve = solver("forward")

    def run(theta):
        tangent = jnp.ones_like(theta)
        return jax.jvp(lambda th: problem.objective(solve(th)), (theta,), (tangent,))

    return run


def _error(problem: Problem, quantity: str, out) -> float:
    if quantity == "forward":
        got, exact = out, problem.state
    elif quantity == "value and gradient":
        got, exact = out[1], problem.gradient
    else:
        got, exact = out[1], problem.gradient.sum(axis=-1)
    return float(np.max(np.abs(np.asarray(got) - exact)))


QUANTITIES = {
    "forward": _forward,
    "value and gradient": _value_and_gradient,
    "jvp": _jvp,
}
COMPILES = {"compile value": "forward", "compile gradient": "value and gradient"}


class Row(NamedTuple):
    problem: str
    quantity: str
    times: dict[str, Timing]
    errors: dict[str, float]


def measure(problem: Problem, names: list[str], rounds: int) -> list[Row]:
    """All rows of one problem."""
    rows = []
    compile_seconds = {}
    for quantity, build in QUANTITIES.items():
        programs, errors = {}, {}
        for name in names:
            run = build(problem, problem.solvers[name])
            run = jax.vmap(run) if problem.batched else run
            programs[name], seconds = compile_timed(run, problem.theta)
            compile_seconds[quantity, name] = Timing(np.array([seconds]))
            errors[name] = _error(problem, quantity, programs[name](problem.theta))
        times = time_in_turns(programs, problem.theta, rounds=rounds)
        rows.append(Row(problem.name, quantity, times, errors))
    for label, quantity in COMPILES.items():
        times = {name: compile_seconds[quantity, name] for name in names}
        rows.append(Row(problem.name, label, times, {}))
    return rows


#
# The program
#


def show(row: Row) -> str:
    """One line of the table for each peer."""

    def cells(name):
        if name not in row.times:
            return "", ""
        timing, error = row.times[name], row.errors.get(name)
        time = show_seconds(timing.median)
        if timing.rounds.size > 1:
            time += f" ({show_seconds(timing.least)})"
        return time, "" if error is None else f"{error:.0e}"

    peers = [name for name in row.times if name != HYBRIDJAX]
    lines = []
    for peer in peers or [""]:
        both = peer and HYBRIDJAX in row.times
        ratio = f"{row.times[peer].over(row.times[HYBRIDJAX]):.2g}" if both else ""
        (peer_time, peer_error), (time, error) = cells(peer), cells(HYBRIDJAX)
        goal = PROOF_OF_CONCEPT.get((row.problem, row.quantity), "")
        label = (row.problem, row.quantity, peer)
        line = (*label, peer_time, time, ratio, peer_error, error, goal)
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


HEADER = """\
| problem | what | peer | peer: median (least) | hybridjax: median (least) \
| peer / hybridjax | peer: error | hybridjax: error | proof of concept |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Core benchmark.")
    parser.add_argument("--only", choices=["diffrax", "hybridjax"])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=[*PROBLEMS])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    print(f"{machine()}\n\n{HEADER}", flush=True)
    warm = _one_ball()
    names = [n for n in warm.solvers if n.startswith(options.only or "")]
    for name in names:
        # Not credited to the first program: imports and set-up on first use.
        compile_timed(_forward(warm, warm.solvers[name]), warm.theta)

    for problem in map(lambda name: PROBLEMS[name](), options.problems):
        names = [n for n in problem.solvers if n.startswith(options.only or "")]
        for row in measure(problem, names, options.rounds):
            print(show(row), flush=True)

    print(f"\nTraces for {len(VALUES)} choices of t1, x0, gravity and tolerance:\n")
    if options.only != "hybridjax":
        for how, traces in traces_of_diffrax(one_guard("forward", MAX_IMPACTS["P1"])):
            print(f"- {DIFFRAX}, {how}: {traces}", flush=True)
    if options.only != "diffrax":
        for how, traces in traces_of_hybridjax(MAX_STEPS["P1"], MAX_IMPACTS["P1"]):
            print(f"- {HYBRIDJAX}, {how}: {traces}", flush=True)


if __name__ == "__main__":
    main()
