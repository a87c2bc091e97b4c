"""Several events in one instant: the derivatives of `simulate` there.

`tests/council.py` has the references: exact simulation in rational numbers, Council's
algorithm, and his saltation matrices with the misprints corrected.
"""

import collections
import itertools

import equinox as eqx
import hybridjax as hj
import hybridjax.models as models
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from . import council


#
# Piecewise constant fields
#

DURATION = 1.0

# All of these corners are simulated by one compiled program: with five surfaces and ten
# states, of which the last five keep the surfaces that a corner has no use for away
# from zero.
SURFACES, STATES = 5, 10


@eqx.filter_jit
def corner_derivatives(tables, normals, x0, directions, later):
    """For a batch of corners: tangents in all directions of the final state and of the
    event log, the Jacobian in reverse mode, and the events."""

    def one(table, normals, x0, directions, later):
        system = models.piecewise_constant(table, normals)
        mode = -jnp.ones(SURFACES, jnp.int32)

        def run(x0, t0):
            sol = hj.simulate(
                system, t0, DURATION, x0, mode, max_steps=32, max_events=SURFACES
            )
            log = sol.events
            return (sol.x1, log.t, log.x_before, log.x_after), log.event

        def push(v, dt):
            _, tangents, event = jax.jvp(run, (x0, 0.0), (v, dt), has_aux=True)
            return tangents, event

        tangents, event = jax.vmap(push, out_axes=(0, None))(directions, later)
        return tangents, jax.jacrev(lambda x0: run(x0, 0.0)[0][0])(x0), event

    return jax.vmap(one)(tables, normals, x0, directions, later)


class Corner:
    """A corner, and 200 directions: of the initial state, and of the initial time."""

    def __init__(self, seed, n, d, identity=True, table=None, before=0.5):
        rng = np.random.default_rng(seed)
        self.n, self.d, self.before = n, d, before
        self.table, self.normals = council.random_corner(rng, n, d)
        if table is not None:
            self.table = table
        if identity:
            self.normals = np.eye(d)
        self.field = council.table_field(self.table)
        self.x0 = -before * (1 + self.table[0])
        self.directions = rng.standard_normal((200, d))
        self.later = rng.standard_normal(200) * (np.arange(200) >= 100)

    def listings(self):
        return list(itertools.permutations(range(self.n)))

    def batch(self):
        """What `corner_derivatives` takes, for every listing of the surfaces."""
        n, d = self.n, self.d
        for k, order in enumerate(self.listings()):
            listed = council.listing(self.table, self.normals, order)
            table = np.zeros((2**SURFACES, STATES))
            table[:, :d] = np.tile(listed[0], (2 ** (SURFACES - n), 1))
            normals = np.eye(SURFACES, STATES, STATES - SURFACES)
            normals[:n] = 0
            normals[:n, :d] = listed[1]
            x0 = np.full(STATES, -10.0)
            x0[:d] = self.x0
            if self.before > 0:
                # Much less than what counts as one instant, but it decides the order
                # that is recorded.
                x0[:d] += 1e-12 * self.directions[k]
            directions = np.zeros((200, STATES))
            directions[:, :d] = self.directions
            yield table, normals, x0, directions, self.later


CORNERS = [
    # (11) in two to five dimensions; skew surfaces, as many as states, and fewer.
    Corner(1, 2, 2),
    Corner(2, 3, 3),
    Corner(3, 4, 4),
    Corner(4, 5, 5),
    Corner(5, 4, 4, identity=False),
    Corner(6, 3, 5, identity=False),
    Corner(7, 2, 3, identity=False),
    # The simulation starts in the corner: half of the directions are beyond surfaces.
    Corner(8, 3, 3, before=0.0),
    Corner(9, 3, 5, identity=False, before=0.0),
    # (12)
    Corner(10, 3, 3, table=np.asarray(models.linear_table(0.5, 3))),
]
LINEAR = 9


def corner_results():
    batches = [list(corner.batch()) for corner in CORNERS]
    stacked = zip(*itertools.chain(*batches), strict=True)
    out = corner_derivatives(*map(np.stack, stacked))
    (x1, t, x_before, x_after), jacobian, event = jax.tree.map(np.asarray, out)
    begin, results = 0, []
    for corner, batch in zip(CORNERS, batches, strict=True):
        n, d = corner.n, corner.d
        here = slice(begin, begin + len(batch))
        begin += len(batch)
        np.testing.assert_array_equal(event[here, n:], -1)
        results.append(
            dict(
                x1=x1[here, :, :d],
                t=t[here, :, :n],
                x_before=x_before[here, :, :n, :d],
                x_after=x_after[here, :, :n, :d],
                jacobian=jacobian[here, :d, :d],
                event=event[here, :n],
            )
        )
    return results


# One test, with subtests: workers that share the cases would each compile the program.
@pytest.mark.thorough
def test_piecewise_constant(subtests):
    all_results = corner_results()
    for case, (corner, results) in enumerate(zip(CORNERS, all_results, strict=True)):
        with subtests.test(case=case):
            check_against_exact_flow(corner, results)
    with subtests.test("recorded orders differ"):
        # More than one piece is seen in reverse mode too.
        pairs = zip(CORNERS[3].listings(), all_results[3]["event"], strict=True)
        recorded = {tuple(numbers[j] for j in order) for numbers, order in pairs}
        assert len(recorded) >= 20
    with subtests.test("linear"):
        # (12): all pieces are one, and the surfaces cannot be told from the derivative.
        corner, results = CORNERS[LINEAR], all_results[LINEAR]
        factor = (1 - 0.5) / (1 + 0.5)
        expected = factor * corner.directions - 0.5 * corner.later[:, None]
        for k in range(6):
            np.testing.assert_allclose(results["x1"][k], expected, rtol=0, atol=1e-12)
            np.testing.assert_allclose(
                results["jacobian"][k], factor * np.eye(3), rtol=0, atol=1e-12
            )


def check_against_exact_flow(corner, results):
    normals, field = corner.normals, corner.field
    exact = [
        council.exact_derivative(normals, field, corner.x0, DURATION, v, later)
        for v, later in zip(corner.directions, corner.later, strict=True)
    ]
    exact_x1, exact_t, exact_x = map(np.stack, zip(*exact, strict=True))
    # Most of the pieces are seen.
    orders = [council.b_derivative(normals, field, v)[1] for v in corner.directions]
    num_orders = len({tuple(order) for order in orders})
    assert num_orders >= {2: 2, 3: 4, 4: 10, 5: 50}[corner.n]

    recorded = [
        [numbers[j] for j in event]
        for numbers, event in zip(corner.listings(), results["event"], strict=True)
    ]
    for k, order in enumerate(recorded):
        assert sorted(order) == list(range(corner.n))
        np.testing.assert_allclose(results["x1"][k], exact_x1, rtol=0, atol=1e-9)
        # The log: its entries belong to guards, whichever is first in a direction.
        np.testing.assert_allclose(
            results["t"][k], exact_t[:, order], rtol=0, atol=1e-9
        )
        for name in ("x_before", "x_after"):
            np.testing.assert_allclose(
                results[name][k], exact_x[:, order], rtol=0, atol=1e-9
            )
        # Reverse mode: the piece of the recorded order.
        piece = council.saltation_matrix(normals, field, order)
        np.testing.assert_allclose(results["jacobian"][k], piece, rtol=0, atol=1e-9)


#
# Many surfaces
#

EVALUATIONS = collections.Counter()


class ManyField(eqx.Module):
    weights: Array

    def __call__(self, t, x, b, args):
        jax.debug.callback(lambda: EVALUATIONS.update(["flow"]))
        return 1 + 0.5 * jnp.sin(self.weights @ b)


class ManySurfaces(eqx.Module):
    normals: Array

    def __call__(self, t, x, args):
        jax.debug.callback(lambda: EVALUATIONS.update(["guards"]))
        return self.normals @ x


def test_fifty_surfaces():
    n = 50
    rng = np.random.default_rng(0)
    normals = np.eye(n) + 0.3 / n * rng.uniform(-1, 1, (n, n))
    weights = rng.standard_normal((n, n))
    field = lambda b: 1 + 0.5 * np.sin(weights @ b)
    system = hj.EventSelectedSystem(
        ManyField(jnp.asarray(weights)), ManySurfaces(jnp.asarray(normals))
    )
    x0 = jnp.asarray(-0.5 * field(-np.ones(n)))

    def run(x0):
        sol = hj.simulate(system, 0.0, DURATION, x0, max_steps=128, max_events=n)
        return sol.x1, sol.events.event

    push = lambda v: jax.jvp(run, (x0,), (v,), has_aux=True)[1:]
    directions = rng.standard_normal((20, n))
    tangents, _ = jax.jit(jax.vmap(push, out_axes=(0, None)))(directions)
    jax.effects_barrier()
    expected = [council.b_derivative(normals, field, v)[0] for v in directions]
    np.testing.assert_allclose(tangents, np.stack(expected), rtol=0, atol=1e-9)

    # Evaluations of the field and of the guards, O(n d) each, grow with n, not with its
    # square: the simulation makes 8 n, and the derivative as many as a few passages.
    assert EVALUATIONS["flow"] < 30 * n
    assert EVALUATIONS["guards"] < 30 * n

    # Surfaces that are reached together to the last digit come in an order which is
    # that of this program's rounding.
    _, pull, event = jax.vjp(run, x0, has_aux=True)
    rows = jax.vmap(pull)(jnp.eye(n)[:5])[0]
    order = np.asarray(event)
    assert sorted(order) == list(range(n)) and order.tolist() != sorted(order)
    piece = council.saltation_matrix(normals, field, order)
    np.testing.assert_allclose(rows, piece[:5], rtol=0, atol=1e-9)


#
# Resets
#

# A bar that falls flat, with both ends at once, after 0.45 s. Which derivative there is
# depends on its inertia (0.25: the ends are decoupled) and on the restitution.
BARS = dict(
    elastic=(0.5, 0.5),
    elastic_uniform=(1 / 12, 0.5),
    elastic_decoupled=(0.25, 0.5),
    plastic=(0.5, 0.0),
    plastic_uniform=(1 / 12, 0.0),
    plastic_decoupled=(0.25, 0.0),
)
FLAT = np.array([1.0, 0.0, 0.0, 0.0])


def bar_run(x0, inertia, restitution, throw=False):
    bar = models.RigidBar(inertia=inertia, restitution=restitution, release=True)
    sol = hj.simulate(
        bar, 0.0, 0.6, x0, jnp.zeros(2, int), max_steps=64, max_events=4, throw=throw
    )
    log = sol.events
    floats = dict(x1=sol.x1, t=log.t, x_before=log.x_before, x_after=log.x_after)
    return floats, (log.event, sol.mode1, sol.result == hj.RESULTS.successful)


bar_values = jax.jit(jax.vmap(bar_run))


def bar_derivatives():
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((12, 4)) * np.array([0.1, 1.0, 0.1, 1.0])

    @jax.jit
    def derivatives(inertia, restitution):
        def one(inertia, restitution):
            def run(x0):
                return bar_run(x0, inertia, restitution)

            push = lambda v: jax.jvp(run, (jnp.asarray(FLAT),), (v,), has_aux=True)
            out = jax.vmap(push, out_axes=(None, 0, None))(directions)
            return *out, jax.jacrev(lambda x0: run(x0)[0]["x1"])(jnp.asarray(FLAT))

        return jax.vmap(one)(inertia, restitution)

    out = derivatives(*map(jnp.asarray, zip(*BARS.values(), strict=True)))
    lane = lambda k: jax.tree.map(lambda a: np.asarray(a)[k], out)
    return directions, {name: lane(k) for k, name in enumerate(BARS)}


@pytest.mark.thorough
def test_bar_lands_flat(subtests):
    directions, lanes = bar_derivatives()
    for name in ("elastic", "elastic_uniform", "plastic"):
        with subtests.test(name):
            check_discontinuous(name, lanes[name])
    for name in ("elastic_decoupled", "plastic_decoupled", "plastic_uniform"):
        with subtests.test(name):
            check_linear(name, directions, lanes[name])


def bar_differences(name, directions):
    """One-sided differences of second order, and the events on that side."""
    h = 1e-4
    points = np.concatenate([[FLAT], FLAT + h / 2 * directions, FLAT + h * directions])
    inertia, restitution = (np.full(len(points), value) for value in BARS[name])
    values, (event, *_) = jax.tree.map(
        np.asarray, bar_values(points, inertia, restitution)
    )
    values = {key: a if key == "x1" else a[:, :2] for key, a in values.items()}
    n = len(directions)

    def difference(a):
        a, half, full = a[:1], a[1 : n + 1], a[n + 1 :]
        return (4 * half - full - 3 * a) / h

    return {key: difference(value) for key, value in values.items()}, event[n + 1 :]


def check_discontinuous(name, lane):
    values, tangents, (_, _, successful), jacobian = lane
    assert successful and np.isfinite(values["x1"]).all()
    assert np.isnan(tangents["x1"]).all()
    assert np.isnan(jacobian).all()
    # It is a true discontinuity: the sides differ, however close.
    inertia, restitution = (np.full(2, value) for value in BARS[name])
    step = np.array([0.0, 1e-9, 0.0, 0.0])
    points = np.stack([FLAT + step, FLAT - step])
    sides, _ = bar_values(points, inertia, restitution)
    assert np.max(np.abs(sides["x1"][0] - sides["x1"][1])) > 0.1


def check_linear(name, directions, lane):
    _, tangents, (event, mode, successful), jacobian = lane
    assert successful
    np.testing.assert_array_equal(event[:2], [0, 1])
    np.testing.assert_array_equal(mode, 0 if name == "elastic_decoupled" else 1)
    differences, orders = bar_differences(name, directions)
    assert len(np.unique(orders[:, 0])) == 2
    np.testing.assert_allclose(tangents["x1"], differences["x1"], rtol=0, atol=1e-6)
    # All these are linear; at rest, they are zero.
    np.testing.assert_allclose(
        tangents["x1"], directions @ jacobian.T, rtol=0, atol=1e-9
    )

    # The log, by guards.
    place = np.argsort(orders[:, :2], axis=1)
    by_guard = lambda a: np.take_along_axis(
        a[:, :2], place.reshape(place.shape + (1,) * (a.ndim - 2)), axis=1
    )
    np.testing.assert_allclose(
        tangents["t"][:, :2], by_guard(differences["t"]), rtol=0, atol=1e-6
    )
    # Where the order is another one, the states at the impacts jump: NaN.
    as_recorded = orders[:, 0] == 0
    for key in ("x_before", "x_after"):
        actual, expected = tangents[key][:, :2], differences[key][:, :2]
        np.testing.assert_allclose(
            actual[as_recorded], expected[as_recorded], rtol=0, atol=1e-6
        )
        assert np.isnan(actual[~as_recorded]).all()


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_discontinuous_corner_raises(mode):
    x0 = jnp.asarray(FLAT)

    def height(x0):
        return bar_run(x0, jnp.asarray(0.5), jnp.asarray(0.0), throw=True)[0]["x1"][0]

    assert np.isfinite(height(x0))
    with pytest.raises(hj.SimulationError, match="order"):
        if mode == "forward":
            jax.jvp(height, (x0,), (jnp.ones(4),))
        else:
            jax.grad(height)(x0)


#
# Who is first, among many
#

RUNNERS = 20


class Race(hj.AbstractHybridSystem):
    """States fall to zero, each at its speed; the last state is the prize of the one
    that gets there first. Once there, they are not watched."""

    speeds: Array
    prizes: Array

    def flow(self, t, x, there, args):
        return jnp.append(-self.speeds, 0.0)

    def guards(self, t, x, there, args):
        return jnp.where(there, hj.UNWATCHED, x[:-1])

    def jump(self, t, x, there, event, args):
        won = jnp.where(jnp.any(there), 0.0, self.prizes[event])
        return x.at[-1].add(won), there | (jnp.arange(RUNNERS) == event)


@eqx.filter_jit
def race_derivatives(prizes, x0):
    speeds = 1 + jnp.arange(RUNNERS) / RUNNERS

    def run(prizes, x0):
        system, there = Race(speeds, prizes), jnp.zeros(RUNNERS, bool)
        sol = hj.simulate(
            system, 0.0, 1.0, x0 * jnp.append(speeds, 1.0), there, throw=False
        )
        return sol.x1[-1]

    return jax.vmap(jax.value_and_grad(run, argnums=(0, 1)))(prizes, x0)


def test_race_among_many():
    # Three of twenty are there at once, with numbers that follow each other, and one of
    # them, in any place, wins another prize than the others; or all win the same.
    rng = np.random.default_rng(3)
    together = np.arange(16)[:, None] + np.arange(3)
    place = np.arange(16) * 3 // 4 % 4
    prizes = 2 + rng.uniform(size=(len(together), RUNNERS))
    x0 = np.full((len(together), RUNNERS + 1), 0.75)
    x0[:, -1] = 1.0
    for k, three in enumerate(together):
        x0[k, three] = 0.5
        prizes[k, three] = 1.0
        if place[k] < 3:
            prizes[k, three[place[k]]] = 1.5
    values, slopes = race_derivatives(prizes, x0)
    of_prizes, of_states = map(np.asarray, slopes)
    alike = place == 3
    np.testing.assert_allclose(values[alike], 2.0, rtol=1e-12)
    assert np.isnan(of_states[~alike]).all() and np.isnan(of_prizes[~alike]).all()
    assert (of_states[alike] == np.eye(RUNNERS + 1)[-1]).all()
    assert (np.sort(of_prizes[alike], axis=1) == np.eye(RUNNERS)[-1]).all()


#
# Guards that one event hands over to another
#


class Relay(hj.AbstractHybridSystem):
    """Mode 0 watches the first state, mode 1 the second, mode 2 none. The event
    `event` maps `x` to `resets[event] @ x + shifts[event]`."""

    fields: Array
    resets: Array
    shifts: Array

    def flow(self, t, x, mode, args):
        return self.fields[mode] + jnp.stack([0.0, 0.0, x[0]])

    def guards(self, t, x, mode, args):
        first = jnp.where(mode == 0, x[0], hj.UNWATCHED)
        return jnp.stack([first, jnp.where(mode == 1, x[1], hj.UNWATCHED)])

    def jump(self, t, x, mode, event, args):
        return self.resets[event] @ x + self.shifts[event], mode + 1


def relay_run(fields, resets, shifts, x0, t0):
    sol = hj.simulate(
        Relay(fields, resets, shifts), t0, 1.0, x0, 0, max_steps=32, max_events=4
    )
    return sol.x1, sol.events.t[:2], sol.events.x_before[:2], sol.events.x_after[:2]


relay_values = jax.jit(jax.vmap(relay_run))


RELAY_FIELDS = np.array([[-1.0, -1.0, 0.5], [-2.0, -1.0, 1.0], [1.0, 3.0, -0.5]])
RELAY_RESETS = np.stack([np.eye(3), np.eye(3)])
RELAY_RESETS[0, 0, 1], RELAY_RESETS[1, 2, 1] = 0.5, -0.5
RELAYS = dict(
    # The second guard is watched from the first event on, and is zero then.
    at_zero=(RELAY_FIELDS, RELAY_RESETS, np.zeros((2, 3)), np.array([0.5, 0.5, 1.0])),
    # The reset of the first event leads into the second one's guard set.
    inside=(
        RELAY_FIELDS,
        RELAY_RESETS,
        np.array([[0.0, -2.0, 0.0], [0.0, 0.0, 0.25]]),
        np.array([0.5, 0.75, 1.0]),
    ),
    # As before, where the simulation starts.
    inside_at_start=(
        RELAY_FIELDS,
        RELAY_RESETS,
        np.array([[0.0, -2.0, 0.0], [0.0, 0.0, 0.25]]),
        np.array([-0.5, 0.75, 1.0]),
    ),
)


def test_relay(subtests):
    rng = np.random.default_rng(0)
    points = {name: (*values, np.array(0.0)) for name, values in RELAYS.items()}
    directions = {
        name: tuple(rng.standard_normal((24, *np.shape(p))) for p in point)
        for name, point in points.items()
    }
    for direction in directions.values():
        direction[3][:8], direction[4][:8] = 0.0, 0.0  # Of the parameters alone.

    @jax.jit
    def derivatives(point, directions):
        push = lambda v: jax.jvp(relay_run, point, v)
        values, tangents = jax.vmap(push, out_axes=(None, 0))(directions)
        weigh = lambda *point: jnp.sum(relay_run(*point)[0] * jnp.arange(1.0, 4.0))
        return values, tangents, jax.grad(weigh, argnums=range(5))(*point)

    stack = lambda trees: jax.tree.map(lambda *a: np.stack(a), *trees.values())
    out = jax.vmap(derivatives)(stack(points), stack(directions))
    for k, name in enumerate(RELAYS):
        with subtests.test(name):
            lane = jax.tree.map(lambda a, k=k: np.asarray(a)[k], out)
            check_relay(name, points[name], directions[name], *lane)


def check_relay(name, point, directions, values, tangents, gradient):
    # The second event is in the instant of the first.
    np.testing.assert_array_equal(values[1][0], values[1][1])
    h = 1e-4

    def moved(step):
        return [p + step * v for p, v in zip(point, directions, strict=True)]

    run = relay_values
    differences = [
        (4 * np.asarray(half) - np.asarray(full) - 3 * value) / h
        for half, full, value in zip(
            run(*moved(h / 2)), run(*moved(h)), values, strict=True
        )
    ]
    for tangent, difference in zip(tangents, differences, strict=True):
        np.testing.assert_allclose(tangent, difference, rtol=0, atol=2e-6)

    # The gradient is one piece of it: that of all directions, if there is no corner.
    weights = np.arange(1.0, 4.0)
    along = sum(
        np.sum(v * g, axis=tuple(range(1, v.ndim)))
        for v, g in zip(directions, gradient, strict=True)
    )
    agree = np.abs(along - tangents[0] @ weights) < 1e-9
    if name == "at_zero":
        assert 4 <= np.sum(agree) < 24
    else:
        assert np.all(agree)
