"""`hj.Project`: events without root finding."""

import re

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import both_jacobians, error, value_and_jacobian


_tight = dfx.PIDController(rtol=1e-11, atol=1e-11)
_start = jnp.asarray([-0.4, -0.15, 0.3])


def _order(eps, errors):
    """The slope of a straight line through the logarithms."""
    return np.polyfit(np.log(eps), np.log(errors), 1)[0]


#
# Accuracy
#


@pytest.fixture(scope="module")
def octants():
    """The state at 0.5 and the crossing times, and their derivatives, exactly."""

    def exactly(x0):
        x, times = models.affine_octants_flow(jnp.asarray(0.5), x0)
        return jnp.concatenate([x, times])

    return value_and_jacobian(exactly)


def _solve(event_method, x0, max_steps=256, stepsize_controller=_tight, **options):
    return hj.simulate(
        models.affine_octants(),
        0.0,
        0.5,
        x0,
        event_method=event_method,
        stepsize_controller=stepsize_controller,
        max_steps=max_steps,
        **options,
    )


def _octants_by(event_method, x0):
    sol = _solve(event_method, x0, max_steps=128, max_events=3)
    return jnp.concatenate([sol.x1, sol.events.t]), sol.events.event


@pytest.mark.thorough
def test_affine_flow_is_a_flow(octants):
    # The matrix exponentials against a solver that knows nothing of them, between the
    # crossings: the exact state solves the equation, in its octant.
    value, _ = octants(_start)
    times = [0.0, *value[3:], 0.5]
    assert times == sorted(times)
    system = models.affine_octants()
    b, x = np.array([-1, -1, -1]), _start
    for surface, begin, end in zip((1, 2, 0, None), times[:-1], times[1:], strict=True):
        sol = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, x, b: system.vector_field(t, x, b, None)),
            dfx.Dopri8(),
            begin,
            end,
            None,
            x,
            args=jnp.asarray(b),
            stepsize_controller=dfx.PIDController(rtol=1e-13, atol=1e-13),
        )
        assert sol.ys is not None
        x = sol.ys[0]
        if surface is not None:
            assert abs(x[surface]) < 1e-12
            b = np.where(np.arange(3) == surface, 1, b)
    np.testing.assert_allclose(x, value[:3], rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_locate_on_the_affine_system(octants):
    run = both_jacobians(lambda x0: _octants_by(hj.Locate(), x0))
    for shift in np.linspace(-0.03, 0.03, 7):
        x0 = _start + shift * jnp.asarray([1.0, -0.5, 2.0])
        value, forward, reverse, event = run(x0)
        expected, jacobian = octants(x0)
        np.testing.assert_array_equal(event, [1, 2, 0])
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(forward, jacobian, rtol=0, atol=1e-9)
        np.testing.assert_allclose(reverse, forward, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_order_in_eps(octants):
    # States, event times and all derivatives: of second order.
    expected, jacobian = octants(_start)

    @jax.jit
    def run(eps):
        fn = lambda x0: _octants_by(hj.Project(eps), x0)
        value, push, event = jax.linearize(fn, _start, has_aux=True)
        forward = jax.vmap(push, out_axes=1)(jnp.eye(3))
        pull = jax.linear_transpose(push, _start)
        (reverse,) = jax.vmap(pull)(jnp.eye(6))
        return value, forward, reverse, event

    eps = 10 ** np.linspace(-4, -2, 9)
    values, forward, reverse, events = jax.vmap(run)(eps)
    np.testing.assert_array_equal(events, np.tile([1, 2, 0], (9, 1)))
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-12)
    errors = np.max(np.abs(values - expected[None]), axis=1)
    derivatives = np.max(np.abs(forward - jacobian[None]), axis=(1, 2))
    assert 1.95 < _order(eps, errors) < 2.1
    assert 1.95 < _order(eps, derivatives) < 2.1
    assert errors[0] < 2e-8 and derivatives[0] < 2e-7


@pytest.mark.thorough
def test_order_of_second_derivatives():
    # Against central differences of the exact gradient.
    weights = jnp.asarray([1.0, 2.0, 3.0])
    flow = lambda x0: models.affine_octants_flow(jnp.asarray(0.5), x0)[0]
    gradient = jax.jit(jax.grad(lambda x0: weights @ flow(x0)))
    h = 1e-5
    expected = [
        (gradient(_start + h * v) - gradient(_start - h * v)) / (2 * h)
        for v in jnp.eye(3)
    ]

    def final(x0, eps):
        return weights @ _octants_by(hj.Project(eps), x0)[0][:3]

    hessian = jax.jit(jax.jacfwd(jax.grad(final)))
    eps = (1e-2, 1e-3, 1e-4)
    errors = [error(hessian(_start, e), jnp.stack(expected)) for e in eps]
    assert 1.9 < _order(eps, errors) < 2.1


def _hop(z, k, t1):
    """The state at `t1` of a hopper dropped from `z`, and the times of touchdown and
    liftoff in its first three contacts."""
    x, first = models.spring_hopper_flow(t1, z, stiffness=k)
    period = jnp.sum(first)
    return x, jnp.concatenate([first, first + period, first + 2 * period])


def test_hopper():
    def simulate(z, eps):
        sol = hj.simulate(
            models.spring_hopper(stiffness=z[1]),
            0.0,
            z[2],
            jnp.stack([z[0], 0 * z[0]]),
            stepsize_controller=dfx.PIDController(rtol=1e-10, atol=1e-10),
            event_method=hj.Project(eps),
            max_steps=512,
            max_events=8,
        )
        return sol.x1, sol.events.t, sol.events.event, sol.events.count

    def closed_form(z):
        return _hop(*z)[0]

    @jax.jit
    @jax.vmap
    def both(z, eps):
        x, times, event, count = simulate(z, eps)
        jacobian = jax.jacrev(lambda z: simulate(z, eps)[0])(z)
        x_true, times_true = _hop(*z)
        return (
            x - x_true,
            jacobian - jax.jacfwd(closed_form)(z),
            jnp.where(jnp.arange(6) < count, times[:6] - times_true, 0),
            event,
            count,
        )

    s = np.linspace(0, 1, 8)
    z = np.stack([1.3 + 0.7 * s, 100 * 10 ** (s * 5 % 1), 0.2 + 2.1 * s], axis=1)
    eps = 10.0 ** -np.arange(2, 5)
    results = [both(z, np.full(8, e)) for e in eps]
    counts = np.asarray(results[0][-1])
    assert min(counts) == 0 and max(counts) > 3
    for event, count in zip(results[0][3], counts, strict=True):
        np.testing.assert_array_equal(event[:count], np.arange(count) % 2)
    for part in range(3):
        worst = [np.max(np.abs(result[part])) for result in results]
        assert _order(eps, worst) > 1.9
    assert np.max(np.abs(results[-1][0])) < 1e-5


def test_no_rearming_means_once_each():
    hopper = models.spring_hopper()
    once = hj.EventSelectedSystem(
        hopper.vector_field, hopper.event_functions, np.zeros((2, 2), bool)
    )
    sol = hj.simulate(once, 0.0, 0.8, jnp.asarray([1.5, 0.0]))
    # Released in the air, the second function is positive: it is not to be crossed.
    assert sol.events.count == 1


@pytest.mark.parametrize("method", [hj.Locate(), hj.Project(1e-4)], ids=["L", "P"])
def test_default_rearming(method):
    # Anderson's rule: all are crossed, so those that fall below zero are candidates.
    def one_function(k):
        field = lambda t, x, b, args: jnp.stack(
            [x[1], jnp.where(b[0] > 0, k * (1 - x[0]), 0.0) - 9.81]
        )
        return hj.EventSelectedSystem(field, lambda t, x, args: 1 - x[:1])

    @jax.jit
    def run(z):
        sol = hj.simulate(
            one_function(z[1]),
            0.0,
            z[2],
            jnp.stack([z[0], 0.0]),
            stepsize_controller=_tight,
            event_method=method,
        )
        return sol.x1, sol.events

    z = np.array([1.6, 300.0, 1.6])
    x, events = run(z)
    x_true, times = _hop(*z)
    tol = 1e-7 if isinstance(method, hj.Locate) else 1e-5
    np.testing.assert_allclose(x, x_true, rtol=0, atol=tol)
    np.testing.assert_allclose(events.t[:4], times[:4], rtol=0, atol=tol)
    assert events.count == 4 and np.all(events.event[:4] == 0)
    np.testing.assert_array_equal(events.mode_after[:4, 0], [1, -1, 1, -1])


@pytest.mark.thorough
def test_plate():
    """Against `Locate`; and its field against the equations of its docstring."""
    n = 6
    system = models.plate_on_springs(n)
    q, v = jnp.asarray([0.1, 0.95, 0.07]), jnp.asarray([0.3, -1.1, 0.4])
    b = jnp.asarray([1, -1, 1, 1, -1, 1])
    dq, dv = system.vector_field(0.0, (q, v), jnp.concatenate([b, -b]), None)
    places = np.linspace(-1, 1, n)
    slope, lever = np.tan(0.07), (0.1 - places) / np.cos(0.07) ** 2
    depth = 1 + slope * (0.1 - places) - 0.95
    force = 1000 / n * depth + 30 / n * (slope * 0.3 + 1.1 + lever * 0.4)
    force = np.where(b > 0, force, 0)
    expected = [-slope * force.sum(), force.sum() - 9.81, -(force * lever).sum()]
    np.testing.assert_array_equal(dq, v)
    np.testing.assert_allclose(dv, expected, rtol=1e-13)

    def run(q, method):
        """All that comes of it, and the derivative forward and in reverse."""

        def final(q):
            sol = hj.simulate(
                system,
                0.0,
                0.8,
                (q, jnp.asarray([0.2, 0.0, 0.0])),
                stepsize_controller=dfx.PIDController(rtol=1e-9, atol=1e-9),
                event_method=method,
                max_steps=512,
            )
            return jnp.concatenate(sol.x1), sol.events

        x, push, events = jax.linearize(final, q, has_aux=True)
        forward = jax.vmap(push, out_axes=1)(jnp.eye(3))
        (reverse,) = jax.vmap(jax.linear_transpose(push, q))(jnp.eye(6))
        return x, forward, reverse, events

    s = np.linspace(0, 1, 6)
    starts = np.stack([0.3 * s, 2 + s, 0.1 - 0.19 * s], axis=1)
    # Level: it lands on all springs in one instant. Their dampers know nothing of each
    # other, so that the flow is differentiable there too (Council, 3.2.3).
    starts = np.append(starts, [[0.1, 2.4, 0.0]], axis=0)
    lanes = lambda method: jax.vmap(lambda q: run(q, method))(starts)
    x, _, jacobian, events = jax.jit(lambda: lanes(hj.Locate()))()
    count = np.asarray(events.count)
    assert len(set(count)) > 1

    eps = 10 ** np.linspace(-4.5, -3.5, 3)
    project = jax.vmap(lambda eps: lanes(hj.Project(eps)))
    x_p, forward, reverse, events = jax.jit(project)(eps)
    np.testing.assert_array_equal(events.count, np.tile(count, (3, 1)))
    assert np.all(np.ptp(events.t[:, -1, :n], axis=1) == 0)
    # Not to rounding: a few steps are divided, for tangents and cotangents differently.
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-8)
    errors = [error(x_p[k], x) for k in range(3)]
    derivatives = [error(reverse[k], jacobian) for k in range(3)]
    assert _order(eps, errors) > 1.8 and errors[0] < 1e-5
    assert _order(eps, derivatives) > 1.8 and derivatives[0] < 1e-4


def test_eps_for_each_function(octants):
    # In the order of crossing: y, z, x. The third function is -z.
    expected, _ = octants(_start)
    value = jax.jit(lambda eps: _octants_by(hj.Project(eps), _start)[0])
    eps = jnp.asarray([1e-4, 1e-4, 1e-4])
    np.testing.assert_array_equal(value(eps), value(jnp.asarray([1e-4])))
    fine = np.abs(value(eps) - expected)[3:]
    coarse = np.abs(value(eps.at[2].set(1e-2)) - expected)[3:]
    assert coarse[0] == fine[0]
    assert coarse[1] > 100 * fine[1]


def test_steps_do_not_run_past_a_neighbourhood():
    # A ballistic flow is integrated in steps of any length. Guards: a pair of surfaces
    # that are closer than eps, and one that is met only for a moment, at the apex.
    def simulate(speed, eps):
        system = hj.EventSelectedSystem(
            lambda t, x, b, args: jnp.stack([x[1], -9.81 + 0 * x[0]]),
            lambda t, x, args: jnp.stack([x[0] - 0.2, x[0] - 0.201, x[0] - 0.5]),
            np.zeros((3, 3), bool),
        )
        sol = hj.simulate(
            system,
            0.0,
            2.0,
            jnp.stack([0.0 * speed, speed]),
            event_method=hj.Project(eps),
            throw=False,
        )
        return sol.events.t[:3], sol.events.event[:3], sol.result

    apex = np.array([0.1, 0.19, 0.21, 0.4, 0.499, 0.4999, 0.5001, 0.501, 0.6])
    speed = np.sqrt(2 * 9.81 * apex)
    with np.errstate(invalid="ignore"):
        fall = np.sqrt(speed[:, None] ** 2 - 2 * 9.81 * np.array([0.2, 0.201, 0.5]))
    exact = (speed[:, None] - fall) / 9.81
    run = jax.jit(jax.vmap(simulate, (0, None)))
    for eps, tol in ((0.1, 0.02), (1e-2, 2e-3), (1e-3, 2e-4)):
        t, event, result = run(speed, eps)
        assert np.all(result == hj.RESULTS.successful)
        count = np.sum(np.isfinite(exact), axis=1)
        # How high it gets is of second order in eps too.
        for lane in np.flatnonzero(np.abs(apex - 0.5) > 2 * eps**2):
            n = count[lane]
            np.testing.assert_array_equal(
                event[lane], np.where(np.arange(3) < n, np.arange(3), -1)
            )
            if abs(apex[lane] - 0.5) < 0.05:
                n = 2  # How long it takes to the apex is not.
            np.testing.assert_allclose(t[lane, :n], exact[lane, :n], rtol=0, atol=tol)


#
# Corners
#


@pytest.mark.thorough
def test_corner_of_a_piecewise_constant_field():
    # Euler steps are exact here, and so is the B-derivative, in every direction.
    rng = np.random.default_rng(1)
    d = 4
    table = rng.uniform(-0.6, 1.0, (2**d, d))
    system = models.piecewise_constant(table)
    x0 = -(1 + table[0])

    def final(x0):
        sol = hj.simulate(system, 0.0, 2.0, x0, event_method=hj.Project(0.1))
        return sol.x1, sol.events

    derivative = hj.b_derivative(system, 1.0, jnp.zeros(d))
    push = jax.jit(lambda v: jax.jvp(final, (x0,), (v,), has_aux=True)[1])
    orders = set()
    for v in rng.standard_normal((60, d)):
        np.testing.assert_allclose(push(v), derivative(v), rtol=0, atol=1e-12)
        orders.add(tuple(np.asarray(derivative.order(v))))
    assert len(orders) > 12
    jacobian, events = jax.jit(jax.jacrev(final, has_aux=True))(x0)
    np.testing.assert_allclose(events.t[:d], 1, rtol=0, atol=1e-14)
    order = tuple(int(j) for j in events.event[:d])
    np.testing.assert_allclose(jacobian, derivative.matrix(order), rtol=0, atol=1e-12)


#
# Liveness
#


def _one_way(before, after):
    """x' = before(x), and after(x) beyond 0."""
    field = lambda t, x, b, args: jnp.where(b < 0, before(x), after(x))
    return hj.EventSelectedSystem(field, lambda t, x, args: x)


_not_live = {
    # The flow beyond leads back: a sliding mode.
    "slides": _one_way(lambda x: 1.0 + 0 * x, lambda x: -1.0 + 0 * x),
    "stops": _one_way(lambda x: 1.0 + 0 * x, lambda x: 0 * x),
    # Comes to rest on the surface, in finite time.
    "touches": _one_way(lambda x: jnp.sqrt(jnp.maximum(-x, 0)), lambda x: 1 + 0 * x),
}


@pytest.mark.parametrize("name", list(_not_live))
def test_not_live(name):
    run = lambda system, **kw: hj.simulate(
        system, 0.0, 4.0, jnp.asarray([-1.0]), event_method=hj.Project(0.05), **kw
    )
    system = _not_live[name]
    sol = run(system, throw=False)
    assert sol.result == hj.RESULTS.not_live
    assert sol.x1[0] <= 1e-8
    with pytest.raises(hj.SimulationError, match=r"(?s)not live.*hj\.Locate.*guard 0"):
        run(system)


def test_not_live_names_the_guard():
    # Three surfaces at 0, 1 and 2; beyond the second, the flow leads back to it.
    system = hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.where(b[1] < 0, 1.0, -1.0) + 0 * x,
        lambda t, x, args: x[0] - jnp.arange(3.0),
    )
    with pytest.raises(hj.SimulationError, match=r"(?s)time 0?1\.\d*,.*guard 1"):
        hj.simulate(
            system, 0.0, 4.0, jnp.asarray([-1.0]), event_method=hj.Project(0.05)
        )


def test_where_it_turns_back_nothing_happens():
    # Not live either, but the flow never gets there: within eps of it, it turns back,
    # or comes nearer for ever.
    ceiling = hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.stack([x[1], -9.81 + 0 * x[0]]),
        lambda t, x, args: x[:1] - 1,
        np.zeros((1, 1), bool),
    )
    for gap in (0.05, 1e-3, 1e-5):
        x0 = jnp.asarray([0.0, np.sqrt(2 * 9.81 * (1 - gap))])
        sol = hj.simulate(ceiling, 0.0, 0.7, x0, event_method=hj.Project(0.2))
        assert sol.events.count == 0
        expected = [x0[1] * 0.7 - 9.81 * 0.49 / 2, x0[1] - 9.81 * 0.7]
        np.testing.assert_allclose(sol.x1, expected, rtol=0, atol=1e-12)
    asymptotic = _one_way(lambda x: -x, lambda x: 1 + 0 * x)
    sol = hj.simulate(
        asymptotic, 0.0, 5.0, jnp.asarray([-1.0]), event_method=hj.Project(0.2)
    )
    assert sol.events.count == 0
    np.testing.assert_allclose(sol.x1, -np.exp(-5), rtol=1e-6)


def test_lanes_do_not_disturb_each_other():
    # x' = 1 before, `args` after.
    system = hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.where(b < 0, 1.0, args), lambda t, x, args: x
    )

    def final(speed, x0):
        return hj.simulate(
            system,
            0.0,
            2.0,
            x0,
            args=speed,
            event_method=hj.Project(0.1),
            throw=False,
        )

    def value_and_gradient(speed, x0):
        sol = final(speed, x0)
        return sol.result, jax.value_and_grad(lambda s: final(s, x0).x1[0])(speed)

    speed = jnp.asarray([2.0, -1.0, 0.5, jnp.nan])
    x0 = jnp.asarray([[-1.0], [-1.0], [-1.5], [-1.0]])
    result, (x1, gradient) = jax.jit(jax.vmap(value_and_gradient))(speed, x0)
    codes = [
        hj.RESULTS.successful,
        hj.RESULTS.not_live,
        hj.RESULTS.successful,
        hj.RESULTS.nonfinite_state,
    ]
    for lane, code in enumerate(codes):
        assert jax.tree.map(lambda leaf, lane=lane: leaf[lane], result) == code
    np.testing.assert_allclose(x1[::2], [2, 0.25], rtol=0, atol=1e-13)
    np.testing.assert_allclose(gradient[::2], [1, 0.5], rtol=0, atol=1e-13)
    assert np.all(np.isnan(gradient[1::2]))


#
# With everything else
#


_pid = dfx.PIDController(rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ["options", "grid"],
    [
        (
            dict(stepsize_controller=dfx.ConstantStepSize(), dt0=0.01),
            0.01 * np.arange(1, 50),
        ),
        (
            dict(
                stepsize_controller=dfx.StepTo(ts=np.linspace(0, 0.5, 41)),
            ),
            np.linspace(0, 0.5, 41)[1:],
        ),
        (
            dict(
                stepsize_controller=dfx.ClipStepSizeController(
                    _pid, step_ts=[0.1, 0.21, 0.3]
                )
            ),
            [0.1, 0.21, 0.3],
        ),
        (dict(solver=dfx.Kvaerno5(), stepsize_controller=_pid), []),
    ],
    ids=["constant", "given", "clipped", "implicit"],
)
def test_solvers_and_controllers(octants, options, grid):
    expected, jacobian = octants(_start)

    @jax.jit
    def run(x0):
        saveat = dfx.SaveAt(steps=True)
        fn = lambda x0: _solve(hj.Project(1e-3), x0, saveat=saveat, **options)
        sol = fn(x0)
        return sol.x1, sol.ts, jax.jacrev(lambda x0: fn(x0).x1)(x0)

    x1, ts, got = run(_start)
    np.testing.assert_allclose(x1, expected[:3], rtol=0, atol=2e-4)
    np.testing.assert_allclose(got, jacobian[:3], rtol=0, atol=2e-3)
    used = np.asarray(ts)[np.isfinite(ts)]
    assert np.all(np.diff(used) > 0)
    # The times that were asked for are among the ends of the steps.
    distance = np.abs(np.subtract.outer(grid, used))
    assert np.max(distance.min(axis=1), initial=0) < 1e-12


@pytest.mark.thorough
def test_evaluation_is_continuous(octants):
    def solve(x0, ts):
        sol = _solve(hj.Project(1e-2), x0)
        return sol.evaluate(ts), sol.events

    run = jax.jit(lambda ts: solve(_start, ts))
    events = run(jnp.linspace(0, 0.5, 13))[1]
    for k in range(3):
        t, before = events.t[k], events.x_before[k]
        around, _ = run(t + jnp.linspace(-1e-9, 1e-9, 13))
        np.testing.assert_allclose(around, np.tile(before, (13, 1)), rtol=0, atol=2e-8)
    # Between them, it is differentiable: with respect to time too.
    ts = jnp.linspace(0.01, 0.49, 13)
    speed = jax.jit(jax.jacfwd(lambda ts: solve(_start, ts)[0]))(ts)
    h = 1e-6
    difference = (run(ts + h)[0] - run(ts - h)[0]) / (2 * h)
    diagonal = np.asarray(speed)[np.arange(13), :, np.arange(13)]
    np.testing.assert_allclose(diagonal, difference, rtol=0, atol=1e-7)


@pytest.mark.thorough
def test_float32():
    def run(x0, eps):
        controller = dfx.PIDController(rtol=1e-5, atol=1e-5)
        method = hj.Project(eps)
        return _solve(method, x0, 128, stepsize_controller=controller).x1

    x0 = _start.astype(jnp.float32)
    both = jax.jit(lambda x0, eps: (run(x0, eps), jax.jacrev(run)(x0, eps)))
    x, jacobian = both(x0, 1e-2)
    assert x.dtype == jacobian.dtype == jnp.float32
    x_64, jacobian_64 = both(_start, 1e-2)
    np.testing.assert_allclose(x, x_64, rtol=0, atol=2e-4)
    np.testing.assert_allclose(jacobian, jacobian_64, rtol=0, atol=3e-3)


@pytest.mark.parametrize(
    ["eps", "message"],
    [
        (0.0, "`eps` must be positive"),
        ([0.1, -0.1, 0.1], "`eps` must be positive"),
        (np.ones((3, 1)), r"`eps` must be a number.*\(3, 1\)"),
        ([0.1, 0.1], "`eps` of `hj.Project` has 2 entries.*3 event functions"),
    ],
)
def test_bad_eps(eps, message):
    with pytest.raises(ValueError, match=message):
        method = hj.Project(np.asarray(eps))
        hj.simulate(models.affine_octants(), 0.0, 0.5, _start, event_method=method)


def test_only_for_event_selected_systems():
    message = re.escape("`event_method` can be a `hj.Project` only for a")
    with pytest.raises(ValueError, match=message):
        ball = models.BouncingBall()
        x0 = jnp.asarray([1.0, 0.0])
        hj.simulate(ball, 0.0, 1.0, x0, 0, event_method=hj.Project(0.1))
