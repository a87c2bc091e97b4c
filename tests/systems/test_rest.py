"""Automata whose events accumulate: `hj.Rest`."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import PIDController


def _bouncer(e, speed, bend, gravity, rest):
    """A ball on a table that moves with an acceleration; at rest on it its state is a
    number, its place along the table."""
    table = lambda t: speed * t + bend * t**2 / 2
    velocity = lambda t: speed + bend * t

    def reflect(t, x, args):
        v = velocity(t)
        return jnp.stack([x[0], v - e * (x[1] - v), x[2]])

    modes = {
        "flight": lambda t, x, args: jnp.stack([x[1], -gravity, 0.3 + 0 * t]),
        "table": lambda t, x, args: -x,
    }
    height = lambda t, x, args: x[0] - table(t)
    bounce = hj.Transition("flight", "flight", height, reflect, rest=rest)
    return hj.HybridAutomaton(modes, [bounce])


_stop = hj.Rest("table", lambda t, x, args: x[2:])


def _outcome(p, **options):
    height, e, speed, bend, gravity = p
    system = _bouncer(e, speed, bend, gravity, _stop)
    x0 = jnp.stack([height, 0 * height, 0 * height])
    sol = hj.simulate(system, 0.0, 6.0, x0, "flight", **options)
    return sol.x1["table"][0], sol


def _exact(p):
    height, e, speed, bend, gravity = p
    a = gravity + bend
    impact = jnp.sqrt(speed**2 + 2 * a * height)
    rest = (impact - speed) / a + 2 * e * impact / (a * (1 - e))
    # Until then it moves along the table, and then decays.
    return 0.3 * rest * jnp.exp(rest - 6), rest, a


_low, _high = np.array([(0.2, 1.5), (0.0, 0.8), (-1, 1), (-2, 2), (8, 11)]).T
_points = np.random.default_rng(0).uniform(_low, _high, (32, 5))
_points[0, 1] = 0


@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.thorough)]
)
def test_zeno_point_leads_to_a_mode(dtype):
    atol = 1e-8 if dtype == np.float64 else 1e-5
    options = {"stepsize_controller": PIDController(atol, atol)}

    @jax.jit
    @jax.vmap
    def ours(p):
        value, push, sol = jax.linearize(
            lambda p: _outcome(p, throw=False, **options), p, has_aux=True
        )
        forward = jax.vmap(push)(jnp.eye(5, dtype=dtype))
        (reverse,) = jax.linear_transpose(push, p)(jnp.ones_like(value))
        last = sol.events.t[sol.events.count - 1]
        return value, forward, reverse, (last, sol.result, sol.mode1, sol.events.count)

    value, forward, reverse, (last, result, mode, count) = ours(_points.astype(dtype))
    assert (result == hj.RESULTS.successful).all() and (mode == 1).all()
    assert len(np.unique(count)) > 10
    want, rest, a = jax.vmap(_exact)(_points)
    places = np.abs(_points[:, 2:4]) @ [6, 18]
    rounding = 8 * float(jnp.finfo(dtype).eps) * places
    speed = np.sqrt(2 * a * np.maximum(0.01 * atol, rounding))
    early = np.asarray(rest - last)
    bound = 2 * speed / (a * (1 - _points[:, 1]))
    # What rounding takes from a bounce, those after it lack too.
    tol, more = (1e-8, 1) if dtype == np.float64 else (1e-4, 2)
    assert (early > -tol).all() and (early < more * bound + tol).all()
    # What follows depends on when it came to rest.
    slopes = jax.vmap(jax.grad(lambda p: _exact(p)[0]))(jnp.asarray(_points))
    np.testing.assert_allclose(value, want, atol=3 * np.max(speed))
    if dtype == np.float64:
        # But for bounces that would have been there if e were not zero.
        slopes = slopes.at[0, 1].set(0)
        np.testing.assert_allclose(forward, slopes, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(forward, reverse, atol=100 * tol)


@pytest.mark.thorough
def test_in_pieces():
    p = jnp.array([0.8, 0.5, 0.2, 0.1, 9.81])
    whole, pieces = (
        jax.jit(jax.value_and_grad(lambda p, k=k: _outcome(p, checkpoints=k)[0]))(p)
        for k in (None, 3)
    )
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-6)
    np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-5)


def test_saltation_matrix_into_the_rest():
    rest = hj.Rest("table", _stop.reset, 1e-5)
    system = _bouncer(0.5, 0.0, 0.0, jnp.asarray(9.81), rest)
    for v, mode in ((-1.0, "flight"), (-1e-6, "table")):
        x = jnp.array([0.0, v, 2.0])
        got = hj.saltation_matrix(system, 0.0, x, "flight", 0)
        if mode == "flight":
            fast = [[-0.5, 0, 0], [-9.81 * 1.5 / v, -0.5, 0], [0, 0, 1]]
            np.testing.assert_allclose(got, fast, atol=1e-12)
        else:
            # It stops moving along the table, and decays.
            np.testing.assert_allclose(got, [[(-2.0 - 0.3) / v, 0, 1]], rtol=1e-12)


def test_crossing_to_and_fro():
    # Modes that swing about zero, with less and less speed: each crosses to the other.
    swing = lambda sign: lambda t, x, args: jnp.stack([x[1], sign * 2.0 + 0 * t])
    lose = lambda t, x, args: jnp.stack([x[0], args * x[1]])
    rest = hj.Rest("still", lambda t, x, args: 0 * x, 1e-4)
    sides = {"right": swing(-1), "left": swing(1)}
    system = hj.HybridAutomaton(
        {**sides, "still": lambda t, x, args: 0 * x},
        [
            hj.Transition("right", "left", lambda t, x, args: x[0], lose, rest),
            hj.Transition("left", "right", lambda t, x, args: -x[0], lose, rest),
        ],
    )

    def ours(e):
        x0 = jnp.array([1.0, 0.0])
        sol = hj.simulate(system, 0.0, 9.0, x0, "right", e)
        return sol.events.t[sol.events.count - 1], sol.mode1

    e = jnp.linspace(0.1, 0.7, 13)
    exact = lambda e: 1 + 2 * e / (1 - e)
    last, mode = jax.jit(jax.vmap(ours))(e)
    assert (mode == 2).all()
    np.testing.assert_allclose(last, exact(e), atol=1e-4 / 0.3)


def test_unsuitable_arguments():
    with pytest.raises(ValueError, match="`speed` must be a number, but it has shape"):
        hj.Rest("table", speed=jnp.ones(2))
    with pytest.raises(ValueError, match="transition 0 names 'floor'"):
        _bouncer(0.5, 0.0, 0.0, 9.81, hj.Rest("floor"))
