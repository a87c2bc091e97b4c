"""Second derivatives: exact through isolated events, and none at corners."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import error


# Errors of the solver are far below those that are tested for.
_CONTROLLER = dfx.PIDController(rtol=1e-12, atol=1e-12)
_BOUNCES = 3
# Height, speed, gravity, restitution, t0, t1.
_POINT = jnp.asarray([1.0, 0.3, 9.81, 0.8, 0.1, 2.1])
_FRACTIONS = (0.35, 0.75)


def _ball(z):
    times = z[4] + jnp.asarray(_FRACTIONS, z.dtype) * (z[5] - z[4])
    return hj.simulate(
        models.BouncingBall(z[2], z[3]),
        z[4],
        z[5],
        z[:2],
        0,
        # Of few stages, which compiles faster, and exact: all paths are parabolas.
        solver=dfx.Bosh3(),
        saveat=dfx.SaveAt(ts=times),
        stepsize_controller=_CONTROLLER,
        max_steps=64,
        max_events=4,
    )


def _everything(z):
    """All floats that a solution has."""
    sol = _ball(z)
    log = sol.events
    states = [sol.x1[None], sol.xs, sol.evaluate(z[5] - 0.05)[None]]
    states += [log.x_before[:_BOUNCES], log.x_after[:_BOUNCES]]
    states = jnp.concatenate(states).ravel()
    return jnp.concatenate([states, log.t[:_BOUNCES], log.normal_speed[:_BOUNCES]])


def _exact(z):
    """The same in closed form."""
    q, v, g, e, t0, t1 = z
    flights, impacts = [(t0, q, v)], []
    for _ in range(_BOUNCES):
        begin, q, v = flights[-1]
        impacts.append(-jnp.sqrt(v**2 + 2 * g * q))
        flights.append((begin + (v - impacts[-1]) / g, 0 * q, -e * impacts[-1]))

    def at(time):
        begin, q, v = flights[0]
        for flight in flights[1:]:
            choose = lambda a, b, late=time >= flight[0]: jnp.where(late, a, b)
            begin, q, v = map(choose, flight, (begin, q, v))
        s = time - begin
        return jnp.stack([q + v * s - g * s**2 / 2, v - g * s])

    states = [at(t1), *(at(t0 + f * (t1 - t0)) for f in _FRACTIONS), at(t1 - 0.05)]
    for factor in (1, -e):
        states += [jnp.stack([0 * v, factor * impact]) for impact in impacts]
    times = jnp.stack([begin for begin, _, _ in flights[1:]])
    return jnp.concatenate([jnp.stack(states).ravel(), times, jnp.stack(impacts)])


def test_closed_form():
    # Every second derivative of every output: nothing is left out in silence.
    got = lambda z: (_everything(z), jax.jacfwd(jax.jacrev(_everything))(z))
    exact = lambda z: (_exact(z), jax.jacfwd(jax.jacfwd(_exact))(z))
    shifts = jnp.asarray([[0.05, -0.1, 0.2, 0.01, 0.05, 0.02]])
    zs = _POINT[None] + jnp.asarray([[-1.0], [0.0], [1.0]]) * shifts
    value, second = jax.jit(jax.vmap(got))(zs)
    exact_value, exact_second = jax.jit(jax.vmap(exact))(zs)
    np.testing.assert_allclose(value, exact_value, rtol=0, atol=1e-10)
    size = np.max(np.abs(exact_second), axis=(2, 3), keepdims=True)
    off = np.abs(second - exact_second)
    assert np.all(off <= 1e-9 * np.maximum(size, 1))


def test_all_ways_agree():
    weights = jnp.asarray([1.0, -0.4, 0.7, -2.0, 0.3])

    def loss(z):
        sol = _ball(z)
        return weights @ jnp.concatenate([sol.x1, sol.events.t[:_BOUNCES]])

    v = jnp.asarray([0.3, -1.0, 0.2, 0.5, 0.1, 0.4])
    pick = jnp.zeros(len(_exact(_POINT)))
    # x1 comes first; the times before the speeds, which come last.
    place = jnp.asarray([0, 1, *range(pick.size - 2 * _BOUNCES, pick.size - _BOUNCES)])
    pick = pick.at[place].set(weights)
    expected = jax.jit(jax.hessian(lambda z: pick @ _exact(z)))(_POINT)

    # Outside of any `jax.jit` of the user's own, too.
    product = jax.jvp(jax.grad(loss), (_POINT,), (v,))[1]
    assert error(product, expected @ v) < 1e-9
    along = lambda z: jax.jvp(loss, (z,), (v,))[1]
    # (Batches, and reverse mode first, are in `test_closed_form`.)
    assert error(jax.jit(jax.jacfwd(along))(_POINT), expected @ v) < 1e-9


def _thrown(z):
    # Drag; two guards; one flies over the wall, or bounces off it.
    system = models.ThrownBall(
        drag=z[4],
        restitution_ground=z[5],
        restitution_wall=z[6],
        wall_position=z[7],
        wall_height=2.0,
    )
    sol = hj.simulate(
        system,
        0.0,
        1.6,
        z[:4],
        0,
        stepsize_controller=_CONTROLLER,
        max_steps=256,
        max_events=8,
    )
    return sol.x1 @ jnp.asarray([1.0, -0.5, 0.3, 0.2]) + sol.events.t[1], sol.events


def _on_paddle(z):
    # The guard and the reset depend on time.
    system = models.BallOnPaddle(*z[2:6])
    sol = hj.simulate(
        system,
        z[6],
        z[7],
        z[:2],
        0,
        stepsize_controller=_CONTROLLER,
        max_steps=256,
        max_events=8,
    )
    return sol.x1 @ jnp.asarray([1.0, -0.5]) + sol.events.t[1], sol.events


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fn, points",
    (
        (
            _thrown,
            [
                [0.0, 1.0, 4.0, 2.0, 0.05, 0.8, 0.7, 3.0],
                [0.5, 0.8, 3.0, 1.0, 0.02, 0.7, 0.9, 2.4],
            ],
        ),
        (
            _on_paddle,
            [
                [0.3, 0.2, 9.81, 0.8, 0.02, 1.5, 0.1, 1.0],
                [0.5, -0.3, 9.0, 0.7, 0.03, 1.1, -0.2, 0.9],
            ],
        ),
    ),
    ids=("thrown", "on_paddle"),
)
def test_differences_of_the_gradient(fn, points):
    def gradient(z):
        slope, log = jax.grad(fn, has_aux=True)(z)
        return slope, (slope, log.count)

    # One program, of which the differences take what is beside the derivative.
    hessian = jax.jit(jax.jacfwd(gradient, has_aux=True))
    counts = set()
    for z in jnp.asarray(points):
        got, _ = hessian(z)
        step = 2e-3
        columns = []
        for direction in step * jnp.eye(z.size):
            shifts = (-3, -2, -1, 1, 2, 3)
            slopes = [hessian(z + k * direction)[1] for k in shifts]
            counts |= {int(count) for _, count in slopes}
            stencil = np.array([-1, 9, -45, 45, -9, 1]) / 60 / step
            columns.append(stencil @ np.stack([g for g, _ in slopes]))
        assert error(got, np.stack(columns, axis=1)) < 1e-6
        assert error(got, got.T) < 1e-9
    assert min(counts) >= 2


def test_reverse_mode_over_a_derivative_raises():
    # The error comes when JAX traces: nothing needs to be compiled to see it.
    loss = lambda z: _ball(z).x1[0]
    along = lambda z: jax.jvp(loss, (z,), (z,))[1]
    for second in (jax.grad(along), jax.jacrev(jax.grad(loss)), jax.jacrev(along)):
        with pytest.raises(NotImplementedError, match=r"jax.jacfwd\(jax.grad"):
            jax.eval_shape(second, _POINT)


def test_third_derivatives_raise():
    loss = lambda z: _ball(z).x1[0]
    for third in (jax.jacfwd(jax.hessian(loss)), jax.jacrev(jax.hessian(loss))):
        with pytest.raises(NotImplementedError, match="derivative"):
            jax.eval_shape(third, _POINT)


def _corner(x0, throw):
    # Both surfaces are crossed at once; or, where x0 has different entries, in turns.
    field = lambda t, x, b, args: jnp.where(b[0] == b[1], 1.0, 0.5) * jnp.exp(-x)
    system = hj.EventSelectedSystem(field, lambda t, x, args: x)
    sol = hj.simulate(system, 0.0, 2.0, x0, max_steps=64, max_events=4, throw=throw)
    return sol.x1[1]


@pytest.mark.thorough
def test_no_second_derivative_at_a_corner():
    hessian = lambda throw: jax.hessian(lambda x0: _corner(x0, throw))
    both = jnp.asarray([[-0.5, -0.5], [-0.5, -0.4]])
    got = jax.jit(jax.vmap(hessian(False)))(both)
    assert np.all(np.isnan(got[0]))
    assert np.all(np.isfinite(got[1]))
    with pytest.raises(Exception, match="second derivative of this simulation"):
        jax.block_until_ready(hessian(True)(both[0]))
