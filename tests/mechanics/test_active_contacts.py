"""The search for active contacts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics._contacts.active_contacts import find_active
from hybridjax.mechanics._contacts.complementarity import Active, contact_forces


@pytest.mark.parametrize("freedom, friction", [(4, 0.3), (7, 0.3), (7, 0.7)])
def test_impacts_of_five_contacts(freedom, friction):
    # Of bodies at random: laws of impact with friction, for which a solution exists.
    # With fewer degrees of freedom than rows, not every choice has unique impulses.
    n, problems = 5, 400
    rng = np.random.default_rng(0)
    J = rng.normal(size=(problems, 2 * n, freedom))
    c = np.einsum("kij,kj->ki", J, rng.normal(size=(problems, freedom)))
    mu = friction * np.abs(rng.normal(size=(problems, n)))
    f, stuck, unsolved = _impulses(J @ J.swapaxes(1, 2), c, mu)
    # Of what is left some have too much friction (Painlevé's paradox).
    assert np.mean(unsolved.any(axis=1)) <= 0.02
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


@jax.jit
@jax.vmap
def _impulses(W, c, mu):
    every = jnp.ones(mu.shape, bool)
    guess = Active(every, every, jnp.where(c[mu.size :] < 0, -1.0, 1.0))
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
    )
    forces = contact_forces(W, c, active, mu)
    return forces, active.closed & active.stick, unsolved
