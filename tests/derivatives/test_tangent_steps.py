"""Derivatives where the steps that suit the state do not suit them."""

from collections.abc import Callable

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hybridjax import models
from hybridjax._steps.adjoint_estimate import adjoint_estimate

from ..helpers import both_jacobians, error


class _Smooth(hj.AbstractHybridSystem):
    field: Callable

    def flow(self, t, x, mode, args):
        return self.field(x)

    def guards(self, t, x, mode, args):
        return jnp.zeros((0,))

    def jump(self, t, x, mode, event, args):
        return x, mode


def _chain(stiffness):
    """Three masses that hang on springs and on each other, the last damped at 84/s;
    with the origin where they hang."""
    k = stiffness * np.array([[2, -1, 0], [-1, 2, -1], [0, -1, 1]])
    zeros, damping = np.zeros((3, 3)), np.diag([0.1, 0.1, 84])
    return np.block([[zeros, np.eye(3)], [-k, -damping]])


def test_at_rest():
    # The state does nothing, and steps get as long as the interval.
    times = np.array([0.3, 1.1, 2.0])
    matrices = np.stack([_chain(k) for k in (1.0, 30.0, 1000.0)])

    def final(x0, matrix):
        saveat = dfx.SaveAt(ts=jnp.asarray(times), t1=True)
        field = lambda x: matrix @ x
        sol = hj.simulate(_Smooth(field), 0.0, 2.0, x0, 0, saveat=saveat)
        return sol.xs.ravel(), sol.stats["num_accepted_steps"]

    @jax.jit
    def jacobians(matrix):
        run = lambda x0: final(x0, matrix)
        _, push, steps = jax.linearize(run, jnp.zeros(6), has_aux=True)
        forward = jax.vmap(push, out_axes=1)(jnp.eye(6))
        (reverse,) = jax.vmap(jax.linear_transpose(push, jnp.zeros(6)))(jnp.eye(24))
        return forward, reverse, steps

    for matrix in matrices:
        *both, steps = jacobians(matrix)
        assert steps < 12
        expected = [scipy.linalg.expm(matrix * t) for t in (*times, 2.0)]
        for jacobian in both:
            for got, exact in zip(jacobian.reshape(4, 6, 6), expected, strict=True):
                assert error(got, exact) < 3e-6


@pytest.mark.thorough
def test_legs_in_flight():
    # Unstretched legs fall with the body, along parabolas.
    def final(z, tol, dtmax):
        sol = hj.simulate(
            models.soft_trotter(),
            0.0,
            0.45,
            (z[:4], z[4:]),
            jnp.zeros(2, jnp.int32),
            stepsize_controller=dfx.PIDController(rtol=tol, atol=tol, dtmax=dtmax),
        )
        return jnp.concatenate(sol.x1), sol.stats["num_accepted_steps"]

    run = both_jacobians(lambda z: final(z[:8], z[8], z[9]))
    for height, steps_at_most in ((1.0, 30), (1.5, 5)):
        z = jnp.array([height, 0, *[height - 0.5] * 2, 0, 0, 0, 0])
        fine = run(jnp.append(z, jnp.array([1e-11, 2e-3])))
        usual = run(jnp.append(z, jnp.array([1e-8, jnp.inf])))
        assert usual[3] < steps_at_most < fine[3]
        # The estimate for cotangents is of lower order: steps that are thirty times too
        # long for it, as these are, may pass with a larger error.
        for got, exact, tol in zip(usual[1:3], fine[1:3], (1e-6, 1e-4), strict=True):
            assert error(got[:, :8], exact[:, :8]) < tol


def test_tolerance():
    # Of an oscillator at rest: the error is as small as was asked for.
    tolerances = 10.0 ** -np.arange(3, 11)

    def final(z, tol):
        field = lambda x: jnp.stack([x[1], -9 * jnp.sin(x[0]) + z[2]])
        sol = hj.simulate(_Smooth(field), 0.0, 2.0, z[:2], 0, tangent_rtol=tol)
        return sol.x1, sol.stats["num_accepted_steps"]

    run = both_jacobians(lambda z: final(z[:3], z[3]))
    c, s = np.cos(6), np.sin(6)
    exact = np.array([[c, s / 3, (1 - c) / 9], [-3 * s, c, s / 3]])
    errors = []
    for tol in tolerances:
        _, *both, steps = run(jnp.array([0.0, 0.0, 0.0, tol]))
        assert steps < 12  # the state knows nothing of it
        errors.append([error(got[:, :3], exact) for got in both])
        assert np.all(np.array(errors[-1]) < 30 * tol)
    assert np.all(np.array(errors[-1]) < 1e-4 * np.array(errors[0]))


def test_second_derivative():
    def final(z, dtmax):
        field = lambda x: jnp.stack([x[1], -9 * (x[0] + x[0] ** 2)])
        controller = dfx.PIDController(rtol=1e-8, atol=1e-8, dtmax=dtmax)
        sol = hj.simulate(
            _Smooth(field), 0.0, 2.0, z, 0, stepsize_controller=controller
        )
        return sol.x1[0]

    hessian = jax.jit(jax.hessian(final))
    exact = hessian(jnp.zeros(2), 0.01)
    # Steps are those for the first derivative.
    assert error(hessian(jnp.zeros(2), jnp.inf), exact) < 1e-4


def test_float32():
    def final(x0):
        field = lambda x: jnp.stack([x[1], -9 * jnp.sin(x[0])])
        controller = dfx.PIDController(rtol=1e-5, atol=1e-5)
        sol = hj.simulate(
            _Smooth(field), 0.0, 2.0, x0, 0, stepsize_controller=controller
        )
        return sol.x1, None

    _, forward, reverse, _ = both_jacobians(final)(jnp.zeros(2, jnp.float32))
    c, s = np.cos(6), np.sin(6)
    for got in (forward, reverse):
        assert got.dtype == jnp.float32
        assert error(got, np.array([[c, s / 3], [-3 * s, c]])) < 1e-3


@pytest.mark.parametrize(
    "solver, order",
    [(dfx.Heun(), 2), (dfx.Bosh3(), 2), (dfx.Tsit5(), 4), (dfx.Dopri5(), 4)],
)
def test_estimate_of_cotangents(solver, order):
    # Back through one step of a linear system that depends on time: the estimate is of
    # that order, and more than the error.
    tableau = solver.tableau
    weights, ratio = adjoint_estimate(tableau)
    a, b, c = np.zeros((len(weights),) * 2), tableau.b_sol, np.append(0, tableau.c)
    for i, row in enumerate(tableau.a_lower[: len(weights) - 1]):
        a[i + 1, : i + 1] = row
    jacobian = lambda t: np.array([[0.3 * t, 1.0], [-4 - np.cos(3 * t), -0.5 * t**2]])

    def estimate(h):
        back = [np.zeros(2)] * len(weights)
        for i in reversed(range(len(weights))):
            ct = b[i] * np.array([1.0, 0.4]) + a[:, i] @ np.array(back)
            back[i] = h * jacobian(0.2 + c[i] * h).T @ ct
        return np.linalg.norm(weights @ np.array(back))

    steps = 0.1 / 2.0 ** np.arange(4)
    orders = np.diff(np.log2([estimate(h) for h in steps]))
    np.testing.assert_allclose(orders, -order, atol=0.25)
    assert ratio <= 1


def test_check_derivative():
    def loss(x0, **kwargs):
        field = lambda x: jnp.stack([x[1], -9 * jnp.sin(x[0])])
        sol = hj.simulate(_Smooth(field), 0.0, 2.0, x0, 0, **kwargs)
        return sol.x1[0] + 2 * sol.x1[1]

    x0, exact = (
        jnp.zeros(2),
        np.array([1, 2])
        @ np.array([[np.cos(6), np.sin(6) / 3], [-3 * np.sin(6), np.cos(6)]]),
    )
    assert hj.check_derivative(loss, x0) < 3e-6
    # Within the user's own `jit` too, which has been compiled before.
    compiled = jax.jit(loss)
    gradient = jax.grad(compiled)(x0)
    assert hj.check_derivative(compiled, x0, gradient) < 3e-6
    wrong = hj.check_derivative(compiled, x0, gradient + jnp.array([0.01, 0.0]))
    assert 0.003 < wrong < 0.03
    # Steps that the user chose are what derivatives are made of, and are too long.
    fixed = dfx.StepTo(ts=jnp.array([0.0, 1.0, 2.0]))
    loss_fixed = lambda x0: loss(x0, stepsize_controller=fixed)
    found = hj.check_derivative(loss_fixed, x0)
    truth = np.linalg.norm(jax.grad(loss_fixed)(x0) - exact)
    assert truth / 3 < found < 3 * truth

    with pytest.raises(ValueError, match="`fn` must return a scalar"):
        hj.check_derivative(lambda x: x, x0)
    with pytest.raises(ValueError, match="`gradient` must have the structure"):
        hj.check_derivative(loss, x0, jnp.zeros(3))
    for value in (0.0, -1e-8, 2.0):
        with pytest.raises(ValueError, match="`tangent_rtol` must be"):
            loss(x0, tangent_rtol=value)
    with pytest.raises(ValueError, match="`tangent_rtol` needs an explicit"):
        loss(x0, solver=dfx.Kvaerno5(), tangent_rtol=1e-6)


def test_rounding():
    # The mass of a pendulum cancels: its tangent is rounding, of which no step however
    # short has an error below a tight tolerance.
    evaluations = []

    def end(p):
        def field(x):
            jax.debug.callback(lambda x: evaluations.append(x), x)
            force = -p[0] * jnp.sin(3 * x[0]) * p[1] - p[0] * x[0] ** 3
            return jnp.stack([x[1], force / p[0]])

        tight = dfx.PIDController(rtol=1e-12, atol=1e-12)
        x0 = jnp.array([0.7, 0.3])
        options = {"stepsize_controller": tight, "max_steps": 10_000}
        return hj.simulate(_Smooth(field), 0.0, 2.0, x0, 0, **options).x1

    p = jnp.array([0.7, 9.0])
    counts = []
    for direction in ([0.0, 1.0], [1.0, 0.0]):
        evaluations.clear()
        _, tangent = jax.jvp(end, (p,), (jnp.array(direction),))
        jax.effects_barrier()
        counts.append(len(evaluations))
    np.testing.assert_allclose(tangent, 0, atol=1e-13)
    assert counts[1] <= 2 * counts[0]


class _Pulled(hj.AbstractHybridSystem):
    """What follows `sin(5 t)` on a stiff spring, whose pull switches the mode, to and
    fro, at `-level` and `level`."""

    level: jax.Array
    stiffness: jax.Array

    def pull(self, t, x):
        return self.stiffness * (x - jnp.sin(5 * t))

    def flow(self, t, x, mode, args):
        return -self.pull(t, x)

    def guards(self, t, x, mode, args):
        sign = jnp.where(mode == 0, 1, -1)
        return jnp.stack([self.level + sign * self.pull(t, x) / 5])

    def jump(self, t, x, mode, event, args):
        return x, 1 - mode


def test_stiff_guards():
    # Within a step the pull is off by a multiple of the tolerance, and its rate more.
    # It may seem to turn round where it is at a level, or to be all but at rest; and to
    # be at a level beyond its reach, again and again.
    tolerances, levels = np.array([1e-3, 1e-4, 1e-6]), np.linspace(0.2, 0.8, 151)
    k, stiffer, beyond = 300.0, 1500.0, np.linspace(1.001, 2, 40)
    grid = np.linspace(0, 2, 2001)

    def exact(level):
        def pull(t):
            slow = k * np.array([k * np.sin(5 * t), -5 * np.cos(5 * t)]).sum(axis=0)
            x = slow / (k**2 + 25) + (0.3 + 5 * k / (k**2 + 25)) * np.exp(-k * t)
            return k * (x - np.sin(5 * t)) / 5

        rate = lambda t: -k * pull(t) - k * np.cos(5 * t)
        values, sign, events = pull(grid), 1, []
        for i in range(len(grid) - 1):
            before, after = level + sign * values[i : i + 2]
            if before > 0 >= after:
                root = lambda t, sign=sign: level + sign * pull(t)
                t = scipy.optimize.brentq(root, *grid[i : i + 2], xtol=1e-14)
                events.append((t, -sign / rate(t)))
                sign = -sign
        return np.array(events).T

    @jax.jit
    @jax.vmap
    def run(level, tol, stiffness):
        def times(level):
            controller = dfx.PIDController(rtol=tol, atol=tol)
            sol = hj.simulate(
                _Pulled(level, stiffness),
                *(0.0, 2.0, jnp.array(0.3), 0),
                solver=dfx.Bosh3(),
                stepsize_controller=controller,
                max_events=4,
                max_steps=2**16,
                throw=False,
            )
            return sol.events.t, (sol.events.t, sol.x1, sol.result)

        return jax.jacfwd(times, has_aux=True)(level)

    expected, slopes = np.stack([exact(level) for level in levels], axis=1)
    reached = [a.ravel() for a in np.meshgrid(levels, tolerances)]
    others = [a.ravel() for a in np.meshgrid(beyond, tolerances[:2])]
    n, m = reached[0].size, others[0].size
    given = np.concatenate([reached, others], axis=1)
    slopes_got, (t, x1, result) = run(*given, np.repeat([k, stiffer], [n, m]))
    assert (result == hj.RESULTS.successful).all()
    assert np.isinf(t[n:]).all()
    slow = stiffer * np.sin(10) - 5 * np.cos(10)
    exact_x1 = stiffer * slow / (stiffer**2 + 25)
    assert (np.abs(x1[n:] - exact_x1) < 10 * others[1]).all()
    shape = len(tolerances), len(levels), 4
    got, t = (np.asarray(a[:n]).reshape(shape) for a in (slopes_got, t))
    errors = np.abs(t - expected).max(axis=(1, 2))
    assert (errors < [0.03, 0.01, 2e-4]).all()
    share = got / slopes
    coarse, fine = share[:2], share[2]
    assert (np.abs(fine - 1) < 0.05).all()
    assert (np.median(np.abs(coarse - 1), axis=(1, 2)) < 0.4).all()
    assert (coarse > [[[0.05]], [[0.9]]]).all()
    # The rate of a few is an error that no halving shows.
    assert ((coarse < 5).mean(axis=(1, 2)) > 0.99).all()
    assert (coarse < 30).all()
