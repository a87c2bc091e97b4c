"""The search for active contacts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics._contacts.active_contacts import find_active
from hybridjax.mechanics._contacts.complementarity import Active, contact_forces
from hybridjax.mechanics._contacts.tangential import unit


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
        # Pushing harder must not make the gap smaller.
        well = all(a[i] > 0 for a, (i, _) in zip(push, chosen, strict=True))
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
def test_what_is_held_back_has_no_friction(directions):
    # The second one hits, and the first one would leave with a hundredth of its speed.
    W = np.eye(2 + 2 * directions)
    W[0, 1] = W[1, 0] = 0.01
    c = np.concatenate([[0.0, -1.0], [0.3, 0.2] * directions])
    for least, closed in ((0.02, [True, True]), (0.005, [False, True])):
        active, forces, unsolved = _search(W, c, np.full(2, 0.1), least)
        assert not unsolved.any()
        np.testing.assert_array_equal(active.closed, closed)
        normal, tangential = forces[:2], forces[2:].reshape(directions, 2)
        pull = -0.01 / (1 - 1e-4) if closed[0] else 0.0
        np.testing.assert_allclose(normal, [pull, 1 - 0.01 * pull], rtol=1e-12)
        np.testing.assert_array_equal(tangential[:, 0], 0)
        size = np.linalg.norm(tangential[:, 1])
        np.testing.assert_allclose(size, 0.1 * normal[1], rtol=1e-12)


@jax.jit
def _search(W, c, mu, least=-jnp.inf):
    every = jnp.ones(mu.shape, bool)
    guess = Active(every, every, unit(c[mu.size :], mu.size))
    active, unsolved = find_active(
        W,
        c,
        jnp.max(jnp.abs(c)),
        guess,
        every,
        ~every,
        jnp.asarray(False),
        ~every,
        mu,
        mu,
        exact=0.45,
        least=least,
    )
    return active, contact_forces(W, c, active, mu), unsolved
