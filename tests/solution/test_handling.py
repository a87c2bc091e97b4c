"""Solutions as things: printed, copied, stored, cut into pieces, put into tables."""

import copy
import io
import pickle
import sys
from typing import Any

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax._solution import stored_path
from hybridjax._systems.names import Names
from jaxtyping import Array, Float

from ..helpers import bounce_times, bouncing_ball


_START = jnp.array([1.0, 0.3])
_TIMES = np.linspace(0.0, 2.0, 41)


@pytest.fixture(scope="module")
def bounces():
    return hj.simulate(models.BouncingBall(), 0.0, 2.0, _START, 0, max_steps=64)


@pytest.fixture(scope="module")
def block():
    x0 = (jnp.zeros(2), jnp.array([0.2, 0.0]))
    return hj.simulate(models.block_on_incline(), 0.0, 1.0, x0, max_steps=256)


#
# An automaton with states of different structure, in a batch
#


def _fall(t, x, args):
    return {"q": x["v"], "v": -args}


def _height(t, x, args):
    return x["q"]


def _begin_to_slide(t, x, args):
    return jnp.stack([-x["v"], jnp.ones_like(args)])


def _never(t, x, args):
    return 1 + x @ x


class _Slide(eqx.Module):
    rate: Array

    # What pickle does not like: a bound method with annotations; and two of one module.
    def field(self, t, x: Float[Array, "2"], args):
        return -self.rate * x


def _drop(height, gravity, max_events=2):
    slide = _Slide(jnp.ones(()))
    system = hj.HybridAutomaton(
        {"fall": _fall, "slide": slide.field, "rest": slide.field},
        [
            hj.Transition("fall", "slide", _height, _begin_to_slide),
            hj.Transition("slide", "rest", _never),
        ],
    )
    return hj.simulate(
        system,
        0.0,
        2.0,
        {"q": height, "v": jnp.zeros_like(height)},
        "fall",
        gravity,
        max_steps=64,
        max_events=max_events,
        throw=False,
    )


_HEIGHTS, _GRAVITIES = jnp.array([1.0, 0.3, 1.7]), jnp.array([9.0, 10.0, 0.3])


@pytest.fixture(scope="module")
def drops():
    return jax.jit(jax.vmap(_drop))(_HEIGHTS, _GRAVITIES)


def _lane(sol, i):
    return jax.tree.map(lambda a: a[i], sol)


def _same(a, b):
    leaves, others = jax.tree.leaves(a), jax.tree.leaves(b)
    for leaf, other in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(leaf, other)


#
# Printed
#


def test_printed(bounces, drops):
    steps = int(bounces.stats["num_steps"])
    line = f"Solution(successful, t=0 to 2, mode=0, events=3, steps={steps})"
    assert repr(bounces) == str(bounces) == line
    text = repr(_lane(drops, 0))
    assert text.startswith("Solution(successful, t=0 to 2, mode='slide', events=1, ")
    least, most = np.min(drops.stats["num_steps"]), np.max(drops.stats["num_steps"])
    assert repr(drops) == (
        "Solution(batch of shape (3,): 3 successful; events=0 to 1, "
        f"steps={least} to {most})"
    )
    # What has the structure of a solution only.
    assert repr(jax.tree.map(lambda _: None, bounces)) == "Solution(without values)"
    structs = eqx.filter_eval_shape(lambda: bounces)
    assert repr(structs) == "Solution(without values)"


def test_names_of_modes():
    names = Names(
        (((0, "down"), (1, "up"), (-1, "lost")),), ("hit",), (("lost", "why"),)
    )
    assert names.mode(np.array(1)) == "up" and names.mode(2, show=repr) == "'2'"
    assert names.mode(np.array([0, 1])) == "[down, up]"
    # A part of a mode without names, and modes without any.
    mode = {"a": np.array([1, 0]), "b": np.array(3)}
    assert names.mode(mode) == "[a=[up, down], b=3]"
    assert Names().mode(mode) == "[a=[1, 0], b=3]" and Names().mode(()) == "[]"
    assert names.mode_in_message(np.array([0, -1])) == "[down, lost] (entry 1: why)"
    assert [names.guard(i) for i in (-1, 0, 1)] == ["", "hit", "guard 1"]
    assert names.guard_in_message(0) == "guard 0 (hit)"
    assert names.guard_in_message(1) == "guard 1"


def test_printed_after_a_failure():
    ball = models.BouncingBall()
    run = jax.vmap(
        lambda x0: hj.simulate(ball, 0.0, 2.0, x0, 0, max_events=2, throw=False)
    )
    sol = run(jnp.array([[1.0, 0.3], [2.0, 0.0]]))
    counts = "1 successful, 1 max_events_reached; events=2, steps="
    assert repr(sol).startswith(f"Solution(batch of shape (2,): {counts}")
    t = f"{sol.stats['t_end'][0]:.6g}"
    text = f"Solution(max_events_reached, t=0 to {t} of 2, mode=0, events=2, steps="
    assert repr(_lane(sol, 0)).startswith(text)


def test_printed_while_traced():
    texts = []

    def run(height):
        sol = _drop(height, 9.0 * jnp.ones(()))
        texts.append(f"{sol} {sol.result} {sol.events.t} {sol.xs}")
        return sol.x1["slide"]

    jax.jit(jax.vmap(jax.grad(lambda h: jnp.sum(run(h))))).lower(_HEIGHTS)
    assert texts[0].startswith("Solution(traced) ")


def test_success_has_a_name(bounces):
    for result in (bounces.result, hj.RESULTS.successful):
        assert str(result).endswith("RESULTS<successful>")
    assert hj.RESULTS[hj.RESULTS.successful] == "successful"
    assert dfx.RESULTS[dfx.RESULTS.successful] == ""
    assert hj.RESULTS.promote(dfx.RESULTS.successful) == hj.RESULTS.successful


#
# Copied and stored
#


def test_pickled(bounces, drops):
    back = pickle.loads(pickle.dumps(drops))
    _same(back, drops)
    assert repr(back) == repr(drops)
    one = _lane(back, 1)
    x, mode = one.evaluate_with_mode(_TIMES)
    _same((x, mode), _lane(drops, 1).evaluate_with_mode(_TIMES))
    landing = np.sqrt(2 * 0.3 / 10)
    np.testing.assert_array_equal(mode, _TIMES > landing)
    falls = np.where(_TIMES < landing, 0.3 - 5 * _TIMES**2, 0.0)
    np.testing.assert_allclose(x["fall"]["q"], falls, atol=1e-9)
    slides = np.sqrt(2 * 0.3 * 10) * np.exp(landing - _TIMES)
    slides = np.where(_TIMES > landing, slides, 0.0)
    np.testing.assert_allclose(x["slide"][:, 0], slides, atol=1e-8)
    # Of an eager call; again; and its parts.
    back = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(bounces))))
    _same(back, bounces)
    truth = [bouncing_ball(1.0, 0.8, t, 0.3) for t in _TIMES]
    np.testing.assert_allclose(back.evaluate(_TIMES), truth, atol=1e-7)
    _same(pickle.loads(pickle.dumps(bounces.events)).t, bounces.events.t)
    assert pickle.loads(pickle.dumps(bounces.result)) == bounces.result
    # Those of one program are of one type.
    twice = [pickle.loads(pickle.dumps(_lane(drops, i))) for i in (0, 1)]
    both = jax.tree.map(lambda *a: jnp.stack(a), *twice)
    _same(_lane(both, 1), _lane(drops, 1))
    assert jax.tree.structure(both) == jax.tree.structure(one)
    # First asked for within a trace, then outside.
    back = pickle.loads(pickle.dumps(bounces))
    inside = jax.jit(jax.vmap(jax.grad(lambda t: back.evaluate(t)[0])))(_TIMES)
    np.testing.assert_allclose(inside, np.stack(truth)[:, 1], atol=1e-7)
    _same(back.evaluate(_TIMES), bounces.evaluate(_TIMES))


def _projected():
    hopper = models.spring_hopper()
    x0 = jnp.array([1.1, 0.0])
    return hj.simulate(hopper, 0.0, 1.0, x0, event_method=hj.Project(0.001))


def _with_cost():
    spent = lambda t, x, dx, mode, args: x[1] ** 2
    system = hj.with_cost(models.BouncingBall(), spent)
    return hj.simulate(system, 0.0, 1.0, (_START, 0.0), 0)


def _in_pieces():
    return hj.simulate(models.BouncingBall(), 0.0, 2.0, _START, 0, checkpoints=2)


@pytest.mark.thorough
def test_pickled_kinds(block):
    times = np.linspace(0.0, 1.0, 11)
    for sol in (block, _projected()):
        back = pickle.loads(pickle.dumps(sol))
        _same(back, sol)
        _same(back.evaluate(times), sol.evaluate(times))


def test_pickled_without_a_path():
    # The system cannot be pickled; all else can.
    sol = _with_cost()
    back = pickle.loads(pickle.dumps(sol))
    _same(back, sol)
    message = "(?s)was pickled.*_with_cost.<locals>.*by `saveat` or `evaluate`"
    with pytest.raises(ValueError, match=message):
        back.evaluate(0.5)
    with pytest.raises(ValueError, match=message):
        back.segments()[0].evaluate(0.1)
    # Nor is there one here, with or without pickle.
    sol = _in_pieces()
    back = pickle.loads(pickle.dumps(sol))
    _same(back, sol)
    with pytest.raises(ValueError, match="`checkpoints` keeps no path"):
        back.evaluate(0.5)


def test_pickled_system_that_is_gone(drops, monkeypatch):
    data = pickle.dumps(drops)
    stored_path._unpickled.cache_clear()
    monkeypatch.delattr(sys.modules[__name__], "_Slide")
    back = pickle.loads(data)
    _same(back, drops)
    with pytest.raises(ValueError, match="(?s)was pickled.*_Slide.*imported"):
        _lane(back, 0).evaluate(0.5)


def test_pickled_closures():
    # What the functions close over is traced, and cannot be pickled.
    def run(gravity):
        fall = lambda t, x, args: {"q": x["v"], "v": -gravity}
        system = hj.HybridAutomaton({"fall": fall}, [])
        x0 = {"q": 1.0, "v": 0.0}
        return hj.simulate(system, 0.0, 1.0, x0, "fall", max_steps=16, throw=False)

    sol = jax.jit(run)(9.0)
    assert pickle.loads(pickle.dumps(sol)).x1["q"] == sol.x1["q"]


def test_copied(drops):
    for twin in (copy.deepcopy(drops), copy.copy(drops)):
        assert jax.tree.structure(twin) == jax.tree.structure(drops)
        _same(twin, drops)
        _same(_lane(twin, 2).evaluate(_TIMES), _lane(drops, 2).evaluate(_TIMES))


def test_serialised(bounces, drops):
    for sol in (bounces, drops):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, sol)
        file.seek(0)
        like = jax.tree.map(lambda a: jnp.zeros_like(a) if eqx.is_array(a) else a, sol)
        _same(eqx.tree_deserialise_leaves(file, like), sol)


#
# In pieces
#


def test_segments(bounces):
    segments = bounces.segments()
    hits = bounce_times(1.0, 0.8, 3, 0.3)
    limits = [0.0, *hits, 2.0]
    assert [s.event for s in segments] == [0, 0, 0, -1]
    assert [s.event_name for s in segments] == ["guard 0"] * 3 + [""]
    for k, s in enumerate(segments):
        assert (s.mode, s.mode_name) == (0, "0")
        np.testing.assert_allclose([s.t0, s.t1], limits[k : k + 2], atol=1e-8)
        speed = _START[1] if k == 0 else bouncing_ball(1.0, 0.8, hits[k - 1], 0.3)[1]
        times = np.linspace(s.t0, s.t1, 7)
        d, xs = times - s.t0, s.evaluate(times)
        parabola = [s.x0[0] + speed * d - 9.81 * d**2 / 2, speed - 9.81 * d]
        np.testing.assert_allclose(xs.T, parabola, atol=1e-7)
        # Both limits, to all digits.
        _same([xs[0], xs[-1]], [s.x0, s.x1])
        _same([s.evaluate(s.t0), s.evaluate(s.t1)], [s.x0, s.x1])
    np.testing.assert_allclose(segments[1].x0[1], -0.8 * segments[0].x1[1])
    _same(segments[-1].x1, bounces.x1)
    with pytest.raises(ValueError, match="`t` must be within the segment, from 0.0 to"):
        segments[0].evaluate(np.array([0.1, 1.9]))


def test_segments_of_an_automaton(drops):
    first, last = _lane(drops, 1).segments()
    assert (first.mode_name, first.event_name) == ("fall", "fall -> slide")
    assert (last.mode_name, last.event_name) == ("slide", "")
    assert (first.x0["fall"]["q"], last.x0["slide"][1]) == (0.3, 1.0)
    np.testing.assert_allclose(first.evaluate(first.t1)["fall"]["q"], 0, atol=1e-12)
    assert last.evaluate(last.t0)["slide"][1] == 1.0
    # Nothing happens.
    (whole,) = _lane(drops, 2).segments()
    assert (whole.t0, whole.t1, whole.event) == (0.0, 2.0, -1)


def test_segments_of_one_instant():
    # Two balls that land together, and a start on the ground: between such events no
    # time passes.
    balls = models.Balls(9.81 * jnp.ones(()), 0.8 * jnp.ones(()))
    x0 = jnp.array([0.5, 0.5, 0.0, 0.0])
    options: Any = dict(checkpoints=None, max_steps=64)
    for checkpoints in (None, 2):
        options["checkpoints"] = checkpoints
        sol = hj.simulate(balls, 0.0, 0.5, x0, 0, **options)
        first, inner, last = sol.segments()
        assert (first.event, inner.event, last.event) == (0, 1, -1)
        assert first.t1 == inner.t0 == inner.t1 == last.t0
        _same(first.x0, x0)
        _same(inner.x0, inner.x1)
        assert (first.x1[2:] < 0).all() and (last.x0[2:] > 0).all()
        assert (np.sign(inner.x0[2:]) == [1, -1]).all()
        if checkpoints is None:
            _same(inner.evaluate(np.array([inner.t0] * 2)), np.stack([inner.x1] * 2))
        else:
            with pytest.raises(ValueError, match="`checkpoints` keeps no path"):
                inner.evaluate(inner.t0)


#
# Tables
#


def test_trimmed(bounces):
    log = bounces.events.trim()
    assert isinstance(log, hj.EventLog) and isinstance(log.t, np.ndarray)
    assert log.t.shape == log.mode_after.shape == log.normal_speed.shape == (3,)
    assert log.x_before.shape == (3, 2) and log.count == 3
    _same(log.x_after, bounces.events.x_after[:3])
    _same(log.trim(), log)


def test_table(bounces, drops):
    table = bounces.events.to_dict()
    states = ["x_before[0]", "x_before[1]", "x_after[0]", "x_after[1]"]
    assert list(table) == [
        *("t", "event", "guard", "mode_before", "mode_after", *states, "normal_speed")
    ]
    assert all(isinstance(a, np.ndarray) and a.shape == (3,) for a in table.values())
    np.testing.assert_allclose(table["t"], bounce_times(1.0, 0.8, 3, 0.3), atol=1e-8)
    np.testing.assert_allclose(table["x_after[1]"], -0.8 * table["x_before[1]"])
    assert table["guard"].tolist() == ["guard 0"] * 3
    table = _lane(drops, 1).events.to_dict()
    assert table["guard"].tolist() == ["fall -> slide"]
    assert table["mode_before"].tolist() == ["fall"]
    assert table["mode_after"].tolist() == ["slide"]
    assert table["x_after.slide[1]"].tolist() == [1.0]
    assert "x_before.fall.q" in table
    # No rows.
    empty = _lane(drops, 2).events.to_dict()
    assert {a.shape for a in empty.values()} == {(0,)} and list(empty) == list(table)


def test_table_of_contacts(block):
    table = block.events.to_dict()
    assert table["guard"].tolist() == ["contact 0: slip backward or stop"]
    assert table["mode_before[0]"].tolist() == ["FORWARD"]
    assert table["mode_after[0]"].tolist() == ["STICKING"]
    assert {"x_before.0[1]", "x_after.1[0]"} < set(table)
    assert [s.mode_name for s in block.segments()] == ["[FORWARD]", "[STICKING]"]
    assert "mode=[STICKING]" in repr(block)
    # Without the modes that only say what is watched.
    every = jnp.array(list(hj.mechanics.ContactMode), jnp.int32)
    fold = hj.mechanics.ContactMode.physical
    folded = jax.jit(fold)(every)
    assert folded.dtype == jnp.int32
    assert folded.tolist() == [-3, -2, -1, 0, 1, 2, 3, 0, 0, 2, 3, 8, 8, 10]
    modes = lambda log: (log.mode_before, log.mode_after)
    slips = eqx.tree_at(
        modes, block.events, replace_fn=lambda m: jnp.where(m < 0, m, 6)
    )
    assert slips.to_dict()["mode_after[0]"].tolist() == ["SLIPPING_FORWARD"]
    folded = eqx.tree_at(modes, slips, replace_fn=fold)
    assert folded.to_dict()["mode_after[0]"].tolist() == ["FORWARD"]
    _same(folded.mode_after[1:], block.events.mode_after[1:])


@pytest.mark.parametrize("method", ["segments", "trim", "to_dict"])
def test_one_that_is_done(method, drops):
    call = lambda sol: getattr(sol if method == "segments" else sol.events, method)()
    which = "trim" if method == "to_dict" else method
    with pytest.raises(ValueError, match=rf"`{which}` is for one.*\(3,\).*a\[i\], sol"):
        call(drops)
    with pytest.raises(ValueError, match=f"`{which}` depends.*Return the solution"):
        jax.jit(lambda h: call(_drop(h, h)))(0.3)
