from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import Balls


def _solve(inputs, checkpoints, max_steps=64, max_events=24, throw=False):
    return hj.simulate(
        Balls(inputs["gravity"], inputs["restitution"]),
        inputs["t0"],
        inputs["t1"],
        inputs["x0"],
        0,
        checkpoints=checkpoints,
        max_steps=max_steps,
        max_events=max_events,
        throw=throw,
    )


def _loss(inputs, checkpoints):
    sol = _solve(inputs, checkpoints)
    events = sol.events
    log = jnp.where(jnp.isfinite(events.t), events.t * jnp.sin(events.t), 0)
    speeds = jnp.where(jnp.isfinite(events.x_before), events.x_before, 0)
    loss = sol.x1 @ jnp.array([1.0, -2.0, 0.5, 3.0]) + jnp.sum(log)
    return loss + jnp.sum(speeds[:, 2:] ** 2), sol


def _lanes(n):
    heights = jnp.stack([jnp.linspace(0.3, 0.9, n), jnp.linspace(0.71, 0.37, n)], 1)
    speeds = jnp.stack([jnp.linspace(-1, 1, n), jnp.linspace(0.5, 0.2, n)], 1)
    return {
        "x0": jnp.concatenate([heights, speeds], axis=1),
        "gravity": jnp.linspace(9.0, 10.0, n),
        "restitution": jnp.linspace(0.85, 0.75, n),
        "t0": jnp.linspace(-0.1, 0.2, n),
        "t1": jnp.linspace(1.0, 2.05, n),
    }


def test_as_without():
    # The starts of the pieces fall everywhere among the events of the lanes.
    lanes = _lanes(23)

    def all_of_it(checkpoints):
        loss = lambda inputs: _loss(inputs, checkpoints)

        def one(inputs):
            value, push, sol = jax.linearize(loss, inputs, has_aux=True)
            slope = push(jax.tree.map(jnp.ones_like, inputs))
            (ct,) = jax.linear_transpose(push, inputs)(jnp.ones_like(value))
            return value, slope, ct, sol.x1, sol.events, sol.result._value, sol.xs

        return jax.jit(jax.vmap(one))(lanes)

    expected = all_of_it(None)
    assert len(set(np.asarray(expected[4].count))) > 4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        all_of_it(5),
        expected,
    )


@pytest.mark.thorough
def test_memory():
    inputs = jax.tree.map(lambda leaf: leaf[0], _lanes(2))

    def temporary_bytes(checkpoints, max_steps):
        def loss(inputs):
            sol = _solve(inputs, checkpoints, max_steps)
            return jnp.sum(sol.x1)

        # As for users: `conftest.py` turns off what finds that something is not needed.
        options = hj.compiler_options()
        program = jax.jit(jax.grad(loss), compiler_options=options)
        compiled = program.lower(inputs).compile()
        statistics: Any = compiled.memory_analysis()
        return statistics.temp_size_in_bytes

    whole = temporary_bytes(None, 20_000)
    row = 8 * (3 + 2 * 4) + 4 * 4  # t, dt, rate, x, x_pre; mode, event, its class
    assert whole < 1.5 * 20_000 * row
    assert temporary_bytes(100, 200) < whole / 20


@pytest.mark.thorough
def test_failures():
    lanes = _lanes(6)
    # The fifth piece of some lanes has more events than there may be in all.
    solve = lambda inputs: _solve(inputs, 5, max_events=7)
    sol = jax.jit(jax.vmap(solve))(lanes)
    plain = jax.jit(jax.vmap(lambda inputs: _solve(inputs, None)))(lanes)
    many = plain.events.count > 7
    assert many.any() and not many.all()
    assert (sol.result == hj.RESULTS.max_events_reached)[many].all()
    assert (sol.result == hj.RESULTS.successful)[~many].all()
    np.testing.assert_allclose(sol.x1[~many], plain.x1[~many], atol=1e-10)
    assert np.isnan(sol.xs[many]).all() and np.isfinite(sol.xs[~many]).all()
    assert (sol.stats["t_end"][many] < lanes["t1"][many] + 1e-12).all()
    np.testing.assert_allclose(sol.events.t[~many], plain.events.t[~many, :7])
    inputs = jax.tree.map(lambda leaf: leaf[int(np.argmax(many))], lanes)
    with pytest.raises(hj.SimulationError, match="max_events"):
        _solve(inputs, 5, max_events=7, throw=True)


def test_errors():
    inputs = jax.tree.map(lambda leaf: leaf[0], _lanes(2))

    def simulate(checkpoints: Any = 2, **kwargs):
        x0 = inputs["x0"]
        return hj.simulate(Balls(), 0.0, 1.0, x0, 0, checkpoints=checkpoints, **kwargs)

    with pytest.raises(ValueError, match="`checkpoints` must be at least 1"):
        simulate(0)
    with pytest.raises(ValueError, match="`checkpoints` must be an integer"):
        simulate(2.0)
    with pytest.raises(ValueError, match="`saveat` must be"):
        simulate(saveat=dfx.SaveAt(ts=jnp.array([0.5])))
    with pytest.raises(ValueError, match="`progress_meter` must be left out"):
        simulate(progress_meter=dfx.TextProgressMeter())
    with pytest.raises(ValueError, match="keeps no path"):
        simulate().evaluate(0.5)
