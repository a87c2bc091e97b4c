"""Kinds of systems, states, solvers, precisions and outputs."""

import subprocess
import sys
from pathlib import Path

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from hybridjax.models import BouncingBall, SpringHopper

from .helpers import bounce_times, bouncing_ball


_small = dict(max_steps=128, max_events=8)
_tight = dfx.PIDController(rtol=1e-10, atol=1e-10)


def _ball(height=1.0):
    return jnp.stack([jnp.asarray(height, float), jnp.zeros(())])


#
# States
#


def test_modes_of_different_structure():
    """A cart that rolls off a table: on the table it has a position and a speed, in the
    air two of each. It lands on a spot, where it only has a temperature."""
    height, edge, g = 0.8, 1.0, 9.81
    modes = {
        "table": lambda t, x, args: {"p": x["v"], "v": -args * x["v"]},
        "air": lambda t, x, args: (x[1], jnp.array([0.0, -g])),
        "spot": lambda t, x, args: -x,
    }
    leave = hj.Transition(
        "table",
        "air",
        lambda t, x, args: edge - x["p"],
        lambda t, x, args: (
            jnp.stack([x["p"], jnp.asarray(height)]),
            jnp.stack([x["v"], jnp.zeros(())]),
        ),
    )
    land = hj.Transition(
        "air",
        "spot",
        lambda t, x, args: x[0][1],
        lambda t, x, args: jnp.sum(x[1] ** 2) / 2 + 0 * x[0][:1],
    )
    system = hj.HybridAutomaton(modes, [leave, land])

    @jax.jit
    def solve(x0, friction):
        saveat = dfx.SaveAt(ts=[0.25, 0.6, 1.1])
        sol = hj.simulate(
            system,
            0.0,
            1.5,
            x0,
            "table",
            friction,
            stepsize_controller=_tight,
            saveat=saveat,
            **_small,
        )
        assert isinstance(sol.x1, hj.ModalState)
        heat = sol.x1["spot"][0]
        return heat, sol

    c, v0 = 0.5, 2.5
    x0 = {"p": jnp.asarray(0.0), "v": jnp.asarray(v0)}
    (heat, sol), (grads,) = jax.jit(
        lambda x0: (
            solve(x0, c),
            (jax.grad(lambda x0: solve(x0, c)[0])(x0),),
        )
    )(x0)

    def truth(v0):
        t_leave = -np.log(1 - c * edge / v0) / c
        v = v0 - c * edge
        t_land = t_leave + np.sqrt(2 * height / g)
        return t_leave, t_land, (v**2 + 2 * g * height) / 2 * np.exp(t_land - 1.5)

    t_leave, t_land, heat_truth = truth(v0)
    np.testing.assert_allclose(sol.events.t[:2], [t_leave, t_land], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(sol.modes, [0, 1, 2])
    np.testing.assert_allclose(heat, heat_truth, rtol=0, atol=1e-8)
    slope = (truth(v0 + 1e-6)[2] - truth(v0 - 1e-6)[2]) / 2e-6
    np.testing.assert_allclose(grads["v"], slope, rtol=0, atol=1e-7)
    # On the table; and in the other modes its entry holds zeros.
    v = v0 * np.exp(-c * 0.25)
    np.testing.assert_allclose(sol.xs["table"]["v"][0], v, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(sol.xs["table"]["v"][1:], 0)
    np.testing.assert_array_equal(sol.xs["air"][0][0], 0)
    np.testing.assert_array_equal(sol.xs["spot"][:2], 0)
    fall = height - g * (0.6 - t_leave) ** 2 / 2
    np.testing.assert_allclose(sol.xs["air"][0][1, 1], fall, rtol=0, atol=1e-9)
    assert sol.events.x_before["air"][0].shape == (8, 2)


class _Tree(hj.AbstractHybridSystem):
    """The bouncing ball, as nested containers, and with a mode that counts."""

    parameters: dict

    def flow(self, t, x, mode, args):
        height, (speed, extra) = x["height"], x["rest"]
        assert height.shape == () and extra.shape == (2, 3)
        fall = -self.parameters["gravity"][0]
        return {"height": speed, "rest": (fall, jnp.zeros_like(extra))}

    def guards(self, t, x, mode, args):
        return x["height"][None]

    def jump(self, t, x, mode, event, args):
        speed, extra = x["rest"]
        up = -args["restitution"] * speed
        after = {"height": x["height"], "rest": (up, extra + args["kick"])}
        count, flag = mode
        return after, (count + 1, ~flag)


def test_pytrees():
    system = _Tree({"gravity": (jnp.asarray(9.81), "a name")})
    args = {"restitution": jnp.asarray(0.8), "kick": jnp.ones((2, 3)), "other": None}
    x0 = {"height": jnp.asarray(1.0), "rest": (jnp.asarray(0.0), jnp.zeros((2, 3)))}
    mode0 = (jnp.asarray(5, jnp.int8), jnp.asarray(True))

    @eqx.filter_jit
    def solve(system, x0, args):
        saveat = dfx.SaveAt(ts=[0.3, 1.0])
        return hj.simulate(system, 0.0, 2.0, x0, mode0, args, saveat=saveat, **_small)

    sol = solve(system, x0, args)
    q, v = bouncing_ball(1.0, 0.8, 2.0)
    height, (speed, extra) = sol.x1["height"], sol.x1["rest"]
    np.testing.assert_allclose([height, speed], [q, v], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(extra, np.full((2, 3), 4.0))
    assert sol.mode1[0] == 9 and sol.mode1[0].dtype == jnp.int8
    assert sol.mode1[1] and sol.mode1[1].dtype == bool
    np.testing.assert_array_equal(sol.modes[0], [5, 7])
    np.testing.assert_array_equal(sol.modes[1], [True, True])
    assert sol.xs["rest"][1].shape == (2, 2, 3)
    assert jax.tree.structure(sol.events.x_after) == jax.tree.structure(x0)

    # Parameters, states and arguments of the gradient have the structures given.
    def loss(parameters, x0, args):
        return solve(parameters, x0, args).x1["height"]

    one = eqx.filter_grad(lambda p: loss(*p))((system, x0, args))
    flat = jnp.asarray
    plain = jax.grad(
        lambda g, h, e: hj.simulate(
            BouncingBall(g, e), 0.0, 2.0, jnp.stack([h, 0.0]), 0, **_small
        ).x1[0],
        (0, 1, 2),
    )(flat(9.81), flat(1.0), flat(0.8))
    got = (one[0].parameters["gravity"][0], one[1]["height"], one[2]["restitution"])
    np.testing.assert_allclose(got, plain, rtol=1e-12)


def test_neural_networks():
    """An MLP as the vector field, and one as the guard, against SciPy."""
    keys = jax.random.split(jax.random.key(0), 2)
    field = eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=keys[0])
    guard = eqx.nn.MLP(2, 1, 8, 1, activation=jnp.tanh, key=keys[1])

    class Field(eqx.Module):
        mlp: eqx.nn.MLP

        def __call__(self, t, x, args):
            return self.mlp(x) + jnp.stack([x[1], -4 * x[0]])

    class Guard(eqx.Module):
        mlp: eqx.nn.MLP

        def __call__(self, t, x, args):
            return 0.2 * self.mlp(x)[0] + x[0]

    flip = lambda t, x, args: -0.9 * x
    transition = hj.Transition("only", "only", Guard(guard), flip)
    system = hj.HybridAutomaton({"only": Field(field)}, [transition])
    x0 = jnp.array([1.0, 0.0])

    @eqx.filter_jit
    def solve(system, x0):
        return hj.simulate(
            system, 0.0, 2.0, x0, "only", stepsize_controller=_tight, **_small
        )

    sol = solve(system, x0)

    field_np = jax.jit(lambda x: Field(field)(0.0, x, None))
    guard_np = jax.jit(lambda x: Guard(guard)(0.0, x, None))
    event = lambda t, x: float(guard_np(x))
    event.terminal, event.direction = True, -1
    t, x, times = 0.0, np.asarray(x0), []
    while True:
        fun = lambda t, x: np.asarray(field_np(x))
        options = dict(rtol=1e-11, atol=1e-12, events=event)
        out = scipy.integrate.solve_ivp(fun, (t, 2.0), x, "DOP853", **options)
        t, x = out.t[-1], out.y[:, -1]
        if out.status == 0:
            break
        times.append(t)
        x = -0.9 * x
    assert len(times) >= 2
    np.testing.assert_allclose(sol.events.t[: len(times)], times, rtol=0, atol=1e-8)
    assert sol.events.count == len(times)
    np.testing.assert_allclose(sol.x1, x, rtol=0, atol=1e-8)

    # Gradients with respect to all weights, against central differences along one
    # direction in the space of the weights.
    loss = lambda system: jnp.sum(solve(system, x0).x1)
    grads = eqx.filter_grad(loss)(system)
    weights, static = eqx.partition(system, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(weights)
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=w.shape) for w in leaves]

    def along(step):
        moved = [w + step * d for w, d in zip(leaves, direction, strict=True)]
        return loss(eqx.combine(jax.tree.unflatten(treedef, moved), static))

    slope = (along(1e-5) - along(-1e-5)) / 2e-5
    got = sum(
        jnp.sum(g * d) for g, d in zip(jax.tree.leaves(grads), direction, strict=True)
    )
    np.testing.assert_allclose(got, slope, rtol=1e-6)


def test_time_dependent_guard_and_reset():
    # x' = 1, up to the falling line 2 - t; there it is set to -t. No error of the
    # solver: what is compared is the treatment of time.
    modes = {"up": lambda t, x, args: jnp.ones_like(x)}
    guard = lambda t, x, args: args - t - x[0]
    reset = lambda t, x, args: -t + 0 * x
    system = hj.HybridAutomaton(modes, [hj.Transition("up", "up", guard, reset)])

    def final(t0, level):
        x0 = jnp.array([0.5])
        sol = hj.simulate(system, t0, 3.0, x0, "up", level, **_small)
        return sol.x1[0], (sol.events.t, sol.events.count)

    solve = jax.jit(jax.value_and_grad(final, (0, 1), has_aux=True))
    # x = 0.5 + (t - t0) meets 2 - t at t = (1.5 + t0)/2, and then x = t - 2 t_1, which
    # meets it at t = 1 + t_1.
    t0, level = 0.25, 2.0
    (x1, (t, count)), grads = solve(t0, level)
    first = (level - 0.5 + t0) / 2
    second = level / 2 + first
    assert count == 2
    np.testing.assert_allclose(t[:2], [first, second], rtol=0, atol=1e-12)
    np.testing.assert_allclose(x1, 3.0 - 2 * second, rtol=0, atol=1e-12)
    np.testing.assert_allclose(grads, [-1.0, -2.0], rtol=0, atol=1e-10)


#
# Solvers
#


def _solve_ball(solver, controller, dt0, **options):
    options = dict(_small, max_steps=1024) | options
    return hj.simulate(
        BouncingBall(),
        0.0,
        2.0,
        _ball(),
        0,
        solver=solver,
        stepsize_controller=controller,
        dt0=dt0,
        **options,
    )


_times = bounce_times(1.0, 0.8, 3)
_end = bouncing_ball(1.0, 0.8, 2.0)


@pytest.mark.parametrize(
    "solver",
    (dfx.Dopri5(), dfx.Dopri8(), dfx.Bosh3(), dfx.HalfSolver(dfx.Heun())),
    ids=lambda s: type(s).__name__,
)
def test_adaptive_solvers(solver):
    sol = _solve_ball(solver, dfx.PIDController(rtol=1e-8, atol=1e-8), None)
    assert sol.events.count == 3
    np.testing.assert_allclose(sol.events.t[:3], _times, rtol=0, atol=1e-7)
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "solver, atol",
    ((dfx.Heun(), 1e-9), (dfx.Tsit5(), 1e-9), (dfx.Euler(), 0.05)),
    ids=lambda s: type(s).__name__,
)
def test_constant_steps(solver, atol):
    # Heun's method is exact for parabolas.
    sol = _solve_ball(
        solver, dfx.ConstantStepSize(), 0.01, saveat=dfx.SaveAt(steps=True)
    )
    assert sol.events.count == 3
    np.testing.assert_allclose(sol.events.t[:3], _times, rtol=0, atol=atol)
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=20 * atol)
    # The grid goes on where it was: events are between its points.
    ts = np.asarray(sol.ts)[np.isfinite(sol.ts)]
    grid = np.append(0.01 * np.arange(1, 201), sol.events.t[:3])
    np.testing.assert_allclose(ts, np.sort(grid), rtol=0, atol=1e-12)


def test_step_to():
    given = np.array([0.0, 0.2, 0.5, 0.9, 1.0, 1.6, 2.0])
    sol = _solve_ball(
        dfx.Heun(), dfx.StepTo(ts=given), None, saveat=dfx.SaveAt(steps=True)
    )
    assert sol.events.count == 3
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-9)
    ts = np.asarray(sol.ts)[np.isfinite(sol.ts)]
    grid = np.sort(np.append(given[1:], _times))
    np.testing.assert_allclose(ts, grid, rtol=0, atol=1e-12)


def test_clip_controller():
    given = np.array([0.33, 1.234])
    controller = dfx.ClipStepSizeController(_tight, step_ts=given)
    sol = _solve_ball(dfx.Tsit5(), controller, None, saveat=dfx.SaveAt(steps=True))
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-8)
    ts = np.asarray(sol.ts)
    for t in (*given, *_times):
        assert np.abs(ts - t).min() < 1e-9


def test_stiff_contact():
    # A hopper on a spring with a time scale of 1 ms, by an implicit solver.
    k, z0 = 1e6, 1.05
    root_finder = dfx.VeryChord(rtol=1e-10, atol=1e-10)
    sol = hj.simulate(
        SpringHopper(stiffness=k),
        0.0,
        0.3,
        jnp.array([z0, 0.0]),
        0,
        solver=dfx.Kvaerno5(root_finder=root_finder),
        max_steps=512,
        max_events=8,
    )
    # Falls to 1, then on the spring: z = 1 - g/w² + ..., up again, by symmetry.
    g, w = 9.81, np.sqrt(k)
    fall, v = np.sqrt(2 * (z0 - 1) / g), -np.sqrt(2 * g * (z0 - 1))
    offset = g / w**2
    # z - 1 + offset = offset cos(w s) + (v/w) sin(w s), zero deflection again at s:
    phase = np.arctan2(v / w, offset)
    contact = (2 * np.pi + 2 * phase) / w
    np.testing.assert_allclose(
        sol.events.t[:2], [fall, fall + contact], rtol=0, atol=1e-7
    )
    s = 0.3 - fall - contact
    truth = [1.0 - v * s - g * s**2 / 2, -v - g * s]
    assert sol.events.count == 2
    np.testing.assert_allclose(sol.x1, truth, rtol=0, atol=1e-5)


#
# What comes back
#


def _two_balls(**options):
    return hj.simulate(
        BouncingBall(),
        0.0,
        2.0,
        _ball(),
        0,
        stepsize_controller=_tight,
        **(_small | options),
    )


def test_saveat():
    q = lambda t: bouncing_ball(1.0, 0.8, t)
    ts = np.array([0.0, 0.2, 0.7, 1.5, 2.0])
    heights = dfx.SubSaveAt(ts=ts, fn=lambda t, x, args: x[0])
    ends = dfx.SubSaveAt(t0=True, t1=True)
    steps = dfx.SubSaveAt(t0=True, steps=True)
    none = dfx.SubSaveAt(t1=True, fn=lambda t, x, args: {"time": t, "args": args})
    sol = _two_balls(
        saveat=dfx.SaveAt(subs={"a": heights, "b": (ends, steps), "c": none}),
        args=jnp.asarray(7.0),
    )
    np.testing.assert_array_equal(sol.ts["a"], ts)
    np.testing.assert_allclose(sol.xs["a"], [q(t)[0] for t in ts], atol=1e-9)
    np.testing.assert_array_equal(sol.ts["b"][0], [0.0, 2.0])
    np.testing.assert_allclose(sol.xs["b"][0], [q(0.0), q(2.0)], atol=1e-9)
    assert sol.xs["c"] == {"time": jnp.array([2.0]), "args": jnp.array([7.0])}
    t, x = np.asarray(sol.ts["b"][1]), np.asarray(sol.xs["b"][1])
    used = np.isfinite(t)
    assert used.sum() == sol.stats["num_accepted_steps"] + 1
    assert (np.diff(t[used]) > 0).all() and t[0] == 0 and t[used][-1] == 2
    # States at events are those after the jump; unused slots hold no number.
    np.testing.assert_allclose(x[used], [q(t) for t in t[used] + 1e-13], atol=1e-8)
    assert np.isnan(x[~used]).all() and np.isposinf(t[~used]).all()
    for time in _times:
        assert np.abs(t - time).min() < 1e-12


def test_saveat_defaults():
    sol = _two_balls()
    assert sol.ts.shape == (1,) and sol.xs.shape == (1, 2) and sol.modes.shape == (1,)
    np.testing.assert_array_equal(sol.xs[0], sol.x1)
    both = _two_balls(saveat=dfx.SaveAt(t0=True, t1=True, ts=[0.5]))
    np.testing.assert_array_equal(both.ts, [0.0, 0.5, 2.0])
    np.testing.assert_allclose(both.xs[0], [1.0, 0.0])


def test_evaluate():
    sol = _two_balls()
    ts = np.linspace(0, 2, 201).reshape(3, 67)
    xs = sol.evaluate(ts)
    assert xs.shape == (3, 67, 2)
    truth = [bouncing_ball(1.0, 0.8, t) for t in ts.ravel()]
    np.testing.assert_allclose(xs.reshape(-1, 2), truth, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(sol.evaluate(2.0), sol.x1)
    # Right-continuous at events, whose left limit is in the log.
    t = sol.events.t[:3]
    np.testing.assert_allclose(sol.evaluate(t), sol.events.x_after[:3], atol=1e-12)
    near = sol.evaluate(t - 1e-9)
    np.testing.assert_allclose(near, sol.events.x_before[:3], rtol=0, atol=1e-7)
    near = sol.evaluate(t + 1e-9)
    np.testing.assert_allclose(near, sol.events.x_after[:3], rtol=0, atol=1e-7)
    # Nothing is known outside.
    assert np.isnan(sol.evaluate(np.array([-0.01, 2.01, np.nan]))).all()
    # Its derivative with respect to time is the vector field.
    rate = jax.jacfwd(sol.evaluate)(1.3)
    np.testing.assert_allclose(rate, [sol.evaluate(1.3)[1], -9.81], rtol=1e-12)


def test_whole_solution_through_transformations():
    # With `jax.jit` and `jax.vmap`, not their filtered forms.
    solve = lambda h: hj.simulate(
        BouncingBall(), 0.0, 2.0, _ball(h), 0, stepsize_controller=_tight, **_small
    )
    heights = np.array([0.6, 0.9, 1.4])
    sols = jax.jit(jax.vmap(solve))(heights)
    ts = jnp.array([0.1, 1.0, 1.9])
    xs = jax.vmap(lambda sol: sol.evaluate(ts))(sols)
    for i, h in enumerate(heights):
        truth = [bouncing_ball(h, 0.8, t) for t in np.asarray(ts)]
        np.testing.assert_allclose(xs[i], truth, rtol=0, atol=1e-9)
        times = bounce_times(h, 0.8, 8)
        times = np.where(times < 2, times, np.inf)
        np.testing.assert_allclose(sols.events.t[i], times, rtol=0, atol=1e-9)
    # What comes out of a compiled function can go into another one.
    one = jax.tree.map(lambda a: a[1], sols)
    again = jax.jit(lambda sol: (sol, sol.evaluate(1.0)))(one)
    np.testing.assert_allclose(again[1], xs[1, 1], rtol=0, atol=1e-12)
    assert again[0].result == hj.RESULTS.successful


def test_vmap_over_everything():
    def solve(t0, t1, x0, args, gravity):
        system = BouncingBall(gravity=gravity, restitution=0.7)
        sol = hj.simulate(
            system, t0, t1, x0, 0, args, stepsize_controller=_tight, **_small
        )
        return sol.x1, sol.events.t

    n = 6
    rng = np.random.default_rng(0)
    t0 = rng.uniform(-1, 1, n)
    length = rng.uniform(0.1, 1.4, n)
    x0 = np.stack([rng.uniform(0.5, 1.5, n), rng.uniform(-1, 1, n)], axis=1)
    gravity = rng.uniform(5, 12, n)
    args = (t0, t0 + length, x0, np.zeros(n), gravity)
    x1, t = jax.jit(jax.vmap(solve))(*args)
    for i in range(n):
        q, v = x0[i]
        options = dict(speed=v, gravity=gravity[i])
        truth = bouncing_ball(q, 0.7, length[i], **options)
        np.testing.assert_allclose(x1[i], truth, rtol=0, atol=1e-8)
        times = bounce_times(q, 0.7, 8, **options)
        times = np.where(times < length[i], t0[i] + times, np.inf)
        np.testing.assert_allclose(t[i], times, rtol=0, atol=1e-9)
    # Only the ends of the interval.
    x1, _ = jax.jit(jax.vmap(solve, in_axes=(0, 0, None, None, None)))(
        t0, t0 + length, jnp.array([1.0, 0.0]), 0.0, 9.81
    )
    truth = [bouncing_ball(1.0, 0.7, s) for s in length]
    np.testing.assert_allclose(x1, truth, rtol=0, atol=1e-8)


#
# Compilation
#


class _Counted(hj.AbstractHybridSystem):
    """Counts how often Python runs its vector field."""

    calls: list = eqx.field(static=True)
    gravity: jax.Array

    def flow(self, t, x, mode, args):
        self.calls.append(1)
        return jnp.stack([x[1], -self.gravity * args])

    def guards(self, t, x, mode, args):
        return x[:1]

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -0.8 * x[1]]), mode


class _Calls(list):
    """A list that can be a static field: hashable, and equal to itself only."""

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


def test_one_trace():
    calls = _Calls()

    def solve(t0, t1, x0, args, rtol, gravity, dt0):
        controller = dfx.PIDController(rtol=rtol, atol=1e-3 * rtol)
        system = _Counted(calls, jnp.asarray(gravity))
        return hj.simulate(
            system,
            t0,
            t1,
            x0,
            0,
            args,
            stepsize_controller=controller,
            dt0=dt0,
            **_small,
        )

    solve(0.0, 2.0, jnp.array([1.0, 0.0]), 1.0, 1e-6, 9.81, 0.01)
    first = len(calls)
    assert first > 0
    # Eager calls with other values: the compiled program serves them all.
    one = solve(0.5, 1.5, jnp.array([0.7, 0.1]), 1.0, 1e-8, 9.0, 0.02)
    two = solve(0.0, 2.0, jnp.array([1.2, 0.0]), 1.0, 1e-9, 9.81, 0.03)
    assert len(calls) == first
    np.testing.assert_allclose(two.x1, bouncing_ball(1.2, 0.8, 2.0), atol=1e-6)
    truth = bouncing_ball(0.7, 0.8, 1.0, speed=0.1, gravity=9.0)
    np.testing.assert_allclose(one.x1, truth, rtol=0, atol=1e-6)
    # As many steps as the tolerance needs, so it did arrive.
    loose = solve(0.0, 2.0, jnp.array([1.2, 0.0]), 1.0, 1e-2, 9.81, 0.03)
    assert len(calls) == first
    assert loose.result == hj.RESULTS.successful


def test_one_trace_of_gradients():
    calls = _Calls()

    @jax.jit
    def grad(x0, gravity):
        def loss(x0, gravity):
            system = _Counted(calls, gravity)
            return hj.simulate(system, 0.0, 2.0, x0, 0, 1.0, **_small).x1[0]

        return jax.grad(loss, (0, 1))(x0, gravity)

    grad(jnp.array([1.0, 0.0]), jnp.asarray(9.81))
    first = len(calls)
    grad(jnp.array([1.3, 0.2]), jnp.asarray(9.0))
    assert len(calls) == first


def test_progress_meter(capfd):
    sol = _two_balls(progress_meter=dfx.TextProgressMeter(minimum_increase=0.01))
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert "0.00%" in out and "100.00%" in out
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-8)


#
# Precision
#


def _check_float32(sol):
    dtypes = {a.dtype for a in jax.tree.leaves(sol) if jnp.issubdtype(a, jnp.inexact)}
    assert dtypes == {jnp.dtype(jnp.float32)}
    assert sol.result == hj.RESULTS.successful
    assert sol.events.count == 3
    np.testing.assert_allclose(sol.events.t[:3], _times, rtol=0, atol=1e-5)
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-4)


def _solve_float32(h):
    x0 = jnp.stack([h, jnp.zeros_like(h)])
    system = BouncingBall(np.float32(9.81), np.float32(0.8))
    controller = dfx.PIDController(rtol=1e-5, atol=1e-5)
    return hj.simulate(
        system, 0.0, 2.0, x0, 0, stepsize_controller=controller, **_small
    )


def test_float32():
    # With `jax_enable_x64`, and a state of float32.
    def loss(h):
        sol = _solve_float32(h)
        return sol.x1[0], sol

    (_, sol), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.float32(1.0))
    _check_float32(sol)
    assert grad.dtype == jnp.float32
    step = 1e-6
    high, low = (bouncing_ball(1.0 + d, 0.8, 2.0)[0] for d in (step, -step))
    np.testing.assert_allclose(grad, (high - low) / (2 * step), rtol=1e-4)


def test_without_x64():
    code = """
import jax
import jax.numpy as jnp
from tests.test_systems import _check_float32, _solve_float32

assert not jax.config.jax_enable_x64
_check_float32(_solve_float32(jnp.asarray(1.0)))
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert run.returncode == 0, run.stdout
