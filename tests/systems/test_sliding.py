"""Sliding along surfaces (Filippov): closed forms, starts, and what is refused."""

import functools

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import batch_jacobians


_simulate = functools.partial(hj.simulate, max_steps=128, max_events=8)
# Of few stages, which compiles faster. Where fields are constant all solvers are exact.
_straight = functools.partial(_simulate, solver=dfx.Bosh3())


def _compare(solve, truth, zs, rtol):
    """The value and both Jacobians with those of a closed form."""
    value, forward, reverse, more = batch_jacobians(solve)(zs)
    exact, expected = jax.jit(jax.vmap(lambda z: (truth(z), jax.jacfwd(truth)(z))))(zs)
    np.testing.assert_allclose(value, exact, rtol=0, atol=rtol)
    size = 1 + np.max(np.abs(expected), axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(forward / size, expected / size, rtol=0, atol=rtol)
    np.testing.assert_allclose(reverse / size, expected / size, rtol=0, atol=rtol)
    return more


#
# Closed forms
#


def _relay_truth(z, t1):
    """The end, and when the sliding begins: parabolas, and then a decay."""
    x, v, gain, lead = z
    side = jnp.sign(x + lead * v)
    t, slides = 0.0, False
    for _ in range(6):
        # x + v s - k s²/2 + c (v - k s) = 0, with signs.
        a, b, c = -side * gain / 2, v - side * gain * lead, x + lead * v
        root = jnp.sqrt(b**2 - 4 * a * c)
        # The first time is behind, but the first parabola begins off the surface.
        s = jnp.maximum((-b - root) / (2 * a), (-b + root) / (2 * a))
        there = x + v * s + a * s**2, v + 2 * a * s
        x, v, t = (
            jnp.where(slides, now, new)
            for now, new in zip((x, v, t), (*there, t + s), strict=True)
        )
        slides = jnp.abs(v) < lead * gain
        side = jnp.where(slides, side, -side)
    decay = jnp.exp((t - t1) / lead)
    return jnp.stack([x * decay, -x / lead * decay, t])


@pytest.mark.thorough
def test_relay():
    def solve(z):
        x0, system = z[:2], models.relay(z[2], z[3])
        sol = _simulate(system, 0.0, 6.0, x0)
        entry = sol.events.t[jnp.maximum(sol.events.count - 1, 0)]
        return jnp.append(sol.x1, entry), (sol.events.mode_after[:, 0], sol.mode1)

    x = np.linspace(0.3, 3.0, 24)
    zs = jnp.stack([x, 0.2 - x / 10, 1.1 + 0 * x, 0.5 + x / 50], axis=1)
    truth = functools.partial(_relay_truth, t1=6.0)
    sides, last = _compare(solve, truth, zs, rtol=3e-6)
    np.testing.assert_array_equal(last, 0)
    # So many crossings come before the entry.
    assert set(np.asarray(sides == 0).argmax(axis=1)) == {0, 1, 2}


def _belt_truth(z, t1):
    """Slips, sticks, and slips again."""
    x, v, k, friction, speed = z
    w, rest = jnp.sqrt(k), friction / k
    radius, phase = jnp.hypot(x - rest, v / w), jnp.arctan2(x - rest, v / w)
    # x = rest + radius sin(w t + phase), and v rises to that of the belt.
    entry = -(jnp.arccos(speed / (radius * w)) + phase) / w
    entry = jnp.where(entry < 0, entry + 2 * jnp.pi / w, entry)
    met = rest + radius * jnp.sin(w * entry + phase)
    exit_ = entry + (rest - met) / speed
    s = w * (t1 - exit_)
    end = rest + speed / w * jnp.sin(s), speed * jnp.cos(s)
    return jnp.stack([*end, entry, exit_, exit_ + jnp.pi / w])


def test_dry_friction():
    def solve(z):
        system = models.block_on_belt(*z[2:])
        sol = _simulate(system, 0.0, 5.0, z[:2], "behind")
        log = sol.events
        return jnp.append(sol.x1, log.t[:3]), (log.count, log.mode_after)

    s = np.linspace(0, 1, 24)
    columns = [-0.3 + 0.4 * s, -0.7 + 0.3 * s, 2.0 + 0.3 * s, 1.0 + 0.2 * s**2]
    zs = jnp.stack([*columns, 0.5 + 0.1 * np.sin(7 * s)], axis=1)
    truth = functools.partial(_belt_truth, t1=5.0)
    count, after = _compare(solve, truth, zs, rtol=3e-6)
    names = np.array(models.block_on_belt().names)
    modes = ["sticking", "sticking > behind", "behind"]
    np.testing.assert_array_equal(count, 3)
    np.testing.assert_array_equal(names[after[:, :3]], [modes] * len(zs))


def _control_truth(z, t1):
    x, v, d, k, c = z
    s = v + c * x
    slope = d - k * jnp.sign(s)
    reached = -s / slope
    # x' = s + slope t - c x.
    at = lambda t: (s - slope / c + slope * t) / c
    decay = lambda t: jnp.exp(-c * t)
    met = at(reached) + (x - at(0.0)) * decay(reached)
    end = met * decay(t1 - reached)
    return jnp.stack([end, -c * end, reached])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_sliding_mode_control(dtype):
    """Until the surface is reached, the disturbance is constant; the decay on it does
    not know of any."""

    def solve(z):
        def disturbance(t, args):
            return z[2] + jnp.where(t > 2, 0.5 * jnp.sin(9 * (t - 2)), 0)

        system = models.sliding_mode_control(disturbance, z[3], z[4])
        rtol = 1e-8 if dtype == jnp.float64 else 1e-6
        controller = dfx.PIDController(rtol=rtol, atol=rtol)
        sol = _simulate(
            system, 0.0, 3.0, z[:2], stepsize_controller=controller, max_steps=256
        )
        return jnp.append(sol.x1, sol.events.t[0]), (sol.events.count, sol.mode1)

    s = np.linspace(-1, 1, 8)
    columns = [1.3 * s, 0.5 - s, 0.4 * s, 2.0 + 0.3 * s, 1.2 + 0.2 * s]
    zs = jnp.asarray(np.stack(columns, axis=1), dtype)
    truth = functools.partial(_control_truth, t1=3.0)
    rtol = 3e-6 if dtype == jnp.float64 else 2e-4
    count, side = _compare(solve, truth, zs, rtol)
    np.testing.assert_array_equal(count, 1)
    np.testing.assert_array_equal(side, 0)


def _ring(speed, fall):
    """A plane with a circle and an axis. The state turns, faster above the axis; it
    goes outward within the circle, and inward, less and less, outside of it."""

    def field(t, x, b, args):
        out = jnp.where(b[0] < 0, 1.0, fall * t - 1)
        across = jnp.stack([-x[1], x[0]])
        return out * x / jnp.sqrt(jnp.sum(x**2)) + (speed + b[1] / 2) * across

    def surfaces(t, x, args):
        return jnp.stack([jnp.sum(x**2) - 1, x[1]])

    return hj.EventSelectedSystem(field, surfaces, sliding=True)


def _ring_truth(z, t1):
    radius, angle, speed, fall = z
    crossing, leaves = (jnp.pi - angle) / (speed + 0.5), 1 / fall
    end = 1 - (t1 - leaves) + fall * (t1**2 - leaves**2) / 2
    turned = jnp.pi + (speed - 0.5) * (t1 - crossing)
    point = end * jnp.stack([jnp.cos(turned), jnp.sin(turned)])
    return jnp.append(point, jnp.stack([1 - radius, crossing, leaves]))


@pytest.mark.thorough
def test_a_surface_is_crossed_while_sliding_on_another():
    def solve(z):
        x0 = z[0] * jnp.stack([jnp.cos(z[1]), jnp.sin(z[1])])
        saveat = dfx.SaveAt(ts=[1.5, 2.2])
        sol = _simulate(_ring(*z[2:]), 0.0, 3.0, x0, saveat=saveat)
        log = sol.events
        return jnp.append(sol.x1, log.t[:3]), (log.event, log.mode_after, sol.xs)

    s = np.linspace(0, 1, 16)
    columns = [0.2 + 0.5 * s, 0.3 + 0.2 * s, 1.2 - 0.3 * s**2, 0.42 - 0.02 * s]
    zs = jnp.stack(columns, axis=1)
    truth = functools.partial(_ring_truth, t1=3.0)
    event, after, xs = _compare(solve, truth, zs, rtol=3e-6)
    np.testing.assert_array_equal(event[:, :4], [[0, 1, 0, -1]] * len(zs))
    np.testing.assert_array_equal(after[0, :3], [[0, 1], [0, -1], [2, -1]])
    # On a curved surface the state stays by the error control of the solver.
    np.testing.assert_allclose(np.sum(xs**2, axis=-1), 1, rtol=0, atol=1e-7)


def _beyond(rates):
    """x' = -sign x while y < 1; beyond that, as `rates` says. y' = 1."""

    def field(t, x, b, args):
        first = jnp.where(b[1] < 0, -1.0 * b[0], rates(b[0]))
        return jnp.stack([first, 1 + 0 * first])

    surfaces = lambda t, x, args: x - jnp.array([0.0, 1.0])
    return hj.EventSelectedSystem(field, surfaces, sliding=True)


@pytest.mark.thorough
def test_sliding_ends_where_another_surface_is_crossed():
    def solve(z):
        system = _beyond(lambda b: z[2])
        sol = _straight(system, 0.0, 2.0, z[:2])
        return jnp.append(sol.x1, sol.events.t[:2]), sol.mode1

    def truth(z):
        x, y, rate = z
        crossing = 1 - y
        return jnp.stack([rate * (2 - crossing), y + 2, jnp.abs(x), crossing])

    s = np.linspace(0.1, 0.6, 6)
    zs = jnp.stack([s * (-1) ** np.arange(6), -s / 2, np.linspace(-2, 1.9, 6)], axis=1)
    mode = _compare(solve, truth, zs, rtol=1e-9)
    np.testing.assert_array_equal(mode[:, 0], np.sign(zs[:, 2]))


#
# Starts
#


@pytest.mark.parametrize(
    "given", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_start_on_a_surface(given):
    # A perturbation off the surface, to either side, comes back to it along the
    # difference of both fields: only the speed changes.
    lead, mode0 = 0.6, jnp.array([0]) if given else None

    def solve(z):
        sol = _simulate(models.relay(1.1, lead), 0.0, 1.0, z, mode0)
        return sol.x1, (sol.events.count, sol.mode1)

    # With `mode0` the start is put there in the same way.
    z = jnp.array([[0.3, -0.5 + 1e-7 * given], [-0.3, 0.5]])
    value, forward, reverse, (count, mode) = batch_jacobians(solve)(z)
    decay = np.exp(-1 / lead)
    expected = decay * np.array([[1, 0], [-1 / lead, 0]])
    np.testing.assert_allclose(value, z @ expected.T, rtol=0, atol=1e-8)
    for got in (forward, reverse):
        np.testing.assert_allclose(got, [expected] * 2, rtol=0, atol=1e-7)
    # Without `mode0`, to enter is the first event.
    np.testing.assert_array_equal(count, 0 if given else 1)
    np.testing.assert_array_equal(mode, 0)


def test_start_of_an_automaton():
    # It sticks from the start, by name; and where the mode is traced.
    system = models.block_on_belt(2.0, 1.0, 0.5)
    run = lambda mode: _simulate(system, 0.0, 1.0, jnp.array([0.1, 0.5]), mode)
    sol = run("sticking")
    np.testing.assert_allclose(sol.events.t[:1], (0.5 - 0.1) / 0.5, rtol=1e-9)
    np.testing.assert_allclose(sol.events.x_before[0], [0.5, 0.5], rtol=1e-9)
    traced = jax.jit(run)(jnp.asarray(system.index("sticking")))
    np.testing.assert_allclose(traced.x1, sol.x1, rtol=1e-12)
    # Where it may start on either side, it sticks too.
    for mode in ("behind", "ahead"):
        other = run(mode)
        assert system.names[other.events.mode_after[0]] == "sticking"
        np.testing.assert_allclose(other.x1, sol.x1, rtol=1e-9)


#
# What else the modes of an automaton do
#


def _switch(a, b, name="slides", **more):
    """x' = a below 0, b above it; y' = 1."""
    return hj.HybridAutomaton(
        {
            "down": lambda t, x, args: jnp.stack([a + 0 * x[0], 1.0 + 0 * x[0]]),
            "up": lambda t, x, args: jnp.stack([b + 0 * x[0], 1.0 + 0 * x[0]]),
            **more.pop("modes", {}),
        },
        [
            hj.SlidingSurface("down", "up", lambda t, x, args: x[0], name),
            *more.pop("transitions", ()),
        ],
    )


@pytest.mark.thorough
def test_transitions_out_of_sliding():
    """It slides until y reaches a bound, and falls back there; y runs faster, as the
    mean of both fields says."""

    def solve(z):
        a, b, bound, back = z
        fields = {
            "down": lambda t, x, args: jnp.stack([a, 1 + 0 * x[0]]),
            "up": lambda t, x, args: jnp.stack([-b, 3 + 0 * x[0]]),
        }
        fall = hj.Transition(
            "slides",
            "down",
            lambda t, x, args: bound - x[1],
            lambda t, x, args: jnp.stack([-back, x[1]]),
        )
        unreached = hj.Transition("up", "down", lambda t, x, args: bound - x[1])
        surface = hj.SlidingSurface("down", "up", lambda t, x, args: x[0], "slides")
        system = hj.HybridAutomaton(fields, [unreached, surface, fall])
        sol = _straight(system, 0.0, 2.0, jnp.asarray([-0.4, 0.0]), "down")
        return jnp.append(sol.x1, sol.events.t[:2]), sol.events.event

    def truth(z):
        a, b, bound, back = z
        entry, share = 0.4 / a, a / (a + b)
        leaves = entry + (bound - entry) / (1 + 2 * share)
        left = 2.0 - leaves
        return jnp.stack([-back + a * left, bound + left, entry, leaves])

    s = np.linspace(0, 1, 8)
    zs = jnp.stack([0.9 + s, 1.3 - s / 2, 1.7 + 0.3 * s, 4.0 + 0 * s], axis=1)
    event = _compare(solve, truth, zs, rtol=1e-9)
    np.testing.assert_array_equal(event[:, :3], [[1, 2, -1]] * 8)


@pytest.mark.thorough
def test_with_cost():
    # The time spent on the surface, and how far it slid.
    def solve(z):
        system = hj.with_cost(
            models.relay(z[2], z[3]),
            lambda t, x, dx, mode, args: jnp.stack([1.0 * (mode[0] == 0), -dx[0]]),
        )
        sol = _simulate(system, 0.0, 6.0, (z[:2], jnp.zeros(2)))
        return sol.x1[1], sol.events.count

    def truth(z):
        x1, _, entry = _relay_truth(z, 6.0)
        return jnp.stack([6.0 - entry, z[0] - x1])

    x = np.linspace(0.3, 3.0, 8)
    zs = jnp.stack([x, 0.2 - x / 10, 1.1 + 0 * x, 0.5 + x / 50], axis=1)
    _compare(solve, truth, zs, rtol=3e-6)


@pytest.mark.thorough
def test_second_derivatives():
    z = jnp.asarray([0.3, 0.1, 1.1, 0.6])

    def value(z):
        sol = _simulate(models.relay(z[2], z[3]), 0.0, 2.0, z[:2])
        return sol.x1[0] + sol.events.t[0]

    def exact(z):
        x1, _, entry = _relay_truth(z, 2.0)
        return x1 + entry

    # A product with the Hessian takes less to compile than all of it.
    v = jnp.asarray([0.7, -0.3, 0.4, 1.0])
    product = lambda f: jax.jit(lambda z: jax.jvp(jax.grad(f), (z,), (v,))[1])(z)
    np.testing.assert_allclose(product(value), product(exact), rtol=1e-6)


#
# What is refused
#


def _fields(*rates):
    """x_j' is that of its side of x_j = 0."""
    below, above = np.array(rates, float).T
    return hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.where(b < 0, below, above),
        lambda t, x, args: x,
        sliding=True,
    )


_refused = {
    "two": (_fields((1, -1), (1, -1)), [-0.2, 0.4], None, r"0\.4.*surfaces 0 and 1"),
    "both": (_beyond(lambda b: b), [0.1, 0.0], None, r"surface 0: .*no unique way on"),
    "away": (_fields((-1, 1)), [0.0], None, r"time 0,.*surface 0.*no unique way on"),
    "off": (_fields((1, -1)), [0.3], [0], r"time 0,.*surface 0.*not on the surface"),
    "crossing": (_fields((1, 1)), [0.0], [0], r"time 0,.*surface 0.*not stay there"),
}


@pytest.mark.parametrize("name", list(_refused))
def test_refused(name):
    system, x0, mode0, message = _refused[name]
    mode0 = None if mode0 is None else jnp.array(mode0)
    run = lambda **kw: _straight(system, 0.0, 1.0, jnp.array(x0), mode0, **kw)
    assert run(throw=False).result == hj.RESULTS.nonfinite_state
    with pytest.raises(hj.SimulationError, match=f"(?s){message}"):
        run()


def test_refused_in_an_automaton():
    modes = {"wall": lambda t, x, args: 0 * x}
    wall = hj.SlidingSurface("down", "wall", lambda t, x, args: x[1] - 0.5)
    system = _switch(1.0, -1.0, modes=modes, transitions=[wall])
    x0 = jnp.array([-0.1, 0.0])
    with pytest.raises(
        hj.SimulationError, match=r"(?s)0\.5.*'slides.*another surface.*\(down\|wall\)"
    ):
        _simulate(system, 0.0, 1.0, x0, "down")
    with pytest.raises(hj.SimulationError, match="time 0, .*not on the surface"):
        _simulate(system, 0.0, 1.0, x0, "slides")


def test_both_fields_turn_away_at_once():
    # x' = 1 - t below and t - 1 above: at t = 1 sliding ends on both sides.
    system = hj.EventSelectedSystem(
        lambda t, x, b, args: jnp.stack([(t - 1) * b[0], jnp.cos(9 * t)]),
        lambda t, x, args: x[:1],
        sliding=True,
    )
    sol = _simulate(system, 0.0, 2.0, jnp.array([-0.2, 0.0]), throw=False)
    assert sol.result == hj.RESULTS.grazing


def test_arguments():
    field, x = (lambda t, x, b, args: 0 * x), (lambda t, x, args: x)
    with pytest.raises(ValueError, match="`rearm` must be `None` if `sliding`"):
        hj.EventSelectedSystem(field, x, np.zeros((1, 1), bool), sliding=True)
    with pytest.raises(ValueError, match="`event_method` cannot be .*`hj.Locate"):
        _simulate(models.relay(), 0.0, 1.0, jnp.ones(2), event_method=hj.Project(0.1))
    shape = hj.EventSelectedSystem(lambda t, x, b, args: x[:1], x, sliding=True)
    with pytest.raises(ValueError, match="`flow` must return arrays with the shapes"):
        _simulate(shape, 0.0, 1.0, jnp.ones(2))
    surface = hj.SlidingSurface("up", "down", lambda t, x, args: x[0], "other")
    target = hj.Transition("up", "slides", lambda t, x, args: x[0])
    states = hj.Transition("up", "wall", lambda t, x, args: x[0], lambda t, x, a: x[:1])
    same = hj.SlidingSurface("up", "up", lambda t, x, args: x[0])
    unknown = hj.SlidingSurface("up", "side", lambda t, x, args: x[0])
    for transition, message in [
        (surface, "at most one sliding surface between .*'up' and 'down'"),
        (target, "transition 1 names 'slides'"),
        (same, "`above` of a sliding surface .* both are 'up'"),
        (unknown, "transition 1 names 'side'"),
    ]:
        with pytest.raises(ValueError, match=message):
            _switch(1.0, -1.0, transitions=[transition])
    with pytest.raises(ValueError, match="`name` .*'up' is"):
        _switch(1.0, -1.0, "up")
    modes = {"wall": lambda t, x, args: -x}
    system = _switch(1.0, -1.0, modes=modes, transitions=[states])
    with pytest.raises(ValueError, match="`hj.SlidingSurface` must have states of one"):
        _simulate(system, 0.0, 1.0, jnp.ones(2), "up")
    with pytest.raises(ValueError, match=r"one of \['down', 'up', 'slides'\]"):
        _simulate(_switch(1.0, -1.0), 0.0, 1.0, jnp.ones(2), "other")
