"""A thousand hoppers of different friction and restitution, beside MuJoCo's MJX.

    python benchmarks/hoppers.py [--out hoppers.md]

A hopper is a rigid body with a point foot on a leg below its centre, and a spring and a
damper that keep it upright (a reaction wheel). It is thrown, and hops until t = 0.9.
Its friction, restitution, initial height and initial velocities are those of its lane;
the gradient is that of the horizontal position at the end with respect to these six.

The reference is hybridjax with tolerances of 1e-11: its states, which SciPy confirms on
some lanes with a loop of its own, and central finite differences of them. Errors of
gradients are relative, in the Euclidean norm. Lanes whose differences with two step
sizes disagree do not count. The nearest model in MJX is in `_mjx.py`; its gradients are
also compared with finite differences of its own states. They are taken in forward mode,
as reverse mode refuses its solver, and of fewer lanes, as they take long.

All in float64. Prints Markdown, which it also writes to a file, and takes five
minutes. Needs the extra `bench`, and for MJX the package `mujoco-mjx`; without that,
the table says so.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _timing import compile_timed, machine, show_seconds
from hybridjax.mechanics import MechanicalSystem
from scipy.integrate import solve_ivp


jax.config.update("jax_enable_x64", True)

MASS, INERTIA, LEG = 1.0, 0.1, 0.4
STIFFNESS, DAMPING = 10.0, 0.3  # of what keeps it upright
GRAVITY = 9.81
END = 0.9
LANES = 1000
MJX_GRADIENT_LANES = 80
SCIPY_LANES = 20
TIGHT = 1e-11
# Steps of the finite differences of hybridjax, and of MJX, which has no tolerances.
DIFFERENCE, MJX_DIFFERENCE = 1e-5, 1e-6
# Where differences with the step and twice the step disagree by more, there is none.
AGREEMENT = 1e-4
# Friction, restitution, height, and the velocities: across, up, and turning.
LOW = np.array([0.05, 0.65, 0.65, 0.5, -0.5, -1.0])
HIGH = np.array([0.4, 0.9, 0.85, 2.5, 0.5, 1.0])
LEAN = 0.2


def hoppers(lanes: int = LANES) -> tuple[np.ndarray, np.ndarray]:
    """What the gradient is taken of, of shape `(lanes, 6)`, and the initial angles."""
    rng = np.random.default_rng(0)
    p = rng.uniform(LOW, HIGH, (lanes, len(LOW)))
    return p, rng.uniform(-LEAN, LEAN, lanes)


def start(p, angle):
    return jnp.stack([jnp.zeros_like(angle), p[2], angle]), p[3:]


#
# hybridjax
#


def mass_matrix(q, args):
    return jnp.array([MASS, MASS, INERTIA])


def effort(t, q, v, args):
    upright = -STIFFNESS * q[2] - DAMPING * v[2]
    return jnp.stack([jnp.zeros_like(upright), -MASS * GRAVITY, upright])


def gap(q, args):
    return (q[1] - LEG * jnp.cos(q[2]))[None]


def tangents(q, args):
    return jnp.stack([1.0, 0.0, LEG * jnp.cos(q[2])])[None]


def hop_of(p, angle, tolerance) -> hj.Solution:
    system = MechanicalSystem(
        mass_matrix,
        effort,
        gap,
        1,
        tangents=tangents,
        friction=p[0],
        restitution=p[1],
    )
    return hj.simulate(
        system,
        0.0,
        END,
        start(p, angle),
        jnp.zeros(1, int),  # In flight.
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=512,
        max_events=16,
        throw=False,
    )


def hop(p, angle, tolerance):
    sol = hop_of(p, angle, tolerance)
    x = jnp.concatenate(sol.x1)
    done = sol.result == hj.RESULTS.successful
    return jnp.where(done, x, jnp.nan), sol.events.count


#
# SciPy, one at a time
#


def scipy_hop(p, angle) -> np.ndarray:
    """Newton's law of restitution, and the impulse of Coulomb friction that stops the
    foot if it can."""
    friction, restitution = p[:2]
    inverse = 1 / np.array([MASS, MASS, INERTIA])
    height = lambda t, x: x[1] - LEG * np.cos(x[2])
    height.terminal, height.direction = True, -1

    def field(t, x):
        upright = -STIFFNESS * x[2] - DAMPING * x[5]
        return np.concatenate([x[3:], inverse * [0, -MASS * GRAVITY, upright]])

    t, x = 0.0, np.concatenate([[0, p[2], angle], p[3:]])
    while True:
        sol = solve_ivp(
            field, (t, END), x, "DOP853", events=height, rtol=1e-12, atol=1e-12
        )
        t, x = sol.t[-1], sol.y[:, -1]
        if sol.status == 0:
            return x
        across, up = LEG * np.cos(x[2]), LEG * np.sin(x[2])
        jacobian = np.array([[0, 1, up], [1, 0, across]])
        normal, tangential = jacobian @ x[3:]
        response = (jacobian * inverse) @ jacobian.T
        change = -(1 + restitution) * normal
        impulse = np.linalg.solve(response, [change, -tangential])
        if abs(impulse[1]) > friction * impulse[0]:
            cone = np.array([1, -friction * np.sign(tangential)])
            impulse = change / (response[0] @ cone) * cone
        x[3:] += inverse * (jacobian.T @ impulse)


#
# Measurement
#


class Forward:
    """`solve` for all lanes at once, of any number of them: `LANES` at a time."""

    def __init__(self, solve: Callable, p, angle, *setting):
        axes = (0, 0) + (None,) * len(setting)
        batch = jax.vmap(solve, axes)
        self._program, self.first = compile_timed(batch, p, angle, *setting)

    def timed(self, *args) -> tuple[np.ndarray, float]:
        (states, _), taken = timed(self._program, *args)
        return np.asarray(states), taken

    def __call__(self, p, angle, *setting):
        states, impacts = [], []
        for begin in range(0, len(p), LANES):
            rows = np.arange(begin, begin + LANES) % len(p)
            x, count = self._program(p[rows], angle[rows], *setting)
            states.append(x)
            impacts.append(count)
        return np.concatenate(states)[: len(p)], np.concatenate(impacts)[: len(p)]

    def differences(self, p, angle, *setting, step) -> np.ndarray:
        """Central ones, of what the gradient is taken of."""
        moved = differenced(p, step)
        x, _ = self(moved, np.tile(angle, len(moved) // len(p)), *setting)
        return quotient(x[:, 0], p, step)


def differenced(p, step) -> np.ndarray:
    moves = step * np.concatenate([np.eye(len(LOW)), -np.eye(len(LOW))])
    return (p + moves[:, None]).reshape(-1, len(LOW))


def quotient(values, p, step) -> np.ndarray:
    forward, backward = values.reshape(2, len(LOW), len(p))
    return (forward - backward).T / (2 * step)


def timed(program, *args) -> tuple[Any, float]:
    """The result, and the least time of some calls, of one if it takes long."""
    least, spent, result = np.inf, 0.0, None
    while spent < 3.0:
        begin = time.perf_counter()
        result = jax.block_until_ready(program(*args))
        taken = time.perf_counter() - begin
        least, spent = min(least, taken), spent + max(taken, 0.6)
    return result, least


class Row(NamedTuple):
    name: str
    lanes: int  # of the gradient
    compilation: tuple[float, float]
    time: tuple[float, float]  # per lane: forward, and value and gradient
    states: np.ndarray
    gradients: np.ndarray
    own: np.ndarray | None = None  # differences of its own states


def gradients_of(gradient, settings, p, angle):
    """For each of `settings` the gradients, and the time; and the compilation."""
    first = next(iter(settings))
    axes = (0, 0) + (None,) * len(settings[first])
    batch = jax.vmap(gradient, axes)
    program, compilation = compile_timed(batch, p, angle, *settings[first])
    found = {}
    for name, setting in settings.items():
        (_, gradients), taken = timed(program, p, angle, *setting)
        found[name] = np.asarray(gradients), taken
    return found, compilation - found[first][1]


class Reference(NamedTuple):
    states: np.ndarray
    impacts: np.ndarray
    gradients: np.ndarray
    again: np.ndarray  # with twice the step


def hybridjax_rows(p, angle) -> tuple[list[Row], Reference]:
    settings = {f"hybridjax, {tol:.0e}": (tol,) for tol in (1e-4, 1e-8)}
    first = next(iter(settings))
    forward = Forward(hop, p, angle, *settings[first])
    exact = Reference(
        *forward(p, angle, TIGHT),
        forward.differences(p, angle, TIGHT, step=DIFFERENCE),
        forward.differences(p, angle, TIGHT, step=2 * DIFFERENCE),
    )
    found = {
        name: forward.timed(p, angle, *setting) for name, setting in settings.items()
    }
    across = lambda *given: hop(*given)[0][0]
    gradients, compilation = gradients_of(
        jax.value_and_grad(across), settings, p, angle
    )
    rows = []
    for name, (states, taken) in found.items():
        gradient, longer = gradients[name]
        compilations = forward.first - found[first][1], compilation
        times = taken / LANES, longer / LANES
        rows.append(Row(name, LANES, compilations, times, states, gradient))
    return rows, exact


def mjx_solver():
    """The final state, from `p`, the angle, the step, the contact's duration (s), and
    the number of steps."""
    from _mjx import Hopper

    hopper = Hopper(
        iterations=20,  # As many as give the result of MuJoCo in C.
        search=16,
        mass=MASS,
        inertia=INERTIA,
        leg=LEG,
        stiffness=STIFFNESS,
        damping=DAMPING,
        gravity=GRAVITY,
    )

    def solve(p, angle, *setting):
        return hopper(p[0], p[1], *start(p, angle), *setting)

    return solve


def mjx_rows(p, angle) -> tuple[list[Row], str]:
    """And what reverse mode says."""
    solve = mjx_solver()

    def gradient(p, angle, *setting):
        along = lambda e: jax.jvp(lambda p: solve(p, angle, *setting)[0], (p,), (e,))
        return jax.vmap(along, out_axes=(None, 0))(jnp.eye(len(LOW)))

    settings = {
        f"MJX, {dt} s, contact {contact:.3g} s": (
            jnp.asarray(dt),
            jnp.asarray(contact),
            jnp.asarray(round(END / dt)),
        )
        for dt, contact in ((0.002, 0.014), (0.002, 0.04))
    }
    n = MJX_GRADIENT_LANES
    first = next(iter(settings))
    batch = lambda *given: (solve(*given), 0)  # Their impacts are not counted.
    forward = Forward(batch, p, angle, *settings[first])
    found = {}
    for name, setting in settings.items():
        states, taken = forward.timed(p, angle, *setting)
        own = forward.differences(p[:n], angle[:n], *setting, step=MJX_DIFFERENCE)
        found[name] = states, taken, own
    gradients, compilation = gradients_of(gradient, settings, p[:n], angle[:n])
    rows = []
    for name, (states, taken, own) in found.items():
        found_gradients, longer = gradients[name]
        compilations = forward.first - found[first][1], compilation
        times = taken / LANES, longer / n
        rows.append(Row(name, n, compilations, times, states, found_gradients, own))

    dt, contact, steps = settings[first]
    reverse = jax.grad(lambda p: solve(p, angle[0], dt, contact, int(steps))[0])
    try:
        jax.eval_shape(reverse, p[0])
    except ValueError as error:
        return rows, str(error).partition(". ")[0]
    return rows, "works"


#
# The page
#


def distances(x, y) -> np.ndarray:
    return np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)


def show_errors(errors) -> str:
    failed = np.sum(~np.isfinite(errors))
    errors = errors[np.isfinite(errors)]
    if not len(errors):
        return "none finite"
    text = f"{np.median(errors):.0e} ({np.max(errors):.0e})"
    return text + (f", {failed} not finite" if failed else "")


def confirm(p, angle, exact, counted) -> str:
    """By SciPy, on some lanes."""
    rows = np.flatnonzero(counted)[:SCIPY_LANES]
    p, angle = p[rows], angle[rows]
    loop = lambda p, angle: np.stack(
        [scipy_hop(*lane) for lane in zip(p, angle, strict=True)]
    )
    apart = np.max(np.abs(loop(p, angle) - exact.states[rows]))
    moved = differenced(p, DIFFERENCE)
    values = loop(moved, np.tile(angle, len(moved) // len(p)))[:, 0]
    slopes = quotient(values, p, DIFFERENCE)
    return (
        f"A loop over SciPy's DOP853, with impacts of its own, gives on {len(rows)} "
        f"lanes the states of the reference to {apart:.0e}, and its differences to "
        f"{np.max(distances(slopes, exact.gradients[rows])):.0e}."
    )


HEADER = (
    "tool",
    "lanes of the gradient",
    "compile",
    "compile, gradient",
    "forward, a lane",
    "value and gradient, a lane",
    "error of the end",
    "error of the gradient",
    "gradient from its own differences",
)


def page(p, angle, rows, exact, reverse) -> str:
    spread = distances(exact.again, exact.gradients)
    counted = spread < AGREEMENT
    histogram = ", ".join(
        f"{lanes} with {impacts}"
        for impacts, lanes in enumerate(np.bincount(exact.impacts))
        if lanes
    )
    lines = [
        "# A thousand hoppers",
        "",
        "What `benchmarks/hoppers.py` wrote (see there what it measures).",
        "",
        f"{machine()}{versions()}",
        "",
        f"{LANES} hoppers, by their number of impacts: {histogram}. Of these "
        f"{np.sum(counted)} have finite differences, which with steps of "
        f"{DIFFERENCE:.0e} and twice that agree to {np.median(spread[counted]):.0e} "
        f"({np.max(spread[counted]):.0e}). {confirm(p, angle, exact, counted)}",
        "",
        "Errors: median (largest). Of the end: the largest entry of the final "
        "position, in m and rad.",
        "",
        f"| {' | '.join(HEADER)} |",
        "| --- " * len(HEADER) + "|",
    ]
    for row in rows:
        here = np.flatnonzero(counted[: row.lanes])
        end = np.max(np.abs(row.states - exact.states)[:, :3], axis=1)
        gradients = row.gradients[here]
        cells = (
            row.name,
            str(row.lanes),
            *(show_seconds(taken) for taken in row.compilation + row.time),
            show_errors(end),
            show_errors(distances(gradients, exact.gradients[here])),
            "" if row.own is None else show_errors(distances(gradients, row.own[here])),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if reverse is None:
        lines.append(f"| MJX | not installed {'| ' * (len(HEADER) - 2)}|")
    else:
        lines += ["", f"MJX in reverse mode: {reverse}."]
    return "\n".join(lines) + "\n"


def has_mjx() -> bool:
    return all(importlib.util.find_spec(m) for m in ("mujoco", "mujoco.mjx"))


def versions() -> str:
    if not has_mjx():
        return ""
    from importlib.metadata import version

    return f", mujoco {version('mujoco')}, mujoco-mjx {version('mujoco-mjx')}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A thousand hoppers.")
    parser.add_argument("--out", default="hoppers.md")
    options = parser.parse_args()

    p, angle = hoppers()
    rows, exact = hybridjax_rows(p, angle)
    print("<!-- hybridjax measured -->", flush=True)
    reverse = None
    if has_mjx():
        beside, reverse = mjx_rows(p, angle)
        rows += beside
    text = page(p, angle, rows, exact, reverse)
    print(text)
    with open(options.out, "w") as file:
        file.write(text)
    print(f"Saved {options.out}.")


if __name__ == "__main__":
    main()
