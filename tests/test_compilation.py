"""Programs: without callbacks, cached, exported, ahead of time, traced once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax._jax.common import computed_once
from hybridjax.mechanics._dynamics.dot import dot
from jax import export
from jaxtyping import Array

from .helpers import ball_outcome


# Height, speed, gravity, restitution; a ball bounces twice until 1.5.
_Z = jnp.array([1.0, 0.2, 9.81, 0.8])


def _height(z, t0=0.0, t1=1.5, **options):
    ball = models.BouncingBall(gravity=z[2], restitution=z[3])
    options = dict[str, Any](max_steps=64, max_events=4, throw=False) | options
    return hj.simulate(ball, t0, t1, z[:2], 0, **options).x1[0]


def _exact():
    value = lambda z: ball_outcome(z, 2, t1=1.5)[0]
    return jax.value_and_grad(value)(_Z)


#
# Callbacks
#


def _projected(z):
    octants = models.affine_octants()
    t1 = 1.0 + 0 * z[0]
    return hj.simulate(
        octants, 0.0, t1, z[:3], event_method=hj.Project(0.01), throw=False
    ).x1[0]


_PROGRAMS = {
    "value": _height,
    "gradient": jax.value_and_grad(_height),
    "jvp": lambda z: jax.jvp(_height, (z,), (z,)),
    "hessian": jax.hessian(_height),
    "times": jax.grad(lambda z: _height(z, t0=0.1 * z[1], t1=1.5 * z[0])),
    # Not its gradient: the linear solve in that is of lineax, which checks it.
    "implicit": lambda z: _height(z, solver=dfx.Kvaerno3()),
    "checkpoints": jax.grad(lambda z: _height(z, checkpoints=2)),
    "Project": jax.grad(_projected),
}


_each = [
    pytest.param(name, marks=[pytest.mark.thorough] * (name == "hessian"))
    for name in _PROGRAMS
]


@pytest.mark.parametrize("name", _each)
def test_no_callback(name):
    assert "callback" not in jax.jit(_PROGRAMS[name]).lower(_Z).as_text()
    assert (
        "callback" not in jax.jit(jax.vmap(_PROGRAMS[name])).lower(_Z[None]).as_text()
    )


def test_callback_only_in_a_program_of_the_user():
    # So that the test above can fail; and so that errors are raised there.
    throws = jax.jit(lambda z: _height(z, throw=True))
    assert "callback" in throws.lower(_Z).as_text()


@pytest.mark.parametrize("of", ["value", "grad", "vmap", "vmap of grad"])
def test_eager_calls_raise(of):
    # A ball that does not stop bouncing: also where JAX transforms what fails, what
    # comes is the error itself.
    fails = lambda z: _height(z, throw=True, t1=9.0)
    fn = {
        "value": fails,
        "grad": jax.grad(fails),
        "vmap": lambda z: jax.vmap(fails)(z[None]),
        "vmap of grad": lambda z: jax.vmap(jax.grad(fails))(z[None]),
    }[of]
    with pytest.raises(
        hj.SimulationError, match=r"max_events`, which is \d+\.\nAt time \d"
    ):
        fn(_Z)


def test_traced_times():
    run = lambda t0, t1: hj.simulate(
        models.BouncingBall(), t0, t1, _Z[:2], 0, max_steps=64, throw=False
    )
    results = jax.jit(jax.vmap(lambda t0, t1: run(t0, t1).result))(
        jnp.array([0.0, 1.0, jnp.nan, 0.0, 0.5]),
        jnp.array([1.0, 0.0, 1.0, jnp.inf, 0.5]),
    )
    good = results == hj.RESULTS.successful
    assert good.tolist() == [True, False, False, False, True]
    assert (results == hj.RESULTS.invalid_interval).tolist() == (~good).tolist()
    # What is known is an error when it is traced.
    with pytest.raises(ValueError, match="`t1` must not be less than `t0`"):
        jax.jit(lambda z: _height(z, t0=2.0))(_Z)


#
# Cache, export, ahead of time
#


def test_persistent_cache(tmp_path):
    program = Path(__file__).parent / "cached_process.py"
    outputs = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        outputs.append([float(word) for word in run.stdout.split()])
    (found_first, missed, *first), (found, missed_again, *second) = outputs
    assert missed > 0
    assert found == found_first + missed
    assert missed_again == 0
    assert first == second


def test_export():
    program = jax.jit(jax.value_and_grad(_height))
    loaded = export.deserialize(export.export(program)(_Z).serialize())
    got, expected = loaded.call(_Z), _exact()
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-9)


def test_ahead_of_time():
    compiled = jax.jit(jax.value_and_grad(_height)).lower(_Z).compile()
    got, expected = compiled(_Z), _exact()
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-9)


@pytest.mark.parametrize("goal", ["fast_to_run", "fast_to_compile"])
def test_compiler_options(goal):
    options = hj.compiler_options(goal)
    assert len(options) > 0 or jax.default_backend() != "cpu"
    got = jax.jit(jax.value_and_grad(_height), compiler_options=options)(_Z)
    expected = _exact()
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-9)


def test_passes_that_are_disabled_already(monkeypatch):
    mine = "--xla_disable_hlo_passes="
    monkeypatch.setenv("XLA_FLAGS", f"{mine}algsimp --xla_a=b {mine}cse,dce --xla_c=d")
    passes = hj.compiler_options().get("xla_disable_hlo_passes", "")
    if jax.default_backend() == "cpu":
        # XLA heeds all of several flags, but no flag beside an option of a program.
        assert passes.split(",")[:3] == ["algsimp", "cse", "dce"]
        assert "while-loop-invariant-code-motion" in passes.split(",")


def test_compiler_options_that_do_not_exist():
    with pytest.raises(ValueError, match="`goal` must be one of.*'fast_to_compile'"):
        hj.compiler_options("fast")  # pyright: ignore


#
# Traces
#


class _Growth(eqx.Module):
    rate: Array

    def field(self, x):
        return -jnp.exp(self.rate * x)

    def again(self, x):
        return self.field(x)


class _Grows(hj.AbstractHybridSystem):
    """Methods that are bound to one module: each holds it."""

    fields: tuple

    def flow(self, t, x, mode, args):
        return sum(field(x) for field in self.fields)

    def guards(self, t, x, mode, args):
        return self.fields[-1](x) + 9.0

    def jump(self, t, x, mode, event, args):
        return x + self.fields[0](x), mode


def _grown(fields, z):
    sol = hj.simulate(_Grows(fields), 0.0, z[0], z[1:2], 0, max_steps=64, throw=False)
    return sol.x1[0]


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad])
def test_what_is_shared_is_computed_once(transform):
    # By value and derivative it is what it is with modules of their own, in a program
    # with as many exponential functions as if it was there once.
    def of(fields):
        program = jax.jit(transform(lambda z: _grown(fields(_Growth(z[2])), z)))
        return program.lower(z).as_text().count("exponential"), program(z)

    z = jnp.array([1.0, 2.0, 0.5])
    count, _ = of(lambda one: (one.field,))
    shared, got = of(lambda one: (one.field, one.again))
    apart, expected = of(lambda one: (one.field, _Growth(1.0 * one.rate).again))
    assert shared == count < apart
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    # With twice the rate -exp(a x), exp(-a x) grows by 2 a t.
    truth = lambda z: -jnp.log(jnp.exp(-z[2] * z[1]) + 2 * z[2] * z[0]) / z[2]
    np.testing.assert_allclose(got, transform(truth)(z), rtol=1e-6)


def test_computed_once():
    def fn(x, tree):
        a, b = jnp.sin(x), jnp.sin(x) + np.arange(3.0)
        jax.debug.callback(lambda x: seen.append(float(x[0])), x)
        jax.debug.callback(lambda x: seen.append(float(x[0])), x)
        # Of one, the second result is not needed; of the other, both are.
        first, _ = lax.split(tree, (1, 2))
        both = lax.split(tree, (1, 2))
        c = jnp.cos(x) * 0.0 + jnp.cos(x) * -0.0 + np.arange(3.0)
        return a + b, first, both, c, x + outside, jnp.tan(x) * 0 + a

    seen, outside, x = [], np.arange(3.0), jnp.array([0.3, -1.0, 2.0])
    closed = jax.make_jaxpr(fn)(x, x)
    jaxpr, consts = computed_once(closed.jaxpr, closed.consts)
    got = jax.core.eval_jaxpr(jaxpr, consts, x, x)
    assert len(seen) == 2
    for a, b in zip(got, jax.tree.leaves(fn(x, x)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert names.count("sin") == names.count("cos") == 1
    assert names.count("mul") == 3
    assert len(consts) == 1


@pytest.mark.parametrize("transform", [lambda f: f, jax.value_and_grad, jax.hessian])
def test_traced_once(transform):
    calls = []

    class Counted(hj.AbstractHybridSystem):
        def flow(self, t, x, mode, args):
            calls.append("flow")
            return jnp.stack([x[1], -args])

        def guards(self, t, x, mode, args):
            calls.append("guards")
            return x[:1]

        def jump(self, t, x, mode, event, args):
            calls.append("jump")
            return -0.8 * x, mode

    def loss(z):
        sol = hj.simulate(Counted(), 0.0, 1.0, z[:2], 0, z[2], max_steps=64)
        return sol.x1[0] + sol.events.t[0] + sol.xs[0, 1]

    jax.jit(transform(loss)).lower(_Z)
    assert calls == ["flow", "guards", "jump"]


#
# Small products
#


_SHAPES = [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,))]


@pytest.mark.parametrize("axes", [(None, None), (0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("lanes", [3, 40])
def test_dot(lanes, axes):
    # Sums for few lanes, products of matrices for many, in any combination.
    exact = lambda a, b: jnp.matmul(a, b, precision="highest")

    def results(product, shapes):
        rng = np.random.default_rng(0)
        pairs = zip([rng.normal(size=shape) for shape in shapes], axes, strict=True)
        args = [np.stack([v] * lanes) if axis == 0 else v for v, axis in pairs]
        loss = lambda a, b: jnp.sum(jnp.sin(product(a, b)))
        both = lambda a, b: (product(a, b), jax.grad(loss, (0, 1))(a, b))
        return jax.jit(both if axes == (None, None) else jax.vmap(both, axes))(*args)

    same = lambda got, expected: np.testing.assert_allclose(got, expected, atol=1e-14)
    for shapes in _SHAPES:
        jax.tree.map(same, results(dot, shapes), results(exact, shapes))
