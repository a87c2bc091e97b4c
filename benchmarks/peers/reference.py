"""Reference solutions of the problems, by NumPy alone and independent of every peer.

Balls have a closed form. The others are integrated by Gauss-Legendre collocation of
order 16, which ends each arc where Newton's method puts the event. All of it is
analytic in the initial values as long as the events keep their order, so that
derivatives come from complex steps: no rule for derivatives through events is used.
"""

from collections.abc import Callable

import numpy as np
from _ball_exact import ball_and_gradient
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


# Complex steps do not cancel: the smaller, the better.
_TINY = 1e-30
_STAGES = 8
_STEPS = 100


def objective(problem: Problem, x):
    """What is differentiated: linear in the final state, and so also what belongs to it
    of a tangent, and of the rows of a Jacobian."""
    if problem.kind in ("ball", "hopper"):
        return x[0]
    return np.sum(x if problem.kind == "legs" else x[: len(x) // 2], axis=0)


def reference(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The final states and the gradients, of the shapes that peers return."""
    theta = problem.theta
    if problem.kind == "ball":
        return ball_and_gradient(theta, problem.t1)
    if problem.kind == "balls":
        others = np.broadcast_to([0.0, GRAVITY, RESTITUTION], (theta.size, 3))
        balls = np.concatenate([theta[:, None], others], axis=1)
        state, gradient = ball_and_gradient(balls, problem.t1)
        return state.T.ravel(), gradient[:, 0]
    solve = {"hopper": _hopper, "legs": _legs}[problem.kind]
    moved = [
        solve(theta + 1j * _TINY * direction, problem.t1)
        for direction in np.eye(theta.size)
    ]
    tangents = [objective(problem, x).imag / _TINY for x in moved]
    x1 = np.asarray(solve(theta.astype(complex), problem.t1))
    return np.real(x1), np.array(tangents)


def _collocation(stages: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrix and the weights of the Gauss-Legendre method on [0, 1]."""
    legendre = np.polynomial.legendre
    nodes, weights = legendre.leggauss(stages)
    # Integrals from -1 to the nodes, of the Legendre polynomials, then of Lagrange's.
    integrals = np.stack(
        [legendre.legval(nodes, legendre.legint(c, lbnd=-1)) for c in np.eye(stages)]
    )
    return np.linalg.solve(legendre.legvander(nodes, stages - 1).T, integrals).T / 2, (
        weights / 2
    )


_MATRIX, _WEIGHTS = _collocation(_STAGES)


def _step(flow: Callable, x, contact, h):
    slopes = np.repeat(flow(x, contact)[None], _STAGES, axis=0)
    # The steps are short: each iteration gains a digit or so.
    for _ in range(20):
        slopes = np.stack([flow(x + h * s, contact) for s in _MATRIX @ slopes])
    return x + h * (_WEIGHTS @ slopes)


def _integrate(flow, heights, x, contact, t1):
    """Through springs that push where a height is negative; the state never jumps.

    **Arguments:**

    - `flow(x, contact)`; `heights(x)`: the heights and their rates.
    """
    t, n = 0.0, 0
    while n < _STEPS:
        h = t1 * (n + 1) / _STEPS - t
        end = _step(flow, x, contact, h)
        crossed = (heights(end)[0].real < 0) != contact
        if crossed.any():
            # The earliest of them.
            arcs = [_arc(flow, heights, x, contact, i, h) for i in crossed.nonzero()[0]]
            h, i = min(arcs, key=lambda arc: arc[0].real)
            x = _step(flow, x, contact, h)
            t, contact = t + h, contact ^ (np.arange(contact.size) == i)
        else:
            x, t, n = end, t1 * (n + 1) / _STEPS, n + 1
    return x


def _arc(flow, heights, x, contact, i, h):
    for _ in range(15):
        height, rate = heights(_step(flow, x, contact, h))
        h = h - height[i] / rate[i]
    return h, i


def _hopper(theta, t1):
    z0, stiffness = theta

    def flow(x, contact):
        push = stiffness * (1 - x[0]) if contact[0] else 0
        return np.array([x[1], push - GRAVITY])

    def heights(x):
        return x[:1] - 1, x[1:]

    x0 = np.array([z0, 0])
    return _integrate(flow, heights, x0, np.zeros(1, bool), t1)


def _legs(theta, t1):
    side = np.array([HALF_WIDTH, -HALF_WIDTH])

    def feet(angle):
        cos, sin = np.cos(angle), np.sin(angle)
        return cos * side + sin * LEG_LENGTH, sin * side - cos * LEG_LENGTH

    def flow(x, contact):
        _, z, angle, vx, vz, omega = x
        rx, rz = feet(angle)
        fz = contact * (-STIFFNESS * (z + rz) - DAMPING * (vz + omega * rx))
        fx = contact * -TANGENTIAL_DAMPING * (vx - omega * rz)
        torque = (rx * fz - rz * fx).sum()
        return np.array([vx, vz, omega, fx.sum(), fz.sum() - GRAVITY, torque / INERTIA])

    def heights(x):
        rx, rz = feet(x[2])
        return x[1] + rz, x[4] + x[5] * rx

    return _integrate(flow, heights, theta, np.zeros(2, bool), t1)
