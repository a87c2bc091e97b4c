"""A ball on ground that may be learnt."""

import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax import models

from ..helpers import both_jacobians, error


def test_on_a_slope():
    # Beside the one on a slope that is given by its angle.
    def simulate(system, x0):
        sol = hj.simulate(
            system, 0.0, 1.0, x0, 0, max_steps=64, max_events=6, throw=False
        )
        return sol, sol.events.count

    def ours(z):
        slope, gravity, restitution, *x0 = z
        ball = models.BallOnGround(
            lambda x: slope * x, lambda q, v: jnp.zeros(2), gravity, restitution
        )
        sol, count = simulate(ball, (jnp.stack(x0[:2]), jnp.stack(x0[2:])))
        return jnp.concatenate([*sol.x1, sol.events.t[:1]]), count

    def theirs(z):
        slope, gravity, restitution, *x0 = z
        ball = models.ball_on_slope(
            -jnp.arctan(slope), 1.0, gravity, restitution=restitution, contact="elastic"
        )
        sol, _ = simulate(ball, jnp.stack(x0))
        return jnp.concatenate([sol.x1, sol.events.t[:1]])

    jacobians = both_jacobians(ours)
    reference = jax.jit(lambda z: (theirs(z), jax.jacrev(theirs)(z)))
    counts = set()
    for s in np.linspace(-1, 1, 7):
        z = jnp.array([0.3 * s, 9.81, 0.75 + 0.1 * s, 0.1, 0.8 + 0.3 * s, 0.3, -s])
        value, forward, reverse, count = jacobians(z)
        counts.add(int(count))
        expected, jacobian = reference(z)
        assert error(value, expected) < 1e-9
        assert error(forward, jacobian) < 1e-7 and error(reverse, jacobian) < 1e-7
    assert len(counts) > 1


def test_any_ground_is_left():
    # Whatever a network makes of it: as contacts of mechanical systems are, and with
    # the rate of the gap reversed.
    def one(key, data):
        ground = eqx.nn.MLP(1, "scalar", 8, 2, activation=jnp.tanh, key=key)
        ground = jax.tree.map(lambda a: 6 * a if eqx.is_array(a) else a, ground)
        height = lambda x: ground(x[None])
        q, v = jnp.stack([data[0], height(data[0])]), data[1:3]
        e = (data[3] + 1) / 2
        force = lambda q, v: jnp.zeros(2)
        ball = models.BallOnGround(height, force, restitution=e)
        rate = lambda v: jax.jvp(ball.gap, (q,), (v,))[1]
        v = jnp.where(rate(v) < 0, v, -v)
        system = hj.mechanics.MechanicalSystem(
            mass_matrix=lambda q, args: jnp.ones(2),
            effort=lambda t, q, v, args: jnp.array([0.0, -9.81]),
            gap=lambda q, args: jnp.stack([ball.gap(q)]),
            n_contacts=1,
            restitution=e,
        )
        free = jnp.full((1,), hj.mechanics.ContactMode.FREE)
        t, event = jnp.zeros(()), jnp.asarray(0)
        (_, after), _ = ball.jump(t, (q, v), jnp.asarray(0), event, None)
        (_, expected), _ = system.jump(t, (q, v), free, event, None)
        return after, expected, rate(after), -e * rate(v)

    keys = jax.random.split(jax.random.key(0), 256)
    data = jax.random.uniform(jax.random.key(1), (256, 4), minval=-1.0)
    after, expected, rate, reversed_rate = jax.jit(jax.vmap(one))(keys, data)
    np.testing.assert_allclose(after, expected, atol=1e-6)
    np.testing.assert_allclose(rate, reversed_rate, rtol=1e-9, atol=1e-9)
    assert (np.asarray(rate) > 0).all()
