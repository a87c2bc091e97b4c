"""Costs that are integrated along a trajectory, across events."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import Multibody

from ..helpers import both_jacobians, error, value_and_jacobian


_tight = dfx.PIDController(rtol=1e-11, atol=1e-11)


def _ball_cost(z, bounces):
    """The integrals of v² and of the height, exactly: a ball falls and rises in
    parabolas. And the first of them with three times the final height."""
    q, v, g, e = z
    t, spent = 0.0, jnp.zeros(2)

    def spend(q, v, s):
        square = v**2 * s - v * g * s**2 + g**2 * s**3 / 3
        return jnp.stack([square, q * s + v * s**2 / 2 - g * s**3 / 6])

    for _ in range(bounces):
        impact = -jnp.sqrt(v**2 + 2 * g * q)
        s = (v - impact) / g
        spent = spent + spend(q, v, s)
        t, q, v = t + s, 0.0, -e * impact
    s = 2.0 - t
    spent = spent + spend(q, v, s)
    return jnp.append(spent, spent[0] + 3 * (q + v * s - g * s**2 / 2))


def test_bouncing_ball():
    # The first running cost jumps at impacts that lose energy, the other one does not.
    def outcome(z):
        q, v, g, e = z
        system = hj.with_cost(
            models.BouncingBall(gravity=g, restitution=e),
            lambda t, x, dx, mode, args: jnp.stack([dx[0] ** 2, x[0]]),
            lambda t, x, args: jnp.stack([3 * x[0], 0.0]),
        )
        x0 = (jnp.stack([q, v]), jnp.zeros(2))
        sol = hj.simulate(system, 0.0, 2.0, x0, 0, stepsize_controller=_tight)
        _, spent = sol.x1
        total = system.cost(sol.t1, sol.x1)
        return jnp.append(spent, total[0]), sol.events.count

    jacobians = both_jacobians(outcome)
    for z in [[1.0, 0.0, 9.81, 0.8], [0.6, 2.0, 9.81, 0.9], [1.5, -1.0, 5.0, 0.5]]:
        z = jnp.array(z)
        value, forward, reverse, count = jacobians(z)
        exact = value_and_jacobian(lambda z, n=int(count): _ball_cost(z, n))
        expected, jacobian = exact(z)
        assert count >= 2
        assert error(value, expected) < 1e-8
        assert error(forward, jacobian) < 1e-8
        assert error(reverse, jacobian) < 1e-8


def test_running_cost_that_jumps():
    # (29): what costs 1 in one mode and nothing in the other is the time in that mode.
    # It is the sum of differences of event times, and so are its sensitivities.
    def outcome(z):
        height, stiffness = z
        hopper = models.spring_hopper(stiffness=stiffness)
        contact = lambda t, x, dx, mode, args: (mode[0] > 0).astype(float)
        system = hj.with_cost(hopper, contact)
        x0 = (jnp.stack([height, 0.0]), 0.0)
        sol = hj.simulate(system, 0.0, 2.2, x0, stepsize_controller=_tight)
        t = sol.events.t
        between = (t[1] - t[0]) + (t[3] - t[2])
        return jnp.stack([sol.x1[1], between]), sol.events.count

    jacobians = both_jacobians(outcome)
    for z in [[2.0, 100.0], [1.7, 300.0], [1.9, 1000.0]]:
        value, forward, reverse, count = jacobians(jnp.array(z))
        assert count == 4
        np.testing.assert_allclose(value[0], value[1], rtol=1e-9)
        assert error(forward[0], forward[1]) < 1e-9
        assert error(reverse[0], reverse[1]) < 1e-9
        assert jnp.max(jnp.abs(forward[0])) > 1e-3


def test_controls():
    # A thrust, linear between its values at five times, lifts a ball that bounces; its
    # cost is its square. Against finite differences.
    ball = models.BouncingBall()
    times = jnp.linspace(0.0, 2.0, 5)
    # Steps end where the thrust has a kink.
    controller = dfx.ClipStepSizeController(_tight, jump_ts=times)

    class Lifted(hj.AbstractHybridSystem):
        def flow(self, t, x, mode, args):
            return ball.flow(t, x, mode, None).at[1].add(jnp.interp(t, times, args))

        def guards(self, t, x, mode, args):
            return ball.guards(t, x, mode, None)

        def jump(self, t, x, mode, event, args):
            return ball.jump(t, x, mode, event, None)

    def psi(x0, control):
        system = hj.with_cost(
            Lifted(),
            lambda t, x, dx, mode, args: jnp.interp(t, times, args) ** 2 + t * x[0],
            lambda t, x, args: (x[0] - 1.0) ** 2,
        )
        sol = hj.simulate(
            system, 0.0, 2.0, (x0, 0.0), 0, control, stepsize_controller=controller
        )
        return system.cost(sol.t1, sol.x1, control)

    jacobians = both_jacobians(lambda z: (psi(z[:2], z[2:])[None], None))
    value = jax.jit(lambda z: psi(z[:2], z[2:]))
    for control in [[0.0, 1.0, 2.0, 0.0, -1.0], [3.0, 0.0, 0.0, 5.0, 2.0]]:
        z = jnp.array([1.0, 0.5, *control])
        _, forward, reverse, _ = jacobians(z)
        steps = 1e-5 * jnp.eye(7)
        slopes = jnp.stack([value(z + step) - value(z - step) for step in steps])
        assert error(forward[0], slopes / 2e-5) < 1e-7
        assert error(reverse[0], slopes / 2e-5) < 1e-7


def test_multipliers_and_structures():
    # Costs of a constraint force and of an acceleration, as a pytree, in float32, in a
    # batch: the impulse of the stick of a pendulum is what its momentum needs.
    body = models.acrobat().vector_fields[0]
    assert isinstance(body, Multibody)

    def running(t, x, dx, mode, args):
        force = -2 * body.multipliers(t, x)[0] * (x[0][2:] - x[0][:2])
        return {"force": force, "acceleration": dx[1]}

    system = hj.with_cost(body, running)
    q = jnp.array([0.0, 0.0, -np.cos(0.3), -np.sin(0.3)], jnp.float32)
    z0 = {"force": jnp.zeros(2, jnp.float32), "acceleration": jnp.zeros(4, jnp.float32)}

    def run(rate):
        v = rate * jnp.array([0.0, 0.0, np.sin(0.3), -np.cos(0.3)], jnp.float32)
        sol = hj.simulate(
            system,
            0.0,
            0.4,
            ((q, v), z0),
            stepsize_controller=dfx.PIDController(rtol=1e-5, atol=1e-5),
        )
        return v, *sol.x1

    v0, (_, v1), z = jax.jit(jax.vmap(run))(jnp.array([0.0, -1.0, 2.0], jnp.float32))
    assert all(a.dtype == jnp.float32 for a in z.values())
    np.testing.assert_allclose(z["acceleration"], v1 - v0, atol=2e-4)
    # Of the feet: 2 (2 v2 + v1) / 6, with v1 = 0, gravity's half and the rod's force;
    # the bar holds the hands.
    momentum = 2 * (v1 - v0)[:, 2:] / 3
    gravity = np.array([0.0, -9.81 * 0.4], np.float32)
    np.testing.assert_allclose(z["force"], momentum - gravity[None], atol=1e-3)


def test_errors():
    ball = models.BouncingBall()
    spend = lambda t, x, dx, mode, args: x[0] ** 2
    system = hj.with_cost(ball, spend, lambda t, x, args: x)
    x0 = jnp.array([1.0, 0.0])
    with pytest.raises(ValueError, match=r"a pair `\(x, z\)`"):
        hj.simulate(system, 0.0, 1.0, x0, 0)
    with pytest.raises(ValueError, match="`running` must return"):
        hj.simulate(system, 0.0, 1.0, (x0, jnp.zeros(2)), 0)
    with pytest.raises(ValueError, match="`terminal` must return"):
        system.cost(1.0, (x0, jnp.zeros(())))
    with pytest.raises(ValueError, match="`mode0` must be given"):
        hj.simulate(system, 0.0, 1.0, (x0, 0.0))
    with pytest.raises(ValueError, match="`system` must be a hybrid system"):
        hj.with_cost(spend, spend)  # pyright: ignore
    # Failures name modes and guards as those of the system itself.
    acrobat = hj.with_cost(models.acrobat(), lambda t, x, dx, mode, args: t)
    q = jnp.array([0.0, 0.0, -1.0, 0.0])
    message = r"'flying', at guard 1 \(flying -> sliding\)"
    with pytest.raises(hj.SimulationError, match=message):
        x0 = ((q, jnp.zeros(4)), 0.0)
        hj.simulate(acrobat, 0.0, 5.0, x0, "swinging", max_events=1)
