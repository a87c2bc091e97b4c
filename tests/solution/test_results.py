"""What can go wrong, and what the user gets."""

import functools
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import bouncing_ball, same_rounding


#
# Failures in a batch
#


class _Ball(hj.AbstractHybridSystem):
    """A bouncing ball below a ceiling, with what it takes to go wrong.

    `args` are the restitution, the height of the ceiling, the time from which on the
    vector field is NaN, and the frequency of a force.
    """

    def flow(self, t, x, mode, args):
        _, _, poison, frequency = args
        force = jnp.where(frequency > 0, jnp.sin(frequency * t), 0.0)
        return jnp.stack([x[1], jnp.where(t >= poison, jnp.nan, force - 10.0)])

    def guards(self, t, x, mode, args):
        return jnp.stack([x[0], args[1] - x[0]])

    def jump(self, t, x, mode, event, args):
        return jnp.stack([x[0], -args[0] * x[1]]), mode


_NEVER = 1e3


def _lane(q=1.0, v=0.0, restitution=0.8, ceiling=9.0, poison=_NEVER, frequency=0.0):
    return np.array([q, v, restitution, ceiling, poison, frequency])


# The fall from 1.25 takes half a second.
_good = [
    _lane(),
    _lane(1.25, 0.5, 0.7),
    _lane(0.6, 3.0),
    _lane(1.25, 0.0, 1.0),
    _lane(0.8, 6.0, ceiling=1.9),
    _lane(1.1, frequency=5.0),
]
_bad = {
    "zeno": _lane(1.25, 0.0, 0.5),
    "zeno, at rest": _lane(0.0, 0.0),
    "zeno, low": _lane(1e-10, 0.0, 0.7),
    "zeno, dead stop": _lane(1.25, 0.0, 0.0),
    "grazing": _lane(0.2, 4.0, ceiling=1.0),
    "max_events_reached": _lane(0.5, 60.0, 1.0, ceiling=1.0),
    "max_steps_reached": _lane(1.0, frequency=1e4),
    "nonfinite_state": _lane(1.0, poison=0.7),
    "nonfinite_state, at once": _lane(1.0, poison=0.0),
}


def _simulate(lane, throw=False, **options):
    x0, args = lane[:2], tuple(lane[2:])
    options = dict[str, Any](max_steps=256, max_events=64) | options
    return hj.simulate(_Ball(), 0.0, 2.0, x0, 0, args, throw=throw, **options)


def _loss(lane):
    sol = _simulate(lane)
    return sol.x1[0] ** 2, sol


@functools.partial(jax.jit, compiler_options=same_rounding())
def _batch(lanes):
    """Solutions, and the gradient of each lane's own loss."""
    value_and_grad = jax.vmap(jax.value_and_grad(_loss, has_aux=True))
    (_, sol), grads = value_and_grad(lanes)
    return sol, grads


@functools.partial(jax.jit, compiler_options=same_rounding())
def _masked_mean(lanes):
    def mean(lanes):
        loss, sol = jax.vmap(_loss)(lanes)
        ok = sol.result == hj.RESULTS.successful
        return jnp.mean(jnp.where(ok, loss, 0.0))

    return jax.value_and_grad(mean)(lanes)


@pytest.fixture(scope="module")
def lanes():
    """Good and bad lanes in turn, and the good ones alone."""
    bad = list(_bad.values())
    good = [_good[i % len(_good)] for i in range(len(bad))]
    mixed = [lane for pair in zip(good, bad, strict=True) for lane in pair]
    return jnp.asarray(np.stack(mixed)), jnp.asarray(np.repeat(good, 2, axis=0))


def _public(sol):
    stats = {name: sol.stats[name] for name in ("num_steps", "t_end")}
    log = sol.events
    return (sol.ts, sol.xs, sol.modes, sol.x1, sol.mode1, log, stats, sol.result)


def test_results(lanes):
    sol, grads = _batch(lanes[0])
    for i, name in enumerate(_bad):
        one = jax.tree.map(lambda a, i=i: a[2 * i + 1], sol)
        assert one.result == getattr(hj.RESULTS, name.split(",")[0]), name
        # A failed lane has stopped where it is, in finite time, and has no gradient.
        assert 0 <= one.stats["t_end"] < 2
        assert np.isfinite(one.x1).all()
        assert np.isnan(grads[2 * i + 1]).all() or one.x1[0] == 0
    assert (jax.tree.map(lambda a: a[::2], sol.result) == hj.RESULTS.successful).all()
    # Where the event would be, and was.
    at = lambda name: jax.tree.map(lambda a: a[2 * list(_bad).index(name) + 1], sol)
    np.testing.assert_allclose(at("zeno").stats["t_end"], 1.5, rtol=0, atol=1e-9)
    np.testing.assert_allclose(at("zeno, dead stop").stats["t_end"], 0.5, atol=1e-9)
    assert at("zeno, at rest").stats["t_end"] == 0
    np.testing.assert_allclose(at("nonfinite_state").stats["t_end"], 0.7, atol=1e-9)
    assert at("max_events_reached").events.count == 64


def test_failures_do_not_disturb_other_lanes(lanes):
    mixed, only = (_batch(batch) for batch in lanes)
    got, want = ((_public(sol), grads) for sol, grads in (mixed, only))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a[::2], b[::2])
    # And they are right.
    good = np.asarray(lanes[1])[::2]
    plain = (good[:, 3] == 9.0) & (good[:, 5] == 0)
    assert plain.sum() >= 4
    for i in np.nonzero(plain)[0]:
        q, v, e = good[i, :3]
        truth = bouncing_ball(q, e, 2.0, speed=v, gravity=10.0)
        np.testing.assert_allclose(mixed[0].x1[2 * i], truth, rtol=0, atol=1e-7)


@pytest.mark.thorough
def test_gradient_of_masked_mean(lanes):
    value, grads = _masked_mean(lanes[0])
    sol, each = _batch(lanes[0])
    n = len(_bad)
    assert np.isfinite(grads).all()
    np.testing.assert_array_equal(grads[1::2], 0)
    np.testing.assert_allclose(grads[::2], each[::2] / (2 * n), rtol=0, atol=1e-15)
    np.testing.assert_allclose(value, jnp.sum(sol.x1[::2, 0] ** 2) / (2 * n))
    # The first lane again, by hand: q(2) after the bounces of a ball from q0 = 1.
    step = 1e-6
    high, low = (
        bouncing_ball(1.0 + d, 0.8, 2.0, gravity=10.0)[0] for d in (step, -step)
    )
    slope = (high**2 - low**2) / (2 * step)
    np.testing.assert_allclose(grads[0, 0], slope / (2 * n), rtol=1e-6)


def test_nan_in_the_initial_state(lanes):
    bad = lanes[1].at[1::2].set(_lane(np.nan))
    got, want = _batch(bad), _batch(lanes[1])
    results = jax.tree.map(lambda a: a[1::2], got[0].result)
    assert (results == hj.RESULTS.nonfinite_state).all()
    for a, b in zip(
        jax.tree.leaves((_public(got[0]), got[1])),
        jax.tree.leaves((_public(want[0]), want[1])),
        strict=True,
    ):
        np.testing.assert_array_equal(a[::2], b[::2])


#
# Messages
#


_messages = {
    "zeno": [
        "Events accumulate",
        "say which mode",
        "At time 1.5,",
        "in mode 0",
        "guard 0",
    ],
    "zeno, at rest": ["Events accumulate", "At time 0,", "in mode 0", "guard 0"],
    "grazing": ["touched tangentially", "At time 0.", "in mode 0", "guard 1"],
    "max_events_reached": ["Try increasing `max_events`, which is 64.\n", "At time 1."],
    "max_steps_reached": ["Try increasing `max_steps`, which is 256.\n", "At time 0."],
    "nonfinite_state": ["NaN or infinity", "At time 0.", "in mode 0"],
}


@pytest.mark.parametrize("name", _messages)
def test_message(name):
    lane = jnp.asarray(_bad[name])
    with pytest.raises(hj.SimulationError) as info:
        _simulate(lane, throw=True)
    text = str(info.value)
    for part in _messages[name]:
        assert part in text


def test_derivatives_alone_raise():
    # A compiled program that returns derivatives only does not compute the state.
    height = lambda lane: _simulate(lane, throw=True).x1[0]
    gradient = jax.jit(jax.grad(height))
    assert jnp.all(jnp.isfinite(gradient(_good[1])))
    with pytest.raises(Exception, match="NaN or infinity.*\n.*At time 0.7,"):
        jax.block_until_ready(gradient(_bad["nonfinite_state"]))


@pytest.mark.parametrize("part", ["mode1", "modes", "stats", "result", "events"])
def test_whatever_is_read_raises(part):
    # Under `jit`, only what is returned is computed.
    def read(lane):
        sol = _simulate(lane, throw=True)
        arrays = jax.tree.leaves(eqx.filter(getattr(sol, part), eqx.is_array))
        return [a for a in arrays if not jnp.issubdtype(a.dtype, jnp.floating)]

    with pytest.raises(Exception, match="NaN or infinity.*\n.*At time 0.7,"):
        jax.block_until_ready(jax.jit(read)(_bad["nonfinite_state"]))


def test_no_error_without_failure():
    sol = _simulate(jnp.asarray(_good[0]), throw=True)
    assert sol.result == hj.RESULTS.successful


def test_message_of_a_batch(lanes):
    # The first lane that failed is named.
    solve = lambda lane: _simulate(lane, throw=True).x1
    with pytest.raises(Exception, match="Events accumulate.*\n.*At time 1.5,") as info:
        jax.block_until_ready(jax.jit(jax.vmap(solve))(lanes[0]))
    # JAX puts the traceback of its callback before it, and on GPUs a name after it.
    end = "\nAt time 1.5, after 75 % of the interval, in mode 0, at guard 0."
    message, *_ = str(info.value).partition(" [executable_name=")
    assert message.rstrip().endswith(end)


def test_message_of_a_clock():
    # A clock that is set back by less than what time can resolve at 1e9.
    class Clock(hj.AbstractHybridSystem):
        def flow(self, t, x, mode, args):
            return -jnp.ones_like(x)

        def guards(self, t, x, mode, args):
            return x

        def jump(self, t, x, mode, event, args):
            return x + 1e-5, mode

    with pytest.raises(hj.SimulationError, match="clock, make it.*\nAt time 1000"):
        hj.simulate(Clock(), 1e9, 1e9 + 1, jnp.ones(1) / 2, 0, max_steps=64)


def test_message_of_an_automaton():
    g = 10.0
    fly = lambda t, x, args: jnp.stack([x[1], -g * jnp.ones(())])
    height = lambda t, x, args: x[0]
    bounce = lambda t, x, args: jnp.stack([x[0], -0.5 * x[1]])
    system = hj.HybridAutomaton(
        {"rolling": lambda t, x, args: x, "flight": fly},
        [
            hj.Transition("rolling", "flight", height),
            hj.Transition("flight", "flight", height, bounce),
        ],
    )
    with pytest.raises(hj.SimulationError) as info:
        hj.simulate(system, 0.0, 2.0, jnp.array([1.25, 0.0]), "flight", max_steps=256)
    text = str(info.value)
    assert "Events accumulate" in text
    assert "in mode 'flight'" in text
    assert "at guard 1 (flight -> flight)" in text


#
# Grazing
#


def test_near_grazing(lanes):
    """Apexes near a ceiling: touched to rounding, it is an error; hit or missed by
    little, the trajectory is right."""
    n = len(lanes[0])
    # The apex of a ball from 0.2 at speed 4 is 1.0.
    above = np.array([1e-3, 1e-6, 1e-9, -1e-9, -1e-6, -1e-3, 0.0])
    batch = np.stack([_lane(0.2, 4.0, 1.0, ceiling=1.0 - d) for d in above])
    batch = np.concatenate([batch, np.repeat(batch[-1:], n - len(batch), axis=0)])
    sol, grads = _batch(jnp.asarray(batch))
    assert (jax.tree.map(lambda a: a[6:], sol.result) == hj.RESULTS.grazing).all()
    for i, d in enumerate(above[:-1]):
        one = jax.tree.map(lambda a, i=i: a[i], sol)
        assert one.result == hj.RESULTS.successful
        # With restitution 1 the ceiling shortens each flight: so much later it falls.
        spent = 2 * np.sqrt(2 * max(d, 0) / 10.0)
        first = 0.4 - spent / 2 if d > 0 else 0.4 + np.sqrt(2 / 10.0)
        np.testing.assert_allclose(one.events.t[0], first, rtol=0, atol=1e-7)
        assert one.events.event[0] == (1 if d > 0 else 0)
        assert np.isfinite(grads[i]).all()


#
# The floor
#


@jax.jit
@jax.vmap
def _dense(height, restitution):
    lane = jnp.stack([height, 0.0 * height, restitution, 9.0, _NEVER, 0.0])
    sol = _simulate(lane, max_steps=384, max_events=128)
    end = sol.stats["t_end"]
    # Everywhere, and where the bounces are low.
    ts = jnp.concatenate(
        [jnp.linspace(0.0, 2.0, 501), end * (1 - jnp.geomspace(1e-12, 0.5, 500))]
    )
    return ts, sol.evaluate(ts)[:, 0], sol


def test_never_below_the_floor():
    n = 300
    rng = np.random.default_rng(0)
    height = 10 ** rng.uniform(-3, 0.2, n)
    restitution = rng.uniform(0.0, 1.0, n)
    ts, q, sol = jax.tree.map(np.asarray, _dense(height, restitution))
    reached = ts <= sol.stats["t_end"][:, None]
    np.testing.assert_array_equal(np.isnan(q), ~reached)
    assert q[reached].min() >= -1e-9
    assert sol.x1[:, 0].min() >= -1e-9
    # Most of them come to rest before the end, and are stopped there.
    fall = np.sqrt(2 * height / 10)
    rest = fall * (1 + restitution) / (1 - restitution)
    stopped = np.asarray(sol.result != hj.RESULTS.successful)
    assert stopped.sum() > 100
    assert (rest[stopped] < 2.01).all()
    # Stopped within the resolution of the last bounces that it counts.
    zeno = np.asarray(sol.result == hj.RESULTS.zeno)
    np.testing.assert_allclose(sol.stats["t_end"][zeno], rest[zeno], rtol=0, atol=1e-9)
    assert zeno.sum() > 50


#
# Inputs that cannot be used
#


def _call(system=None, t0=0.0, t1=1.0, x0=None, mode0=0, **options):
    system = _Ball() if system is None else system
    x0 = jnp.array([1.0, 0.0]) if x0 is None else x0
    args = options.pop("args", (0.8, 9.0, _NEVER, 0.0))
    return hj.simulate(system, t0, t1, x0, mode0, args, **options)


class _Given(hj.AbstractHybridSystem):
    """A system whose functions return what they are given."""

    flow_: Callable = eqx.field(static=True, default=lambda x: x)
    guards_: Callable = eqx.field(static=True, default=lambda x: x[:1])
    jump_: Callable = eqx.field(static=True, default=lambda x, mode: (x, mode))

    def flow(self, t, x, mode, args):
        return self.flow_(x)

    def guards(self, t, x, mode, args):
        return self.guards_(x)

    def jump(self, t, x, mode, event, args):
        return self.jump_(x, mode)


def _automaton(guard=lambda t, x, args: x[0], reset=lambda t, x, args: x):
    modes = {"a": lambda t, x, args: -x, "b": lambda t, x, args: x}
    return hj.HybridAutomaton(modes, [hj.Transition("a", "b", guard, reset)])


_reverse_only = jax.custom_vjp(lambda x: x[:1])
_reverse_only.defvjp(lambda x: (x[:1], x), lambda x, ct: (jnp.zeros_like(x),))


_bounces = hj.HybridAutomaton(
    {"a": lambda t, x, args: jnp.stack(x)},
    [hj.Transition("a", "a", lambda t, x, args: x[0], lambda t, x, args: jnp.stack(x))],
)


_unusable = {
    "system": (dict(system=1), "`system` must be a `hj.AbstractHybridSystem`.*int"),
    "x0 int": (dict(x0=jnp.array([1, 0])), "`x0`.*floating.*int.*Convert"),
    "x0 python int": (dict(x0=(1, 2.0)), "`x0`.*floating.*int.*Convert"),
    "x0 complex": (dict(x0=jnp.array([1j])), "`x0`.*floating.*complex"),
    "x0 empty": (dict(x0=()), "`x0` must have at least one array"),
    "x0 string": (dict(x0="high"), "`x0`.*str"),
    "t0 shape": (dict(t0=jnp.zeros(2)), "`t0` must be a real scalar.*\\(2,\\)"),
    "t1 shape": (dict(t1=jnp.ones((1,))), "`t1` must be a real scalar.*\\(1,\\)"),
    "t1 complex": (dict(t1=1j), "`t1` must be a real scalar"),
    "t1 none": (dict(t1=None), "`t1` must be a real scalar.*NoneType"),
    "t1 before t0": (dict(t0=1.0, t1=0.0), "`t1` must not be less than `t0`.*reverse"),
    "t1 nan": (dict(t1=float("nan")), "`t1` must be finite"),
    "t0 infinite": (dict(t0=-np.inf), "`t0` must be finite"),
    "mode0 missing": (dict(mode0=None), "`mode0` must be given"),
    "mode0 float": (dict(mode0=0.0), "`mode0`.*integer or boolean.*float"),
    "mode0 name": (dict(mode0="flight"), "`mode0` is the name 'flight'.*integer"),
    "automaton, missing mode": (
        dict(system=_automaton(), mode0=None),
        "`mode0` must be given: one of \\['a', 'b'\\]",
    ),
    "automaton, unknown mode": (
        dict(system=_automaton(), mode0="c"),
        "\\['a', 'b'\\], but it is 'c'",
    ),
    "automaton, mode too large": (
        dict(system=_automaton(), mode0=2),
        "\\['a', 'b'\\] or an integer from 0 to 1, but it is 2",
    ),
    "automaton, guard int": (
        dict(system=_automaton(guard=lambda t, x, args: 1), mode0="a"),
        "guard of transition 0 \\('a' -> 'b'\\).*int",
    ),
    "automaton, guard bool": (
        dict(system=_automaton(guard=lambda t, x, args: x[0] < 0), mode0="a"),
        "guard of transition 0 \\('a' -> 'b'\\).*bool",
    ),
    "automaton, guard vector": (
        dict(system=_automaton(guard=lambda t, x, args: x), mode0="a"),
        "guard of transition 0 \\('a' -> 'b'\\).*shape \\(2,\\)",
    ),
    "flow shape": (
        dict(system=_Given(flow_=lambda x: x[:1])),
        "`flow`.*shapes of `x`.*\\(1,\\) where `x` has \\(2,\\)",
    ),
    "a list as a state": (
        dict(x0=[1.0, 0.0], system=_Given(flow_=lambda x: jnp.ones(2))),
        "state is a list of numbers.*`jnp.array\\(x0\\)`",
    ),
    "a list as a state of an automaton": (
        dict(x0=[1.0, 0.0], system=_bounces, mode0="a"),
        "returns ShapeDtypeStruct.*state is a list of numbers.*`jnp.array\\(x0\\)`",
    ),
    "dt0 negative": (dict(dt0=-0.1), "`dt0` must be positive, but it is -0.1"),
    "dt0 nan": (dict(dt0=np.nan), "`dt0` must be positive, but it is nan"),
    "flow structure": (dict(system=_Given(flow_=lambda x: (x,))), "`flow`.*structure"),
    "flow dtype": (
        dict(system=_Given(flow_=lambda x: 1j * x)),
        "`flow` returned complex.*`x`",
    ),
    "guards scalar": (
        dict(system=_Given(guards_=lambda x: x[0])),
        "`guards` must return a floating-point vector.*Stack",
    ),
    "guards dtype": (
        dict(system=_Given(guards_=lambda x: x[:1] < 0)),
        "`guards` must return a floating-point vector.*bool",
    ),
    "guards, reverse mode only": (
        dict(system=_Given(guards_=_reverse_only)),
        "`guards` must have a derivative in forward mode.*`jax.custom_jvp`",
    ),
    "jump not a pair": (
        dict(system=_Given(jump_=lambda x, mode: x)),
        "`jump` must return a pair",
    ),
    "jump shape": (
        dict(system=_Given(jump_=lambda x, mode: (x[:1], mode))),
        "`jump`.*shapes of `x`",
    ),
    "jump mode": (
        dict(system=_Given(jump_=lambda x, mode: (x, (mode, mode)))),
        "`jump`.*structure of `mode`",
    ),
    "jump mode float": (
        dict(system=_Given(jump_=lambda x, mode: (x, 1.0))),
        "`jump` returned float.*`mode`",
    ),
    "saveat": (dict(saveat=[0.5]), "`saveat` must be a `diffrax.SaveAt`.*list"),
    "saveat state": (
        dict(saveat=dfx.SaveAt(t1=True, solver_state=True)),
        "`saveat`.*`solver_state`",
    ),
    "saveat steps": (dict(saveat=dfx.SaveAt(steps=3)), "`saveat`.*`steps`.*3"),
    "max_steps": (dict(max_steps=0), "`max_steps` must be at least 1.*0"),
    "max_steps none": (dict(max_steps=None), "`max_steps` must be an integer"),
    "max_events": (dict(max_events=-1), "`max_events` must be at least 1.*-1"),
    "max_events float": (dict(max_events=2.5), "`max_events`.*integer.*float"),
    "event_method": (dict(event_method="locate"), "`event_method`.*`hj.Locate`.*str"),
    "solver": (dict(solver="Tsit5"), "`solver` must be a diffrax solver.*'Tsit5'"),
    "solver for SDEs": (dict(solver=dfx.SEA()), "`solver`.*ordinary.*SEA"),
    "solver, two terms": (dict(solver=dfx.KenCarp4()), "`solver`.*ordinary.*KenCarp4"),
    "solver of several steps": (
        dict(solver=dfx.LeapfrogMidpoint()),
        "`solver` must be a one-step method.*LeapfrogMidpoint",
    ),
    "controller": (
        dict(stepsize_controller=1e-3),
        "`stepsize_controller` must be a diffrax step size controller.*0.001",
    ),
    "dt0 missing": (
        dict(stepsize_controller=dfx.ConstantStepSize()),
        "`dt0`",
    ),
    "dt0 shape": (dict(dt0=jnp.ones(2)), "`dt0` must be a real scalar"),
    "tolerances of an implicit solver": (
        dict(
            solver=dfx.Kvaerno5(), stepsize_controller=dfx.ConstantStepSize(), dt0=0.1
        ),
        "`solver` must have tolerances",
    ),
}


@pytest.mark.parametrize("name", _unusable)
def test_unusable_input(name):
    options, message = _unusable[name]
    with pytest.raises(ValueError, match=message):
        _call(**options)


def test_unusable_automaton():
    field, guard = (lambda t, x, args: x), (lambda t, x, args: x[0])
    with pytest.raises(ValueError, match="`modes` must have at least one mode"):
        hj.HybridAutomaton({}, [])
    with pytest.raises(ValueError, match="transition 0 names 'c'.*\\['a'\\]"):
        hj.HybridAutomaton({"a": field}, [hj.Transition("a", "c", guard)])
    transitions = [
        hj.Transition("a", "b", guard, lambda t, x, args: x),
        hj.Transition("a", "b", guard, lambda t, x, args: x[:1]),
    ]
    system = hj.HybridAutomaton({"a": field, "b": field}, transitions)
    with pytest.raises(ValueError, match="transition 1 \\('a' -> 'b'\\)"):
        hj.simulate(system, 0.0, 1.0, jnp.ones(2), "a")
