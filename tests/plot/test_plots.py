"""What is drawn: the data of the artists, against closed forms."""

from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import matplotlib.animation
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hybridjax.plot._arcs import arcs_of
from PIL import Image, ImageSequence


_G, _E, _T1 = 9.81, 0.8, 1.9
_FALL = (2 / _G) ** 0.5  # from 1 m
# Bounces, and the tops between them.
_BOUNCES = _FALL * (1 + 2 * _E * np.array([0, 1, 1 + _E]))
_TOPS = (_BOUNCES[:-1] + _BOUNCES[1:]) / 2
_EVENTS = np.sort(np.concatenate([_BOUNCES, _TOPS]))
_SPEEDS = _G * _FALL * _E ** np.arange(3)  # with which it hits the ground


def _height(t):
    """Between two bounces, with both limits."""
    k = np.clip(np.searchsorted(_BOUNCES, t) - 1, -1, 2)
    since, speed = t - _BOUNCES[k], _E * _SPEEDS[k]
    return np.where(k < 0, 1 - _G * t**2 / 2, speed * since - _G * since**2 / 2)


def _ball(height):
    """A ball that knows whether it goes up."""
    field = lambda t, x, args: jnp.stack([x[1], -_G * jnp.ones_like(t)])
    bounce = lambda t, x, args: jnp.stack([x[0], -_E * x[1]])
    hits = hj.Transition("down", "up", lambda t, x, args: x[0], bounce)
    turns = hj.Transition("up", "down", lambda t, x, args: x[1])
    ball = hj.HybridAutomaton({"down": field, "up": field}, [hits, turns])
    x0 = jnp.stack([height, jnp.zeros_like(height)])
    return hj.simulate(ball, 0.0, _T1, x0, "down", max_steps=64, max_events=8)


@pytest.fixture(scope="module")
def sols():
    """One from 1 m, and one from 0.8 m."""
    return [jax.jit(_ball)(jnp.asarray(height)) for height in (1.0, 0.8)]


@pytest.fixture(scope="module")
def sol(sols):
    return sols[0]


@pytest.fixture(scope="module")
def batch():
    """In float32, with states of different structure."""
    fall = lambda t, x, args: {"q": x["v"], "v": -_G * jnp.ones_like(t)}
    slide = lambda t, x, args: -x
    lands = lambda t, x, args: jnp.stack([x["q"], -x["v"]])
    hits = hj.Transition("fall", "slide", lambda t, x, args: x["q"], lands)
    system = hj.HybridAutomaton({"fall": fall, "slide": slide}, [hits])

    def run(height):
        x0 = {"q": height, "v": jnp.zeros_like(height)}
        return hj.simulate(system, 0.0, 1.0, x0, "fall", max_steps=64, max_events=2)

    return jax.jit(jax.vmap(run))(jnp.array([1.0, 0.8], jnp.float32))


@pytest.fixture
def ax():
    yield plt.figure().subplots()
    plt.close("all")


def _pieces(line):
    """Between the gaps."""
    x, y = line.get_data(orig=False)
    gaps = np.flatnonzero(np.isnan(y))
    split = lambda a: [part[~np.isnan(part)] for part in np.split(a, gaps)]
    return list(zip(split(x), split(y), strict=True))


def test_trajectory(sol, ax):
    artists = hj.plot.trajectory(sol, ax=ax)
    heights, speeds = map(_pieces, artists["arcs"])
    edges = np.array([0, *_EVENTS, _T1])
    assert len(heights) == len(speeds) == 6
    for k, ((t, height), (_, speed)) in enumerate(zip(heights, speeds, strict=True)):
        np.testing.assert_allclose(t[[0, -1]], edges[k : k + 2], atol=1e-7)
        np.testing.assert_allclose(height, _height(t), atol=1e-6)
        # Both limits, and not the state after the event at either end.
        np.testing.assert_allclose(np.diff(speed), -_G * np.diff(t), atol=1e-6)
    assert sum(len(t) for t, _ in heights) >= 500
    # Connectors join the arcs: the speed jumps at bounces only.
    joints = _pieces(artists["jumps"][1])[:-1]
    for k, (t, speed) in enumerate(joints):
        np.testing.assert_allclose(t, _EVENTS[k], atol=1e-7)
        assert list(speed) == [speeds[k][1][-1], speeds[k + 1][1][0]]
    sizes = [abs(speed[1] - speed[0]) for _, speed in joints]
    expected = np.zeros(5)
    expected[::2] = (1 + _E) * _SPEEDS
    np.testing.assert_allclose(sizes, expected, atol=1e-6)
    labels = [line.get_label() for line in artists["arcs"]]
    assert labels == ["x[0]", "x[1]"]
    assert artists["jumps"][1].get_color() == artists["arcs"][1].get_color()
    hits, turns = artists["events"]
    assert (hits.get_label(), turns.get_label()) == ("down -> up", "up -> down")
    np.testing.assert_allclose(hits.get_xdata(), _BOUNCES, atol=1e-7)
    np.testing.assert_allclose(turns.get_xdata(), _TOPS, atol=1e-7)


def test_ribbon(sol, ax):
    patches = hj.plot.trajectory(sol, [0], ax=ax)["modes"]
    assert [p.get_label() for p in patches] == ["down", "up"] * 3
    edges = [(p.get_x(), p.get_x() + p.get_width()) for p in patches]
    expected = np.array([0, *_EVENTS, _T1])
    np.testing.assert_allclose(edges, np.stack([expected[:-1], expected[1:]], 1))
    colours = [p.get_facecolor() for p in patches]
    assert colours[0] == colours[2] != colours[1] == colours[3]
    (ribbon,) = ax.child_axes
    assert {text.get_text() for text in ribbon.texts} == {"down", "up"}
    assert (ax.get_ylabel(), ax.get_xlim()) == ("x[0]", (0, _T1))


def test_names_without_room(sol, ax):
    ax.figure.set_size_inches(0.4, 3)
    hj.plot.trajectory(sol, [0], ax=ax)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["down -> up", "up -> down", "down", "up"]


def test_components(sol, ax):
    energy = lambda x: _G * x[0] + x[1] ** 2 / 2
    (line,) = hj.plot.trajectory(sol, {"energy (J)": energy}, ax=ax)["arcs"]
    assert ax.get_ylabel() == line.get_label() == "energy (J)"
    levels = [np.ptp(e) for _, e in _pieces(line)]
    np.testing.assert_allclose(levels, 0, atol=1e-6)
    wrongs: list[Any] = [[2], [-1], [0.0], ["x[0]"]]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="must be a number from 0 to 1"):
            hj.plot.trajectory(sol, wrong, ax=ax)
    with pytest.raises(ValueError, match="returned an array of shape \\(2,\\)"):
        hj.plot.trajectory(sol, [lambda x: x], ax=ax)


def test_states_of_other_modes_in_float32(batch, ax):
    sol = jax.tree.map(lambda a: a[0], batch)
    arcs = arcs_of(sol)
    assert arcs.x["fall"]["q"].dtype == np.float32
    last, log = int(arcs.ends[0]), sol.events
    assert arcs.t[last] == arcs.t[last + 1] == float(log.t[0])
    falls, slides = slice(last + 1), slice(last + 1, None)
    height, speed = arcs.x["fall"]["q"], arcs.x["slide"][:, 1]
    # Where a mode has no such component there is a gap.
    assert np.isnan(height[slides]).all() and np.isnan(speed[falls]).all()
    # Limits, to the last digit.
    assert height[last] == log.x_before["fall"]["q"][0]
    assert speed[last + 1] == log.x_after["slide"][0, 1]
    np.testing.assert_allclose(
        height[falls], 1 - _G * arcs.t[falls] ** 2 / 2, atol=1e-5
    )
    decay = np.exp(arcs.t[last] - arcs.t[slides])
    np.testing.assert_allclose(speed[slides], _G * _FALL * decay, rtol=1e-5)
    artists = hj.plot.trajectory(sol, ax=ax)
    names = ["x.fall.q", "x.fall.v", "x.slide[0]", "x.slide[1]"]
    assert [line.get_label() for line in artists["arcs"]] == names
    drawn = [line.get_ydata(orig=False) for line in artists["arcs"]]
    for component, part in zip(drawn, [falls, falls, slides, slides], strict=True):
        # One more, for the gap.
        assert np.isfinite(component).sum() == len(arcs.t[part])
        assert len(component) == len(arcs.t) + 1


def test_batches(batch):
    draw = lambda ax, t, x, mode: []
    for plot in (
        lambda: hj.plot.trajectory(batch),
        lambda: hj.plot.phase(batch),
        lambda: hj.plot.events(batch),
        lambda: hj.plot.animate(draw, batch),
    ):
        with pytest.raises(ValueError, match="Take one of them first"):
            plot()
    plt.close("all")


def test_phase(sol, ax):
    artists = hj.plot.phase(sol, 0, 1, field=True, guards=True, ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x[0]", "x[1]")
    pieces = _pieces(artists["arcs"][0])
    assert len(pieces) == 6
    for k, (height, speed) in enumerate(pieces):
        energy = _G * height + speed**2 / 2
        np.testing.assert_allclose(energy, _G * _E ** (2 * ((k + 1) // 2)), rtol=1e-6)
    _, circles, dots = artists["jumps"]
    np.testing.assert_allclose(circles.get_ydata()[::2], -_SPEEDS, rtol=1e-6)
    np.testing.assert_allclose(dots.get_ydata()[::2], _E * _SPEEDS, rtol=1e-6)
    # In mode "down" only the ground is watched; the field is (v, -g).
    (contour,) = artists["guards"]
    np.testing.assert_allclose(contour.get_paths()[0].vertices[:, 0], 0, atol=1e-12)
    (arrows,) = artists["field"]
    width, height = np.diff(ax.get_xlim()), np.diff(ax.get_ylim())
    slope = (arrows.V * height) / (arrows.U * width)
    np.testing.assert_allclose(slope, -_G / arrows.Y)
    # In mode "up" it is where it turns.
    up = hj.plot.phase(sol, 0, 1, guards=True, segment=1, ax=ax)["guards"]
    np.testing.assert_allclose(up[0].get_paths()[0].vertices[:, 1], 0, atol=1e-12)
    with pytest.raises(ValueError, match="`segment` must be from 0 to 5"):
        hj.plot.phase(sol, 0, 1, field=True, segment=6, ax=ax)
    with pytest.raises(ValueError, match="are numbers of the raveled state"):
        hj.plot.phase(sol, 0, lambda x: x[1], guards=True, ax=ax)


def test_events(sol, ax):
    artists = hj.plot.events(sol, ax=ax)
    hits, turns = artists["events"]
    np.testing.assert_allclose(hits.get_positions(), _BOUNCES)
    np.testing.assert_allclose(turns.get_positions(), _TOPS)
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == ["down -> up", "up -> down", "mode"]
    down, up = artists["modes"]
    spans = [p.get_extents().intervalx for p in up.get_paths()]
    edges = np.array([*_EVENTS, _T1])
    np.testing.assert_allclose(spans, edges.reshape(3, 2))
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["down", "up"] == [down.get_label(), up.get_label()]


def test_animate(sols, tmp_path):
    figure = plt.figure(figsize=(1, 1))
    ax = figure.subplots()
    seen = []

    def draw(ax, t, x, mode):
        lines = ax.plot([0], x[:1], "o")
        seen.append((float(t), float(x[0]), int(mode), lines[0]))
        return lines

    film = hj.plot.animate(draw, sols[0], ghost=sols[1], slower=2.0, fps=2.0, ax=ax)
    times = np.linspace(0, _T1, 9)
    ghosts, shown = seen[::2], seen[1::2]
    np.testing.assert_allclose([t for t, *_ in shown], times)
    np.testing.assert_allclose([x for _, x, *_ in shown], _height(times), atol=1e-6)
    small = 0.8 * _height(times / 0.8**0.5)
    np.testing.assert_allclose([x for _, x, *_ in ghosts], small, atol=1e-6)
    modes = np.searchsorted(_EVENTS, times) % 2
    assert [mode for _, _, mode, _ in shown] == list(modes)
    assert {line.get_alpha() for *_, line in ghosts} == {0.3}
    assert len({line.get_color() for *_, line in seen}) == 1
    # Nothing is left over from other pictures, and all fit.
    low, high = ax.get_ylim()
    assert low < 0 < 1 < high
    film.save(tmp_path / "ball.gif", dpi=40)
    assert len(ax.lines) == 2
    with Image.open(tmp_path / "ball.gif") as gif:
        # Half a second each, and for the last one twice that. (Equal ones are one.)
        shown = 0
        for frame in ImageSequence.Iterator(gif):
            shown += frame.info["duration"]
    assert shown == 500 * (9 + 1)
    assert "<script" in film._repr_html_()
    plt.close(figure)
    with pytest.raises(ValueError, match="`slower` must be positive"):
        hj.plot.animate(draw, sols[0], slower=0.0)


def test_film_needs_ffmpeg(sol, monkeypatch, tmp_path):
    writers = matplotlib.animation.writers
    monkeypatch.setattr(writers, "is_available", lambda name: False)
    film: Any = hj.plot.animate(lambda ax, t, x, mode: [], sol, fps=1.0)
    film._draw_was_started = True  # Else it complains that nobody has looked at it.
    with pytest.raises(ValueError, match="ffmpeg is needed"):
        film.save(tmp_path / "ball.mp4")


def test_is_shown(sol, batch):
    text = sol._repr_html_()
    assert text.count("<svg") == text.count("</svg>") == 1
    assert "<th>x_before[1]</th>" in text
    for cell in ("successful", "down -&gt; up", f"{_BOUNCES[0]:.6g}"):
        assert f"<td>{cell}</td>" in text
    assert text.count("<tr>") == 6 + 1 + 5
    # Not several, nor without values, nor traced; and without a path no picture.
    assert batch._repr_html_() is None
    assert jax.tree.map(lambda _: None, sol)._repr_html_() is None
    shown = []
    jax.jit(lambda sol: shown.append(sol._repr_html_()))(sol)
    assert shown == [None]
    object.__setattr__(pathless := jax.tree.map(lambda a: a, sol), "_path", None)
    assert "<svg" not in pathless._repr_html_()
    assert "down" in pathless._repr_html_()


#
# B-derivatives
#

_TABLE = np.array([[0.2, 0.5], [-0.5, 0.0], [0.1, -0.4], [0.1, -0.1]])


def _matrix(order):
    """(57) of Council, Revzen and Burden, for the coordinates as surfaces."""
    field, crossed, matrix = 1 + _TABLE, 0, np.eye(2)
    for j in order:
        before, after = field[crossed], field[crossed + 2**j]
        matrix = (
            np.eye(2) + np.outer(after - before, np.eye(2)[j]) / before[j]
        ) @ matrix
        crossed += 2**j
    return matrix


def test_b_derivative(ax):
    system = hj.models.piecewise_constant(_TABLE)
    b = hj.b_derivative(system, 0.0, jnp.zeros(2), jnp.array([-1, -1]))
    places = dict(before=(-1.0, 0.0), after=(1.0, 2.0))
    artists = hj.plot.b_derivative(b, ax=ax, radius=0.5, **places)
    labels = [line.get_label() for line in artists["after"]]
    assert sorted(labels) == ["guards 0 → 1", "guards 1 → 0"]
    for label, *lines in zip(labels, *artists.values(), strict=True):
        before, after, opposite = (np.stack(line.get_data(), 1) for line in lines)
        before = before - [-1, 0]
        np.testing.assert_allclose(np.linalg.norm(before, axis=1), 0.5)
        # The surface j is reached after -x_j / F_j. The last one is of the next piece.
        order = np.argsort(-before / (1 + _TABLE[0]), axis=1)
        expected = (1, 0) if "1 → 0" in label else (0, 1)
        assert (order[:-1] == expected).all() and len(order) > 100
        moved = before[:-1] @ _matrix(expected).T
        np.testing.assert_allclose(after[:-1], [1, 2] + moved, atol=1e-12)
        np.testing.assert_allclose(opposite[:-1], [1, 2] - moved, atol=1e-12)


def test_b_derivative_must_be_planar():
    system = hj.models.piecewise_constant(np.zeros((2, 3)), np.eye(1, 3))
    b = hj.b_derivative(system, 0.0, jnp.zeros(3), jnp.array([-1]))
    with pytest.raises(ValueError, match="there are 3 and 3"):
        hj.plot.b_derivative(b)
