"""SciPy: `solve_ivp` with terminal events in a loop; central differences."""

import numpy as np
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
    TOLERANCE,
)
from scipy.integrate import solve_ivp


PACKAGES = ("scipy", "numpy")

# Truncation h² against the solver's 1e-8 / h, in relative terms: some 1e-5 of error.
_STEP = 3e-4


def build(problem: Problem, what: str):
    solve, objective = _KINDS[problem.kind]

    def value(theta):
        return solve(theta, problem.t1)

    def gradient(theta):
        def difference(i):
            step = np.zeros_like(theta)
            step[i] = _STEP * max(1.0, abs(theta[i]))
            ahead, behind = value(theta + step), value(theta - step)
            return (objective(ahead) - objective(behind)) / (2 * step[i])

        return objective(value(theta)), np.array([*map(difference, range(theta.size))])

    run = value if what == "value" else gradient
    if not problem.batched:
        return lambda: run(problem.theta)
    if what == "value":
        return lambda: np.stack([run(theta) for theta in problem.theta])
    return lambda: tuple(map(np.stack, zip(*map(run, problem.theta), strict=True)))


def _loop(flow, guards, jump, x, mode, t1):
    """Runs from event to event.

    **Arguments:**

    - `flow(t, x, mode)`, `guards[i](t, x, mode)`, which fall to zero, and
        `jump(x, mode, i)`.
    """
    t = 0.0
    events = []
    for guard in guards:
        event = lambda t, x, mode, guard=guard: guard(t, x, mode)
        event.terminal, event.direction = True, -1
        events.append(event)
    while True:
        sol = solve_ivp(
            flow,
            (t, t1),
            x,
            args=(mode,),
            events=events,
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )
        t, x = sol.t[-1], sol.y[:, -1]
        if sol.status != 1:
            return x
        fired = next(i for i, times in enumerate(sol.t_events) if times.size)
        x, mode = jump(x, mode, fired)


def _ball(theta, t1):
    q0, v0, gravity, restitution = theta
    return _loop(
        lambda t, x, mode: [x[1], -gravity],
        [lambda t, x, mode: x[0]],
        lambda x, mode, i: (np.array([0.0, -restitution * x[1]]), mode),
        np.array([q0, v0]),
        0,
        t1,
    )


def _balls(heights, t1):
    n = heights.size

    def jump(x, mode, i):
        x = x.copy()
        x[i], x[n + i] = 0.0, -RESTITUTION * x[n + i]
        return x, mode

    return _loop(
        lambda t, x, mode: np.concatenate([x[n:], np.full(n, -GRAVITY)]),
        [lambda t, x, mode, i=i: x[i] for i in range(n)],
        jump,
        np.concatenate([heights, np.zeros(n)]),
        0,
        t1,
    )


def _hopper(theta, t1):
    z0, stiffness = theta

    def flow(t, x, stance):
        return [x[1], -GRAVITY + (stiffness * (1 - x[0]) if stance else 0.0)]

    return _loop(
        flow,
        [lambda t, x, stance: 1 - x[0] if stance else x[0] - 1],
        lambda x, stance, i: (x, not stance),
        np.array([z0, 0.0]),
        False,
        t1,
    )


def _feet(angle):
    side = np.array([HALF_WIDTH, -HALF_WIDTH])
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * side + sin * LEG_LENGTH, sin * side - cos * LEG_LENGTH


def _legs(x0, t1):
    def flow(t, x, contact):
        _, z, angle, vx, vz, omega = x
        rx, rz = _feet(angle)
        fz = contact * (-STIFFNESS * (z + rz) - DAMPING * (vz + omega * rx))
        fx = contact * -TANGENTIAL_DAMPING * (vx - omega * rz)
        torque = np.sum(rx * fz - rz * fx)
        return [vx, vz, omega, np.sum(fx), np.sum(fz) - GRAVITY, torque / INERTIA]

    def height(i):
        def guard(t, x, contact):
            phi = x[1] + _feet(x[2])[1][i]
            return -phi if contact[i] else phi

        return guard

    def jump(x, contact, i):
        contact = contact.copy()
        contact[i] = not contact[i]
        return x, contact

    return _loop(flow, [height(0), height(1)], jump, x0, np.zeros(2, bool), t1)


_KINDS = {
    "ball": (_ball, lambda x: x[0]),
    "balls": (_balls, lambda x: np.sum(x[: x.size // 2])),
    "hopper": (_hopper, lambda x: x[0]),
    "legs": (_legs, np.sum),
}
