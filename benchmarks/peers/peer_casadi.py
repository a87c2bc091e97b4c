"""CasADi: its Runge-Kutta integrator `erk` with events, generated and compiled as C.

It is the pair of order 5(4) with adaptive steps; fixed ones take longer for equal
errors in P2 and P3. Gradients are its own discrete adjoint, which includes the
derivatives of event times; the option `nadj` saves `casadi.gradient`'s second solve.
"""

import os
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import casadi as ca
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


PACKAGES = ("casadi", "numpy")

_THREADS = len(os.sched_getaffinity(0))
_OPTIONS = {
    "reltol": TOLERANCE,
    "abstol": TOLERANCE,
    "max_events": 1000,
    # By default 1e-6 and 3 iterations. A guard that falls to zero within 10 times this
    # after the event of another one is missed, without an error.
    "event_tol": TOLERANCE,
    "max_event_iter": 20,
    # The adjoint's tape has a fixed size in generated code.
    "max_tape_steps": 2000,
}
# The last one lets gcc inline: up to 1.3 times faster, compiled in twice the time.
_FLAGS = ["-O3", "-march=native", "-fno-semantic-interposition"]


class _Model(NamedTuple):
    """What is simulated, in CasADi's symbols.

    **Fields:**

    - `state`: the modes are its last elements; CasADi has none, so they are states
        with derivatives of zero. It begins as the first part of `theta` and zeros.
    - `parameters`: the rest of `theta`.
    - `flow`, `guards`: the derivative of the state, and what fall to zero.
    - `jump(i)`: the state after guard `i` fired.
    - `modes`: how many of them.
    - `weights`: of the elements of the state in the objective.
    """

    state: ca.SX
    parameters: ca.SX
    flow: ca.SX
    guards: ca.SX
    jump: Callable
    modes: int
    weights: list[float]


def build(problem: Problem, what: str):
    model = _KINDS[problem.kind](problem.theta.shape[-1])
    function = _compiled(model, problem.theta.shape[-1], problem.t1, what)
    if problem.batched:
        function = function.map(problem.lanes, "thread", _THREADS)
    # The fastest way to call: no conversions, always the same memory, which we own.
    # CasADi's matrices have a column for each lane and are stored by columns.
    theta = np.array(problem.theta, order="C")
    shape = theta.shape[:-1]
    if what == "value":
        outs = (np.zeros((*shape, function.size1_out(0))),)
    else:
        outs = np.zeros(shape), np.zeros(theta.shape)
    buffer, evaluate = function.buffer()
    buffer.set_arg(0, memoryview(theta.reshape(-1)))
    for i, out in enumerate(outs):
        buffer.set_res(i, memoryview(out.reshape(-1)))
    answer = outs[0] if what == "value" else outs

    def run(theta=theta):  # Keeps it alive.
        evaluate()
        if buffer.ret():
            raise RuntimeError(f"CasADi's return code is {buffer.ret()}.")
        return answer

    return run


def _compiled(model: _Model, n_theta: int, t1: float, what: str) -> ca.Function:
    n = model.state.numel()
    n_given = n_theta - model.parameters.numel()
    theta = ca.MX.sym("theta", n_theta)
    options = {**_OPTIONS, "transition": _transition(model)}
    if what == "gradient":
        options["nadj"] = 1
    dae = {
        "x": model.state,
        "p": model.parameters,
        "ode": model.flow,
        "zero": model.guards,
    }
    solve = ca.integrator("solve", "erk", dae, 0.0, t1, options)
    start = {"x0": ca.vertcat(theta[:n_given], ca.DM.zeros(n - n_given))}
    start["p"] = theta[n_given:]
    if what == "gradient":
        sol = solve(**start, adj_xf=ca.DM(model.weights))
        gradient = ca.vertcat(sol["adj_x0"][:n_given], sol["adj_p"])
        outs = [ca.dot(ca.DM(model.weights), sol["xf"]), gradient]
    else:
        outs = [solve(**start)["xf"][: n - model.modes]]
    # The generated code goes to the working directory. We clean up ourselves.
    jit = {"jit": True, "jit_cleanup": False, "compiler": "shell"}
    jit["jit_options"] = {"flags": _FLAGS, "cleanup": False}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            return ca.Function("run", [theta], outs, jit)
        finally:
            os.chdir(before)


def _transition(model: _Model) -> ca.Function:
    index, time, none = ca.SX.sym("index"), ca.SX.sym("time"), ca.SX.sym("none", 0)
    after = model.jump(0)
    for i in range(1, model.guards.numel()):
        after = ca.if_else(index == i, model.jump(i), after)
    return ca.Function(
        "jump",
        [index, time, model.state, none, model.parameters, none],
        [after, none],
        ca.event_in(),
        ca.event_out(),
    )


def _ball(n_theta):
    x, p = ca.SX.sym("x", 2), ca.SX.sym("p", 2)
    gravity, restitution = p[0], p[1]
    return _Model(
        state=x,
        parameters=p,
        flow=ca.vertcat(x[1], -gravity),
        guards=x[0],
        jump=lambda i: ca.vertcat(0.0, -restitution * x[1]),
        modes=0,
        weights=[1.0, 0.0],
    )


def _balls(n):
    x = ca.SX.sym("x", 2 * n)

    def jump(i):
        after = ca.SX(x)
        after[i], after[n + i] = 0.0, -RESTITUTION * x[n + i]
        return after

    return _Model(
        state=x,
        parameters=ca.SX.sym("p", 0),
        flow=ca.vertcat(x[n:], ca.DM.ones(n) * -GRAVITY),
        guards=x[:n],
        jump=jump,
        modes=0,
        weights=[1.0] * n + [0.0] * n,
    )


def _hopper(n_theta):
    x, stiffness = ca.SX.sym("x", 3), ca.SX.sym("stiffness")
    z, v, stance = ca.vertsplit(x)
    return _Model(
        state=x,
        parameters=stiffness,
        flow=ca.vertcat(v, -GRAVITY + stance * stiffness * (1 - z), 0.0),
        guards=(1 - 2 * stance) * (z - 1),
        jump=lambda i: ca.vertcat(z, v, 1 - stance),
        modes=1,
        weights=[1.0, 0.0, 0.0],
    )


def _legs(n_theta):
    x = ca.SX.sym("x", 8)
    contact = x[6:]
    _, z, angle, vx, vz, omega = ca.vertsplit(x[:6])
    side = ca.DM([HALF_WIDTH, -HALF_WIDTH])
    rx = ca.cos(angle) * side + ca.sin(angle) * LEG_LENGTH
    rz = ca.sin(angle) * side - ca.cos(angle) * LEG_LENGTH
    fz = contact * (-STIFFNESS * (z + rz) - DAMPING * (vz + omega * rx))
    fx = contact * -TANGENTIAL_DAMPING * (vx - omega * rz)
    torque = ca.sum1(rx * fz - rz * fx)

    def jump(i):
        after = ca.SX(x)
        after[6 + i] = 1 - contact[i]
        return after

    return _Model(
        state=x,
        parameters=ca.SX.sym("p", 0),
        flow=ca.vertcat(
            vx,
            vz,
            omega,
            ca.sum1(fx),
            ca.sum1(fz) - GRAVITY,
            torque / INERTIA,
            0.0,
            0.0,
        ),
        guards=(1 - 2 * contact) * (z + rz),
        jump=jump,
        modes=2,
        weights=[1.0] * 6 + [0.0] * 2,
    )


_KINDS = {"ball": _ball, "balls": _balls, "hopper": _hopper, "legs": _legs}
