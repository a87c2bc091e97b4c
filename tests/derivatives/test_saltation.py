"""`hj.saltation_matrix` against the closed forms of Kong et al., and others by hand."""

import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models


# Angle (rad), velocity (m/s) and applied force (N) of a ball that hits a slope.
_IMPACTS = (
    (0.0, (0.4, -1.5), (0.0, 0.0)),
    (0.3, (0.7, -2.1), (0.5, -1.2)),
    (-0.6, (-1.1, -0.9), (-0.8, 0.4)),
    (0.9, (0.1, -3.0), (1.5, 2.0)),
)


def _close(got, expected, rtol=1e-12):
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    error = np.max(np.abs(got - expected)) / np.max(np.abs(expected))
    assert error < rtol


def _on_slope(angle, velocity):
    along = 0.37 * np.array([np.cos(angle), -np.sin(angle)])
    return jnp.asarray([*along, *velocity])


@pytest.mark.parametrize("angle, velocity, force", _IMPACTS)
def test_sliding(angle, velocity, force):
    # Kong (53), (54).
    system = models.ball_on_slope(angle, 1.3, 9.81, force, contact="sliding")
    x = _on_slope(angle, velocity)
    c, s = np.cos(angle), np.sin(angle)
    omega = [[c * c, -c * s], [-c * s, s * s]]
    expected = np.kron(np.eye(2), omega)
    _close(hj.saltation_matrix(system, 0.2, x, "free", 0), expected)


@pytest.mark.parametrize("angle, velocity, force", _IMPACTS)
def test_sticking(angle, velocity, force):
    # Kong (57), (58).
    system = models.ball_on_slope(angle, 1.3, 9.81, force, contact="sticking")
    x = _on_slope(angle, velocity)
    v1, v2 = velocity
    c, s = np.cos(angle), np.sin(angle)
    omega = np.array([[v2 * c, -v1 * c], [-v2 * s, v1 * s]]) / (v2 * c + v1 * s)
    expected = np.kron(np.diag([1.0, 0.0]), omega)
    _close(hj.saltation_matrix(system, 0.2, x, "free", 0), expected)


@pytest.mark.parametrize("angle, velocity, force", _IMPACTS)
def test_elastic(angle, velocity, force):
    # Kong (91), (92) for a point mass on a plane: M = m I, J = n^T, so that
    # J^+T J = n n^T, C = 0, and the derivatives with respect to q vanish.
    e, m = 0.7, 1.3
    system = models.ball_on_slope(angle, m, 9.81, force, e, contact="elastic")
    x = _on_slope(angle, velocity)
    v = np.array(velocity)
    n = np.array([np.sin(angle), np.cos(angle)])
    a = np.array(force) / m - np.array([0, 9.81])
    block = np.eye(2) - (1 + e) * np.outer(n, n)
    z = (1 + e) * (n @ a) / (n @ v) * np.outer(n, n)
    expected = np.block([[block, np.zeros((2, 2))], [z, block]])
    _close(hj.saltation_matrix(system, 0.2, x, "free", 0), expected)


@pytest.mark.parametrize("t, v", [(0.0, -2.0), (0.05, 0.1), (0.4, -0.7), (0.77, -5.0)])
def test_paddle_that_moves(t, v):
    # Kong (2) with D_t g = -w and D_t R = (0, (1 + e) dw/dt).
    e, g, amplitude, rate = 0.8, 9.81, 0.05, 2 * np.pi * 3.0
    p = amplitude * np.sin(rate * t)
    w = amplitude * rate * np.cos(rate * t)
    alpha = -amplitude * rate**2 * np.sin(rate * t)
    system = models.BallOnPaddle(g, e, amplitude, 3.0)
    # Both sides move: what counts is that they approach.
    assert v - w < 0
    expected = [[-e, 0], [-(1 + e) * (g + alpha) / (v - w), -e]]
    got = hj.saltation_matrix(system, t, jnp.asarray([p, v]), 0, 0)
    _close(got, expected)


def test_identity():
    # Kong (14): an identity reset between equal vector fields.
    def field(t, x, args):
        return jnp.stack([x[1], -jnp.sin(x[0]) - args * x[1] + jnp.cos(t)])

    system = hj.HybridAutomaton(
        {"left": field, "right": field},
        [
            hj.Transition("left", "right", lambda t, x, args: t - x[0] * x[1]),
            hj.Transition("right", "left", lambda t, x, args: x[0] - 1),
        ],
    )
    x = jnp.asarray([0.5, 1.4])
    got = hj.saltation_matrix(system, 0.7, x, "left", 0, 0.2)
    _close(got, np.eye(2), 1e-15)
    # Spring and damper take over where the force is continuous ...
    hopper = models.spring_hopper(mass=1.2, stiffness=340.0, rest_length=0.9)
    for event, v in ((0, -1.7), (1, 1.7)):
        mode = jnp.asarray([-1, 1] if event == 0 else [1, -1])
        got = hj.saltation_matrix(hopper, 0.0, jnp.asarray([0.9, v]), mode, event)
        _close(got, np.eye(2), 1e-15)
    # ... but not where it jumps: I + (F+ - F-) Dg / (Dg F-), with a damper.
    legs = models.TwoLegs()
    x = jnp.asarray([0.1, 0.0, 0.2, 0.4, -1.0, 0.3])
    x = x.at[1].set(-legs.feet(x[2])[1][0])
    mode = jnp.asarray([0, 0])
    before = legs.flow(jnp.asarray(0.0), x, mode, None)
    after = legs.flow(jnp.asarray(0.0), x, jnp.asarray([1, 0]), None)
    # The height of foot 0 is z + a sin(theta) - l cos(theta).
    slope = 0.3 * np.cos(0.2) + 0.5 * np.sin(0.2)
    dg = np.array([0, 1, slope, 0, 0, 0])
    expected = np.eye(6) + np.outer(after - before, dg) / (dg @ before)
    assert np.max(np.abs(expected - np.eye(6))) > 0.1
    _close(hj.saltation_matrix(legs, 0.0, x, mode, 0), expected)


def _thrown_on_a_belt():
    """A particle falls on a belt: three states before, two after, of other structure.

    In the air: height q, speed v, place u, with q' = v, v' = -g, u' = c. On the belt:
    place s = u, momentum p = k v, with s' = p, p' = -b p.
    """
    g, c, k, b = 9.81, 0.6, -0.4, 1.7

    def air(t, x, args):
        return dict(q=x["v"], v=jnp.asarray(-g), u=jnp.asarray(c))

    def belt(t, x, args):
        return (jnp.stack([x[0][1], -b * x[0][1]]),)

    def land(t, x, args):
        return (jnp.stack([x["u"], k * x["v"]]),)

    def leave(t, x, args):
        s, p = x[0]
        return dict(q=jnp.zeros_like(s), v=p / k, u=s)

    system = hj.HybridAutomaton(
        {"air": air, "belt": belt},
        [
            hj.Transition("air", "belt", lambda t, x, args: x["q"], land),
            hj.Transition("belt", "air", lambda t, x, args: 2 - x[0][0], leave),
        ],
    )
    return system, g, c, k, b


def test_modes_of_different_size():
    system, g, c, k, b = _thrown_on_a_belt()
    v = -2.3
    x = dict(q=jnp.asarray(0.0), v=jnp.asarray(v), u=jnp.asarray(0.2))
    # Rows s, p; columns in the order of the raveled dict: q, u, v.
    expected = [[(k * v - c) / v, 1, 0], [(k * g - b * k * v) / v, 0, k]]
    _close(hj.saltation_matrix(system, 0.0, x, "air", 0), expected)

    # And back: rows q, u, v; columns s, p.
    p = 0.9
    x = (jnp.asarray([2.0, p]),)
    reset = np.array([[0, 0], [1, 0], [0, 1 / k]])
    before, after = np.array([p, -b * p]), np.array([p / k, c, -g])
    dg = np.array([-1.0, 0])
    expected = reset + np.outer(after - reset @ before, dg) / (dg @ before)
    _close(hj.saltation_matrix(system, 0.0, x, "belt", 1), expected)


def test_product_of_saltations_and_flows_is_the_derivative_of_a_simulation():
    # The Jacobian of a simulation with one event is flow after, saltation, flow before.
    system = models.ball_on_slope(0.3, restitution=0.6, contact="elastic")
    x0 = jnp.asarray([0.2, 1.0, 0.3, -0.4])

    @jax.jit
    def end(x0):
        sol = hj.simulate(system, 0.0, 0.6, x0, "free", max_steps=64, max_events=2)
        return sol.x1, sol.events

    jacobian, events = jax.jacfwd(lambda x: end(x), has_aux=True)(x0)
    assert events.count == 1
    drift = lambda t: np.block(
        [[np.eye(2), t * np.eye(2)], [np.zeros((2, 2)), np.eye(2)]]
    )
    t, x = events.t[0], events.x_before[0]
    saltation = hj.saltation_matrix(system, t, x, "free", 0)
    _close(jacobian, drift(0.6 - t) @ saltation @ drift(t), 1e-11)


def test_transforms():
    system = models.BallOnPaddle()

    def matrix(system, t, v):
        x = jnp.stack([system.paddle(t)[0], v])
        return hj.saltation_matrix(system, t, x, 0, 0)

    ts, vs = jnp.linspace(0.0, 0.5, 5), jnp.linspace(-2.0, -1.0, 5)
    batch = eqx.filter_jit(eqx.filter_vmap(matrix, in_axes=(None, 0, 0)))
    got, one = batch(system, ts, vs), eqx.filter_jit(matrix)
    for i in range(5):
        _close(got[i], one(system, ts[i], vs[i]), 1e-14)
    # It is differentiable: of d(v+)/dv = -e, with respect to e.
    slope = eqx.filter_grad(lambda system: one(system, 0.1, -2.0)[1, 1])(system)
    _close(slope.restitution, -1.0)
    _close(slope.gravity + 1.0, 1.0)


@pytest.mark.parametrize("event", [-1, 1])
def test_no_such_guard(event):
    with pytest.raises(ValueError, match="`event`"):
        hj.saltation_matrix(models.BouncingBall(), 0.0, jnp.zeros(2), 0, event)
