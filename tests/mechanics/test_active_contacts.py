"""The search for active contacts."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics._contacts.active_contacts import find_active
from hybridjax.mechanics._contacts.complementarity import (
    Active,
    contact_forces,
    contact_forces_and_solver,
    posedness,
)
from hybridjax.mechanics._contacts.tangential import unit

from ..helpers import slope_along


_digits, _least = np.finfo(float).eps ** np.array([0.5, 0.4])


def _posedness(push, free, own):
    """Of the first contact, by the matrix with friction, and without its own."""
    share = np.linalg.det(push) / np.linalg.det(free)
    share = abs(share) if np.linalg.det(push) > 0 else share
    alone, held = push[0, 0] / own, own * np.linalg.inv(push)[0, 0]
    posed = min(np.clip(share, -1, 1), max(alone, held))
    moves = 1 / (1 + _digits * (own * np.linalg.inv(free)[0, 0]) ** 2)
    return alone + (posed - alone) * moves


@pytest.mark.parametrize("freedom, friction", [(4, 0.3), (7, 0.3), (7, 0.7)])
def test_impacts_of_five_contacts(freedom, friction):
    # Of bodies at random: laws of impact with friction, for which a solution exists.
    # With fewer degrees of freedom than rows, not every choice has unique impulses.
    n, problems = 5, 200
    rng = np.random.default_rng(0)
    J = rng.normal(size=(problems, 2 * n, freedom))
    c = np.einsum("kij,kj->ki", J, rng.normal(size=(problems, freedom)))
    mu = friction * np.abs(rng.normal(size=(problems, n)))
    active, f, unsolved = jax.vmap(_search)(J @ J.swapaxes(1, 2), c, mu)
    stuck = active.closed & active.stick
    # Some have too much friction (Painlevé's paradox).
    has_solution = lambda k: _has_solution(J[k] @ J[k].T, c[k], mu[k])
    lost, found = (np.flatnonzero(unsolved.any(axis=1) == is_so) for is_so in (1, 0))
    assert len(lost) <= 0.01 * problems
    assert not any(map(has_solution, lost)) and all(map(has_solution, found[:5]))
    moves = c + np.einsum("kij,klj,kl->ki", J, J, f)
    normal, tangential = np.split(f, 2, axis=1)
    apart, slip = np.split(moves, 2, axis=1)
    slides = ~stuck & (normal > 0)
    small = 1e-5 * (1 + np.max(np.abs(f), axis=1, keepdims=True))
    for holds in (
        normal > -small,
        apart > -small,
        np.abs(normal * apart) < small,
        np.abs(tangential) < mu * normal + small,
        ~slides | (tangential * slip < small),
        ~slides | (np.abs(np.abs(tangential) - mu * normal) < small),
        ~stuck | (normal == 0) | (np.abs(slip) < small),
    ):
        assert (holds | unsolved.any(axis=1, keepdims=True)).all()


def _has_solution(W, c, mu):
    """Whether any choice for each contact agrees with its laws: to open, to stick, to
    slide forward or backward."""
    n, small = len(mu), 1e-9 * np.max(np.abs(c))
    for choice in itertools.product((None, 0, 1, -1), repeat=n):
        chosen = [(i, side) for i, side in enumerate(choice) if side is not None]
        push = [W[:, i] - mu[i] * side * W[:, n + i] for i, side in chosen]
        sticks = [n + i for i, side in chosen if side == 0]
        rows = [i for i, _ in chosen] + sticks
        columns = np.array(push + [W[:, row] for row in sticks]).reshape(-1, 2 * n)
        # Pushing harder must not make the gap smaller, while others stay closed; or by
        # itself, where these leave it no motion.
        square = columns[:, rows]
        if np.linalg.matrix_rank(square, rtol=1e-6) == len(rows):
            gains = np.diagonal(np.linalg.inv(square))[: len(chosen)]
        else:
            gains = [a[i] for a, (i, _) in zip(push, chosen, strict=True)]
        well = all(
            side == 0 or gain > 0 for (_, side), gain in zip(chosen, gains, strict=True)
        )
        f = np.linalg.lstsq(columns[:, rows].T, -c[rows], rcond=1e-11)[0]
        moves = c + f @ columns
        normal, drag = (
            f[: len(chosen)],
            dict(zip(sticks, f[len(chosen) :], strict=True)),
        )
        holds = [
            np.abs(moves[rows]) <= 1e2 * small,
            moves[:n] >= -1e2 * small,
            normal >= -small,
            [
                abs(drag[n + i]) <= mu[i] * p + small
                if side == 0
                else moves[n + i] * side >= -small
                for (i, side), p in zip(chosen, normal, strict=True)
            ],
        ]
        if well and all(np.all(a) for a in holds):
            return True
    return False


@pytest.mark.parametrize("directions", [1, 2])
def test_friction_of_what_is_held_back(directions):
    # The second one hits, and the first one would leave with a hundredth of its speed.
    # It goes on sliding, with the friction of a pull, unless it slides as slowly.
    W = np.eye(2 + 2 * directions)
    W[0, 1] = W[1, 0] = 0.01
    for slip, least, drive, closed in (
        (0.3, 0.02, -1.0, [True, True]),
        (-0.3, 0.02, -1.0, [True, True]),
        (0.02, 0.02, -1.0, [True, True]),
        (0.3, 0.005, -1.0, [False, True]),
        # Nothing presses it back.
        (0.3, 0.02, 0.1, [False, True]),
    ):
        c = np.concatenate([[0.0, -1.0], [slip, 0.2] * directions])
        active, forces, unsolved = _search(W, c, np.full(2, 0.1), least, drive)
        assert not unsolved.any()
        np.testing.assert_array_equal(active.closed, closed)
        normal, tangential = forces[:2], forces[2:].reshape(directions, 2)
        pull = -0.01 / (1 - 1e-4) if closed[0] else 0.0
        np.testing.assert_allclose(normal, [pull, 1 - 0.01 * pull], rtol=1e-12)
        onto = np.full(directions, np.sign(slip) / np.sqrt(directions))
        onto = onto if abs(slip) > 0.1 else 0 * onto
        np.testing.assert_allclose(tangential[:, 0], -0.1 * pull * onto, rtol=1e-12)
        size = np.linalg.norm(tangential[:, 1])
        np.testing.assert_allclose(size, 0.1 * normal[1], rtol=1e-12)


@pytest.mark.parametrize("directions", [1, 2])
def test_what_cannot_be_held_back_with_its_friction(directions):
    # Its gap would grow where it is pulled at harder, by the friction of that.
    W = np.eye(2 + 2 * directions)
    W[0, 1] = W[1, 0] = 0.01
    W[0, 2] = W[2, 0] = 0.9
    c = np.concatenate([[0.01, -1.0], [0.3, 0.2] + [0.0, 0.0] * (directions - 1)])
    for friction, closed in ((1.1, True), (1.12, False)):
        mu = np.array([friction, 0.1])
        active, _, unsolved = _search(W, c, mu, 0.05, -1.0)
        assert not unsolved.any()
        np.testing.assert_array_equal(active.closed, [closed, True])


@pytest.mark.parametrize("directions", [1, 2])
def test_others_pull_as_little_for_what_is_held_back(directions):
    # A third one is closed, and would open a little, where the first one is held back.
    c = np.concatenate([[0.0, -1.0, -0.001], np.zeros(3 * directions)])
    for coupling, least, closed in (
        (0.5, 0.02, [True, True, True]),
        (0.5, 0.005, [False, True, True]),
        # It would have to pull harder than that.
        (0.9, 0.02, [False, True, True]),
    ):
        W = np.eye(3 + 3 * directions)
        W[0, 1] = W[1, 0] = 0.01
        W[0, 2] = W[2, 0] = -coupling
        active, forces, unsolved = _search(W, c, np.full(3, 0.1), least, -1.0)
        assert not unsolved.any()
        np.testing.assert_array_equal(active.closed, closed)
        some = np.flatnonzero(closed)
        expected = np.linalg.solve(W[np.ix_(some, some)], -c[some])
        np.testing.assert_allclose(forces[some], expected, rtol=1e-12)


@pytest.mark.parametrize("directions", [1, 2])
def test_what_is_held_back_clings(directions):
    # The same, but the first one stuck before, and is not to begin to slip for that,
    # if it would as slowly; nor is it where all are held.
    W = np.eye(2 + 2 * directions)
    W[0, 1] = W[1, 0] = 0.01
    clings = np.array([True, False])
    for slip, least, held in ((0.02, 0.02, False), (0.3, -jnp.inf, True)):
        c = np.concatenate([[0.0, -1.0], [slip, 0.2] * directions])
        active, forces, unsolved = _search(
            W, c, np.full(2, 0.1), least, -1.0, clings, held
        )
        assert not unsolved.any() and active.closed.all()
        normal, tangential = forces[:2], forces[2:].reshape(directions, 2)
        pull = -0.01 / (1 - 1e-4)
        np.testing.assert_allclose(normal, [pull, 1 - 0.01 * pull], rtol=1e-12)
        np.testing.assert_allclose(tangential[:, 0], -slip, rtol=1e-12)
        size = np.linalg.norm(tangential[:, 1])
        np.testing.assert_allclose(size, 0.1 * normal[1], rtol=1e-12)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    "stop, mu, forces, closed",
    [
        # By itself the foot would come nearer where it pushes harder.
        ([1.0, 1.0], 1.5, [1.0, 2.0], [True, True]),
        # Only with the stop it would: of two solutions the other one is found.
        ([-2.0, 1.0], 0.5, [1.0, 1.0], [False, True]),
    ],
)
def test_friction_beside_a_stop(directions, stop, mu, forces, closed):
    # A foot that slides, and a stop without friction.
    J = np.zeros((2 + 2 * directions, 4))
    J[0, 0], J[1, :2], J[2, :2] = 1, stop, 1
    J[4:, 2:] = np.eye(2)[: J[4:].shape[0]]
    W, mu = J @ J.T, np.array([mu, 0.0])
    push = W[:, :2] - mu * W[:, 2:4]
    alone, both = push[0, 0], np.linalg.det(push[:2])
    assert (alone > 0) != (both / push[1, 1] > 0)
    none = jnp.zeros((2,), bool)
    guess = Active(~none, none, jnp.zeros((2 * directions,)).at[0].set(1.0))
    search = jax.jit(functools.partial(find_active, exact=0.6))
    active, _, unsolved = search(
        *(W, -push @ np.array(forces), jnp.asarray(4.0), guess),
        *(none, none, jnp.asarray(False), none, mu, mu),
    )
    assert not unsolved.any()
    np.testing.assert_array_equal(active.closed, closed)


@pytest.mark.parametrize(
    "accelerations, closed",
    [
        # It would come nearer where it pushes harder, and is not pressed: it opens.
        ([1.0, -1.0], [False, True]),
        # It is pressed, and would come nearer only with the stop, which opens.
        ([-1.0, -0.5], [True, False]),
    ],
)
def test_what_is_to_slide_and_cannot(accelerations, closed):
    # A foot that has left its cone, and a stop beside it.
    W = np.zeros((4, 4))
    W[:3, :3] = [[1.0, 0.75, 0.25], [0.75, 1.0, -0.125], [0.25, -0.125, 1.0]]
    mu, none = np.array([2.0, 0.0]), jnp.zeros((2,), bool)
    push = W[:, :2] - mu * W[:, 2:]
    assert push[0, 0] > 0 > np.linalg.det(push[:2])
    leaves = jnp.array([True, False])
    search = jax.jit(functools.partial(find_active, exact=0.6, at_rest=True))
    active, _, unsolved = search(
        *(W, np.array([*accelerations, 0.0, 0.0]), jnp.asarray(1.0)),
        *(Active(~none, none, jnp.ones(2)), none, leaves, jnp.asarray(False), none),
        *(mu, mu),
    )
    assert not unsolved.any()
    np.testing.assert_array_equal(active.closed, closed)


def test_posedness():
    # Of one that slides beside one that sticks and a stop, as it changes sign; of those
    # it is judged by itself if their rows are the same.
    rng = np.random.default_rng(0)
    J, dJ = rng.normal(size=(2, 6, 5))
    mu, active = np.array([0.8, 0.5, 0.0]), np.array([True, True, True])
    active = Active(
        jnp.asarray(active), jnp.array([False, True, False]), jnp.array([1.0, 1.0, 1.0])
    )

    def posed(s, J):
        rows = J + s * dJ
        W = rows @ rows.T
        _, solver = contact_forces_and_solver(W, jnp.zeros(6), active, mu)
        return posedness(W, active, mu, solver, derivative=True)

    def expected(s):
        rows = J + s * dJ
        W, held = rows @ rows.T, [0, 1, 2, 4]
        # As it is made regular.
        small = _digits * np.diag(W)[held] * [1, 1, 1, 16]
        free = W[np.ix_(held, held)] + np.diag(small)
        push = free.copy()
        push[:, 0] -= mu[0] * W[held, 3]
        return _posedness(push, free, W[0, 0]) - _least

    run = jax.jit(lambda s, J: jax.jvp(lambda s: posed(s, J), (s,), (1.0,)))
    signs, h = set(), 1e-5
    for s in np.linspace(-2, 2, 21):
        got, slope = run(s, J)
        np.testing.assert_allclose(got, [expected(s), 1, 1], rtol=1e-6, atol=1e-8)
        if got[0] == min(got):
            difference = (expected(s + h) - expected(s - h)) / (2 * h)
            np.testing.assert_allclose(slope[0], difference, rtol=1e-4, atol=1e-6)
        signs.add(np.sign(got[0]))
    assert signs == {-1, 1}
    J[1], J[4], dJ[:] = J[0], J[3], 0
    (got, _), W = run(0.0, J), J @ J.T
    alone = 1 - mu[0] * W[0, 3] / W[0, 0]
    np.testing.assert_allclose(got[0], alone - _least, rtol=1e-7)


def test_posedness_of_two_that_slide_beside_a_stop():
    # As friction grows: as long as all that presses is pushed back, by the eigenvalues
    # of its matrix, and not where that has just become singular. Until then one of them
    # may have had a negative entry of the inverse.
    rng, n, n_lanes = np.random.default_rng(0), 3, 200
    J = rng.normal(size=(n_lanes, 2 * n, 4))
    W, side = J @ J.swapaxes(1, 2), rng.choice([-1.0, 1.0], (n_lanes, n))
    mu = np.linspace(0, 3, 301)[:, None] * np.array([1.0, 1.0, 0.0])

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def posed(mu, W, side):
        active = Active(jnp.ones(n, bool), jnp.zeros(n, bool), side)
        _, solver = contact_forces_and_solver(W, jnp.zeros(2 * n), active, mu)
        return jnp.min(posedness(W, active, mu, solver))

    got = posed(mu, W, side)
    push = W[:, :n, :n] - W[:, :n, n:] * (mu[:, None] * side)[:, :, None]
    inverse = np.diagonal(np.linalg.inv(push), axis1=2, axis2=3)
    alone = np.diagonal(push, axis1=2, axis2=3).min(axis=2) > 0
    pushed_back = np.linalg.eigvals(push).real.min(axis=2) > 0
    so_far = np.logical_and.accumulate(alone & pushed_back, axis=0)
    assert np.all(got[so_far] > 0)
    assert np.sum(so_far & (inverse[:, :, :2].min(axis=2) < 0)) > 500
    singular = so_far[:-1] & (np.linalg.det(push[1:]) < 0)
    # (One that others leave hardly any motion is judged by itself.)
    normal = W[:, :n, :n]
    moves = np.diagonal(normal * np.linalg.inv(normal), axis1=1, axis2=2) < 200
    singular = singular & moves.all(axis=1)
    assert np.all(got[1:][singular] <= 0) and np.sum(singular) > 30


def test_posedness_where_feet_are_nearly_on_a_line():
    # Of four feet of a rigid body, which all slide. Forces at three, nearly on a line,
    # and a small one at the first foot, move nothing. They say nothing of that foot,
    # until the line is bent so much that it is judged by itself.
    rng, n, mu = np.random.default_rng(0), 4, np.full(4, 1.0)

    def rows(feet):
        arms = jnp.concatenate([feet, jnp.full((n, 1), -0.3)], axis=1)
        axes = np.repeat(np.eye(3)[[2, 0, 1]], n, axis=0)
        turns = jnp.cross(jnp.tile(arms, (3, 1)), axes)
        return jnp.concatenate([axes, turns], axis=1) @ np.diag([1.0] * 3 + [3.0] * 3)

    @jax.jit
    def run(feet, d_feet, direction):
        def posed(feet):
            W = rows(feet) @ rows(feet).T
            active = Active(jnp.ones(n, bool), jnp.zeros(n, bool), direction)
            _, solver = contact_forces_and_solver(W, jnp.zeros(3 * n), active, mu)
            return posedness(W, active, mu, solver, derivative=True)

        return jax.jvp(posed, (feet,), (d_feet,))

    def expected(feet, direction):
        W = np.asarray(rows(feet) @ rows(feet).T)
        normal, x, y = W[:n].reshape(n, 3, n).swapaxes(0, 1)
        push = normal - mu * (x @ np.diag(direction[:n]) + y @ np.diag(direction[n:]))
        # Its part in what moves nothing.
        left, _, right = np.linalg.svd(push)
        nothing, share = right[-1], left[:, -1] * np.diag(normal)
        part = nothing[0] * left[0, -1] / (share @ nothing) / _digits
        # As it is made regular.
        push = push + _digits * np.diag(np.diag(normal))
        free = push.copy()
        free[:, 0] += mu[0] * (x[:, 0] * direction[0] + y[:, 0] * direction[n])
        return _posedness(push, free, normal[0, 0]), abs(part)

    signs, parts = set(), []
    for _ in range(20):
        one, begin, way, aside, move = rng.uniform(-0.5, 0.5, (5, 2))
        direction = np.asarray(unit(rng.normal(size=2 * n), n))
        d_feet = np.zeros((n, 2))
        d_feet[0] = move
        for bend in (0, *np.geomspace(1e-7, 1e-1, 13)):
            middle = begin + 0.4 * way + bend * aside
            feet = np.stack([one, begin, middle, begin + way])
            got, slope = run(feet, d_feet, direction)
            value, part = expected(feet, direction)
            np.testing.assert_allclose(got[0], value, rtol=0, atol=1e-6)
            signs.add(np.sign(value))
            parts.append(part)
            if got[0] == min(got):
                of_feet = functools.partial(expected, direction=direction)
                difference, _ = slope_along(of_feet, feet, d_feet, 1e-3)
                # (The inverse has errors of a few 1e-9 of its entries, of up to 1e8.)
                atol = 1e-4 if part < 10 else 3e-4
                np.testing.assert_allclose(slope[0], difference, rtol=0, atol=atol)
    assert signs == {-1, 1} and min(parts) < 1e-4 and max(parts) > 1e4


@jax.jit
def _search(W, c, mu, least=-jnp.inf, drive=0.0, clings=False, held=False):
    every = jnp.ones(mu.shape, bool)
    guess = Active(every, every, unit(c[mu.size :], mu.size))
    active, _, unsolved = find_active(
        W,
        c,
        jnp.max(jnp.abs(c)),
        guess,
        every,
        ~every,
        jnp.asarray(held),
        ~every,
        mu,
        mu,
        exact=0.45,
        least=least,
        drive=jnp.full_like(c, drive),
        clings=every & clings,
    )
    return active, contact_forces(W, c, active, mu), unsolved
