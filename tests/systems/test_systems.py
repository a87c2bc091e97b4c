"""Kinds of systems, states, solvers, precisions and outputs: values and derivatives."""

import functools

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from hybridjax.models import BouncingBall, spring_hopper
from jax.flatten_util import ravel_pytree

from ..helpers import (
    ball_outcome,
    both_jacobians,
    bounce_times,
    bouncing_ball,
    error,
    value_and_jacobian,
)


_tight = dfx.PIDController(rtol=1e-10, atol=1e-10)
_simulate = functools.partial(
    hj.simulate, stepsize_controller=_tight, max_steps=128, max_events=8
)


#
# States
#


def test_modes_of_different_structure():
    """A cart that rolls off a table: on the table it has a position and a speed, in the
    air two of each. It lands on a spot, where it only has a temperature."""
    height, edge, g = 0.8, 1.0, 9.81
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
    modes = {
        "table": lambda t, x, args: {"p": x["v"], "v": -args * x["v"]},
        "air": lambda t, x, args: (x[1], jnp.array([0.0, -g])),
        "spot": lambda t, x, args: -x,
    }
    system = hj.HybridAutomaton(modes, [leave, land])

    def solve(z):
        v0, friction = z
        x0 = {"p": jnp.zeros(()), "v": v0}
        saveat = dfx.SaveAt(ts=[0.25, 0.6, 1.1])
        sol = _simulate(system, 0.0, 1.5, x0, "table", friction, saveat=saveat)
        assert isinstance(sol.x1, hj.ModalState)
        speeds = sol.events.x_before["air"][1][1]
        return jnp.concatenate([sol.x1["spot"], sol.events.t[:2], speeds]), sol

    def truth(z):
        v0, c = z
        t_leave = -jnp.log(1 - c * edge / v0) / c
        v, drop = v0 - c * edge, jnp.sqrt(2 * height / g)
        t_land = t_leave + drop
        heat = (v**2 + 2 * g * height) / 2 * jnp.exp(t_land - 1.5)
        return jnp.stack([heat, t_leave, t_land, v, -g * drop])

    z = jnp.array([2.5, 0.5])
    value, forward, reverse, sol = both_jacobians(solve)(z)
    exact, expected = value_and_jacobian(truth)(z)
    np.testing.assert_allclose(value, exact, rtol=0, atol=1e-8)
    np.testing.assert_allclose(forward, expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(reverse, expected, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(sol.modes, [0, 1, 2])
    # On the table; and in the other modes its entry holds zeros.
    v = z[0] * np.exp(-z[1] * 0.25)
    np.testing.assert_allclose(sol.xs["table"]["v"][0], v, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(sol.xs["table"]["v"][1:], 0)
    np.testing.assert_array_equal(sol.xs["air"][0][0], 0)
    np.testing.assert_array_equal(sol.xs["spot"][:2], 0)
    fall = height - g * (0.6 - value[1]) ** 2 / 2
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
    x0 = {"height": jnp.asarray(1.0), "rest": (jnp.asarray(0.3), jnp.zeros((2, 3)))}
    mode0 = (jnp.asarray(5, jnp.int8), jnp.asarray(True))

    @eqx.filter_jit
    @functools.partial(eqx.filter_value_and_grad, has_aux=True)
    def solve(inputs):
        system, x0, args = inputs
        saveat = dfx.SaveAt(ts=[0.3, 1.0])
        sol = _simulate(system, 0.0, 2.0, x0, mode0, args, saveat=saveat)
        speed, extra = sol.x1["rest"]
        return sol.x1["height"] + 2 * speed + 3 * extra[1, 0], sol

    (_, sol), grad = solve((system, x0, args))
    bounces = 3
    z = jnp.array([1.0, 0.3, 9.81, 0.8])
    truth = ball_outcome(z, bounces)
    height, (speed, extra) = sol.x1["height"], sol.x1["rest"]
    np.testing.assert_allclose([height, speed], truth[:2], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(extra, np.full((2, 3), bounces))
    assert sol.mode1[0] == 5 + bounces and sol.mode1[0].dtype == jnp.int8
    assert not sol.mode1[1] and sol.mode1[1].dtype == bool
    # The first bounce is at 0.48, the next one at 1.2.
    np.testing.assert_array_equal(sol.modes[0], [5, 6])
    np.testing.assert_array_equal(sol.modes[1], [True, False])
    assert sol.xs["rest"][1].shape == (2, 2, 3)
    assert jax.tree.structure(sol.events.x_after) == jax.tree.structure(x0)

    # Gradients have the structure of the system, the state and the arguments.
    weights = jnp.array([1.0, 2.0])
    expected = jax.grad(lambda z: weights @ ball_outcome(z, bounces)[:2])(z)
    of_system, of_x0, of_args = grad
    assert isinstance(of_system, _Tree)
    got = (
        of_x0["height"],
        of_x0["rest"][0],
        of_system.parameters["gravity"][0],
        of_args["restitution"],
    )
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    one = np.zeros((2, 3))
    one[1, 0] = 3
    np.testing.assert_allclose(of_x0["rest"][1], one, rtol=1e-12)
    np.testing.assert_allclose(of_args["kick"], bounces * one, rtol=1e-12)


@pytest.mark.thorough
def test_neural_networks():
    """MLPs as the vector field, in a guard that closes over one, and in `args` for a
    reset: the solution against SciPy, gradients against differences of it."""
    nets = tuple(
        eqx.nn.MLP(2, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(i))
        for i in range(3)
    )
    weights, static = eqx.partition(nets, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    x0, t1 = jnp.array([1.0, 0.0]), 4.0

    class Field(eqx.Module):
        net: eqx.nn.MLP

        def __call__(self, t, x, args):
            return self.net(x) + jnp.stack([x[1], -4 * x[0]])

    def guard(net, x):
        return x[0] + 0.1 * jnp.sum(net(x))

    def reset(net, x):
        return 0.1 * net(x) - 0.9 * x

    def loss(flat):
        field, closed, passed = eqx.combine(unravel(flat), static)
        # A module is a pytree; of one in `args` only the arrays are traced.
        arrays, rest = eqx.partition(passed, eqx.is_array)
        transition = hj.Transition(
            "only",
            "only",
            lambda t, x, args: guard(closed, x),
            lambda t, x, args: reset(eqx.combine(args, rest), x),
        )
        system = hj.HybridAutomaton({"only": Field(field)}, [transition])
        sol = _simulate(system, 0.0, t1, x0, "only", arrays, max_steps=512)
        return sol.x1 @ jnp.array([1.0, -2.0]) + sol.events.t[1], sol

    # Along some directions through all weights, a stencil of sixth order.
    directions = jax.random.normal(jax.random.key(7), (3, flat.size))
    shifts = 4e-3 * jnp.array([-3, -2, -1, 1, 2, 3])
    moved = flat[None, None] + shifts[:, None, None] * directions[None]
    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, sol), grad = run(flat)
    values = [run(point)[0][0] for point in moved.reshape(-1, flat.size)]

    field, closed, passed = nets
    field_np = jax.jit(lambda x: Field(field)(0.0, x, None))
    guard_np = jax.jit(lambda x: guard(closed, x))

    def event(t, x):
        return float(guard_np(x))

    event.terminal, event.direction = True, -1
    t, x, times = 0.0, np.asarray(x0), []
    while True:
        out = scipy.integrate.solve_ivp(
            lambda t, x: np.asarray(field_np(x)),
            (t, t1),
            x,
            "DOP853",
            rtol=1e-11,
            atol=1e-12,
            events=event,
        )
        t, x = out.t[-1], out.y[:, -1]
        if out.status == 0:
            break
        times.append(t)
        x = np.asarray(reset(passed, x))
    assert len(times) == sol.events.count >= 2
    np.testing.assert_allclose(sol.events.t[: len(times)], times, rtol=0, atol=1e-8)
    np.testing.assert_allclose(sol.x1, x, rtol=0, atol=1e-8)

    stencil = jnp.array([-1, 9, -45, 45, -9, 1]) / 60 / 4e-3
    slopes = stencil @ jnp.asarray(values).reshape(6, 3)
    np.testing.assert_allclose(directions @ grad, slopes, rtol=1e-6)
    # Every array of every network matters.
    for leaf in jax.tree.leaves(unravel(grad)):
        assert np.all(leaf != 0)


#
# Solvers
#


_times = bounce_times(1.0, 0.8, 3)
_end = bouncing_ball(1.0, 0.8, 2.0)
_solve_ball = functools.partial(
    hj.simulate,
    BouncingBall(),
    0.0,
    2.0,
    jnp.array([1.0, 0.0]),
    0,
    max_steps=1024,
    max_events=8,
)


def _used_steps(sol):
    ts = np.asarray(sol.ts)
    return ts[np.isfinite(ts)]


def test_clip_controller_and_progress_meter(capfd):
    # The solver is one that wraps another, and of no Runge-Kutta class.
    given = np.array([0.33, 1.234])
    sol = _solve_ball(
        solver=dfx.HalfSolver(dfx.Heun()),
        stepsize_controller=dfx.ClipStepSizeController(
            _tight, step_ts=jnp.asarray(given)
        ),
        saveat=dfx.SaveAt(steps=True),
        progress_meter=dfx.TextProgressMeter(minimum_increase=0.01),
    )
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-8)
    ts = _used_steps(sol)
    for t in (*given, *_times):
        assert np.abs(ts - t).min() < 1e-9
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert "0.00%" in out and "100.00%" in out


def test_step_to():
    # The method is exact for parabolas, however long the steps.
    given = np.array([0.0, 0.2, 0.5, 0.9, 1.0, 1.6, 2.0])
    sol = _solve_ball(
        solver=dfx.Dopri8(),
        stepsize_controller=dfx.StepTo(ts=jnp.asarray(given)),
        saveat=dfx.SaveAt(steps=True),
    )
    assert sol.events.count == 3
    np.testing.assert_allclose(sol.x1, _end, rtol=0, atol=1e-9)
    grid = np.sort(np.append(given[1:], _times))
    np.testing.assert_allclose(_used_steps(sol), grid, rtol=0, atol=1e-12)


def test_constant_steps():
    # Euler's method has large errors: those of the same method, written down again.
    dt, g, e = 0.01, 9.81, 0.8
    t, q, v, k, times = 0.0, 1.0, 0.0, 0, []
    while k < 200:
        h = (k + 1) * dt - t
        if q + h * v > 0:
            t, q, v, k = (k + 1) * dt, q + h * v, v - g * h, k + 1
        else:
            h = -q / v
            t, q, v = t + h, 0.0, -e * (v - g * h)
            times.append(t)
    sol = _solve_ball(
        solver=dfx.Euler(),
        stepsize_controller=dfx.ConstantStepSize(),
        dt0=dt,
        saveat=dfx.SaveAt(steps=True),
    )
    assert sol.events.count == len(times) == 3
    np.testing.assert_allclose(sol.events.t[:3], times, rtol=0, atol=1e-9)
    np.testing.assert_allclose(sol.x1, [q, v], rtol=0, atol=1e-8)
    # The grid goes on where it was: events are between its points.
    grid = np.sort(np.append(dt * np.arange(1, 201), times))
    np.testing.assert_allclose(_used_steps(sol), grid, rtol=0, atol=1e-9)


@pytest.mark.thorough
def test_stiff_contact_with_an_implicit_solver():
    # A hopper on a spring with a time scale of 1 ms; `z` is height and stiffness.
    t1, g = 0.3, 9.81

    def solve(z):
        sol = hj.simulate(
            spring_hopper(stiffness=z[1]),
            0.0,
            t1,
            jnp.stack([z[0], 0 * z[0]]),
            solver=dfx.Kvaerno5(),
            stepsize_controller=_tight,
            max_steps=1024,
            max_events=4,
        )
        return jnp.concatenate([sol.x1, sol.events.t[:2]]), sol.events.count

    def truth(z):
        # Falls to 1, then z = 1 - h + h cos(w s) + (v/w) sin(w s) on the spring, with
        # h = g/w², and up again.
        fall, v = jnp.sqrt(2 * (z[0] - 1) / g), -jnp.sqrt(2 * g * (z[0] - 1))
        w = jnp.sqrt(z[1])
        contact = 2 * (jnp.pi + jnp.arctan2(v / w, g / w**2)) / w
        s = t1 - fall - contact
        rise = 1 - v * s - g * s**2 / 2
        return jnp.stack([rise, -v - g * s, fall, fall + contact])

    run, exactly = both_jacobians(solve), value_and_jacobian(truth)
    for z in jnp.array([[1.05, 1e6], [1.06, 3e5]]):
        value, forward, reverse, count = run(z)
        assert count == 2
        exact, expected = exactly(z)
        np.testing.assert_allclose(value, exact, rtol=0, atol=1e-8)
        for k in range(2):
            assert error(forward[:, k], expected[:, k]) < 1e-6
            assert error(reverse[:, k], forward[:, k]) < 1e-10


#
# What comes back
#


def test_saveat():
    q = lambda t: bouncing_ball(1.0, 0.8, t)
    ts = np.array([0.0, 0.2, 0.7, 1.5, 2.0])
    subs = {
        "heights": dfx.SubSaveAt(ts=jnp.asarray(ts), fn=lambda t, x, args: x[0]),
        "ends": (
            dfx.SubSaveAt(t0=True, t1=True),
            dfx.SubSaveAt(t0=True, t1=True, ts=[0.5]),
        ),
        "steps": dfx.SubSaveAt(t0=True, steps=True),
        "tree": dfx.SubSaveAt(t1=True, fn=lambda t, x, args: {"t": t, "args": args}),
    }
    sol = _simulate(
        BouncingBall(),
        0.0,
        2.0,
        jnp.array([1.0, 0.0]),
        0,
        jnp.asarray(7.0),
        saveat=dfx.SaveAt(subs=subs),
    )
    np.testing.assert_array_equal(sol.ts["heights"], ts)
    np.testing.assert_allclose(sol.xs["heights"], [q(t)[0] for t in ts], atol=1e-9)
    for k, given in enumerate(([0.0, 2.0], [0.0, 0.5, 2.0])):
        np.testing.assert_array_equal(sol.ts["ends"][k], given)
        truth = [q(t) for t in given]
        np.testing.assert_allclose(sol.xs["ends"][k], truth, atol=1e-9)
    assert sol.xs["tree"] == {"t": jnp.array([2.0]), "args": jnp.array([7.0])}
    t, x = np.asarray(sol.ts["steps"]), np.asarray(sol.xs["steps"])
    used = np.isfinite(t)
    assert used.sum() == sol.stats["num_accepted_steps"] + 1
    assert (np.diff(t[used]) > 0).all() and t[0] == 0 and t[used][-1] == 2
    # States at events are those after the jump; unused slots hold no number.
    np.testing.assert_allclose(x[used], [q(t) for t in t[used] + 1e-13], atol=1e-8)
    assert np.isnan(x[~used]).all() and np.isposinf(t[~used]).all()
    for time in _times:
        assert np.abs(t - time).min() < 1e-12


@pytest.mark.thorough
def test_random_keys():
    # They have a dtype of their own, no tangents, and do no harm.
    def height(x0, key):
        gust = lambda key: jax.random.normal(key)
        system = hj.HybridAutomaton(
            {"flying": lambda t, x, args: jnp.stack([x[1], gust(args) - 9.81])},
            [
                hj.Transition(
                    *("flying", "flying", lambda t, x, args: x[0]),
                    lambda t, x, args: jnp.stack([x[0], -0.8 * x[1] + gust(key)]),
                )
            ],
        )
        return hj.simulate(system, 0.0, 0.7, x0, "flying", key).x1[0]

    def expected(x0, key):
        gust = jax.random.normal(key)
        g = 9.81 - gust
        t = (x0[1] + jnp.sqrt(x0[1] ** 2 + 2 * g * x0[0])) / g
        speed = -0.8 * (x0[1] - g * t) + gust
        return speed * (0.7 - t) - g * (0.7 - t) ** 2 / 2

    x0, keys = jnp.array([1.0, 0.2]), jax.random.split(jax.random.key(0), 3)
    for key in keys:
        got, want = (jax.value_and_grad(f)(x0, key) for f in (height, expected))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-7)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
    many = jax.vmap(height, (None, 0))(x0, keys)
    np.testing.assert_allclose(many, [expected(x0, k) for k in keys], rtol=1e-7)


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

    def solve(x0, gravity, t0, t1, args, rtol, dt0):
        controller = dfx.PIDController(rtol=rtol, atol=1e-3 * rtol)
        system = _Counted(calls, gravity)
        sol = _simulate(
            system, t0, t1, x0, 0, args, stepsize_controller=controller, dt0=dt0
        )
        return sol.x1[0]

    # Eager: under a `jax.jit` of the user's own there can be no other trace.
    run = jax.value_and_grad(solve, (0, 1))
    one = jnp.ones(())
    run(jnp.array([1.0, 0.0]), 9.81 * one, 0.0, 2.0, one, 1e-6, 0.01)
    first = len(calls)
    assert first > 0
    # The compiled program serves other values of everything.
    for z, rest in (
        ([0.7, 0.1, 9.0], (0.5, 2.0, one, 1e-8, 0.02)),
        ([1.2, 0.2, 5.0], (0.0, 1.5, 2 * one, 1e-9, 0.03)),
    ):
        z = jnp.array(z)
        value, grad = run(z[:2], z[2], *rest)
        t0, t1, factor, _, _ = rest
        outcome = lambda z: ball_outcome(
            jnp.stack([z[0], z[1], factor * z[2], 0.8]),  # noqa: B023
            2,
            t1 - t0,  # noqa: B023
        )
        truth = bouncing_ball(z[0], 0.8, t1 - t0, z[1], factor * z[2])
        np.testing.assert_allclose(outcome(z)[:2], truth, rtol=1e-12)
        expected = jax.grad(lambda z: outcome(z)[0])(z)  # noqa: B023
        np.testing.assert_allclose(value, truth[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.append(*grad), expected, rtol=1e-6)
    assert len(calls) == first


#
# Precision
#


def _float32(z):
    controller = dfx.PIDController(rtol=1e-5, atol=1e-5)
    system = BouncingBall(z[2], z[3])
    sol = _simulate(system, 0.0, 2.0, z[:2], 0, stepsize_controller=controller)
    return jnp.concatenate([sol.x1, sol.events.t[:3]]), sol


def _dtypes(tree):
    leaves = jax.tree.leaves(tree)
    return {v.dtype for v in leaves if jnp.issubdtype(v.dtype, jnp.inexact)}


def test_float32():
    z = jnp.array([1.0, 0.3, 9.81, 0.8], jnp.float32)
    float32 = {jnp.dtype(jnp.float32)}
    # With `jax_enable_x64`, and a state of float32.
    value = jax.eval_shape(_float32, z)
    assert _dtypes(value) == float32
    # Without it.
    with jax.enable_x64(False):
        value, forward, reverse, sol = both_jacobians(_float32)(z)
    assert _dtypes((value, forward, reverse, sol)) == float32
    assert sol.result == hj.RESULTS.successful
    # As exact as its tolerance: right for inputs that are off by so much.
    fn = functools.partial(ball_outcome, bounces=3)
    z = z.astype(jnp.float64)
    exact, first, second = jax.jit(
        lambda z: (fn(z), jax.jacfwd(fn)(z), jax.hessian(fn)(z))
    )(z)
    off = 1e-5 * z
    assert np.all(np.abs(value - exact) < np.abs(first) @ off)
    for got in (forward, reverse):
        assert np.all(np.abs(got - first) <= 2 * np.abs(second) @ off)
