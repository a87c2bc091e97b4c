"""Directions in which feet slip from rest while others of the same body stick."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics._contacts.complementarity import Active, weights_of
from hybridjax.mechanics._contacts.slipping_directions import (
    give,
    slipping_directions,
    slips_onward,
)


_many, _g = 200, 9.81


@pytest.mark.parametrize("turns", [False, True])
def test_slips_against_friction(turns):
    # Of a body on four feet some slip, and others stick and give way a little. Friction
    # is against each slip, or the foot could stick. If the body `turns`, feet that
    # stick force others to accelerate, and there is a second root: the opposite one.
    rng = np.random.default_rng(0)
    cases = [_case(rng, turns) for _ in range(_many)]
    given = [np.stack(each) for each in zip(*cases, strict=True)]
    closed = jnp.ones(4, bool)

    @jax.jit
    @jax.vmap
    def search(W, c, friction, slips, begin, _):
        active = Active(closed, ~slips, begin)
        return slipping_directions(W, c, active, slips, friction)[0].direction

    found = np.asarray(search(*map(jnp.asarray, given)))
    onward = 0
    for case, u in zip(cases, found, strict=True):
        _, c, friction, slips, *_ = case
        size = np.max(np.abs(c))
        _, along, aside = _solved(case, slips, u)
        assert np.all(np.abs(aside[slips]) < 1e-5 * size)
        # Also where all that it does is to give way.
        assert np.all(np.abs(aside[slips]) < 1e-4 * np.hypot(along, aside)[slips])
        backward = slips & (along < -1e-5 * size)
        onward += not np.any(backward)
        for foot in np.flatnonzero(backward):
            # It could stick.
            sticks = slips & (np.arange(4) != foot)
            forces, *_ = _solved(case, sticks, u)
            normal, x, y = forces.reshape(3, 4)[:, foot]
            assert np.hypot(x, y) < friction[foot] * normal
    assert onward > 0.9 * _many


def test_slips_beside_a_limit():
    # The limit of a joint has no tangents. A foot slips, and others stick: how fast it
    # slips has a derivative.
    W, c, friction, *_ = _case(np.random.default_rng(0), True)
    rows = np.ones(12)
    rows[[7, 11]] = 0
    sticks = jnp.array([False, True, True, False])
    u = np.concatenate([np.full(4, 0.6), np.full(4, 0.8)])

    @jax.jit
    def onward(share):
        active = Active(jnp.ones(4, bool), sticks, jnp.asarray(u))
        limited = friction * (np.arange(4) < 3)
        moved = share**2 * W * np.outer(rows, rows), share * c * rows
        return slips_onward(*moved, active, limited)[0]

    h = 1e-4
    expected = (onward(1 + h) - onward(1 - h)) / (2 * h)
    slope = jax.grad(onward)(1.0)
    assert abs(expected) > 1e-3 and abs(slope - expected) < 1e-6 * abs(expected)


def _case(rng, turns):
    """Matrix and accelerations of a body that is pulled, friction, the feet that slip,
    a direction to begin with, and weights."""
    while True:
        corners = rng.uniform(0.1, 0.6, 4) * np.array([1, 1j, -1, -1j])
        corners = corners * np.exp(1j * rng.uniform(-0.5, 0.5, 4))
        feet = np.stack([corners.real, corners.imag, np.full(4, -0.3)], 1)
        # Rows of the heights, and of both tangents.
        axes = np.repeat(np.eye(3)[[2, 0, 1]], 4, axis=0)
        J = np.concatenate([axes, np.cross(np.tile(feet, (3, 1)), axes)], 1)
        forward = J / np.array([1, 1, 1, 0.1, 0.1, 0.1])
        friction = rng.uniform(0.2, 0.6)
        along = rng.uniform(0, 2 * np.pi)
        pull = np.array([np.cos(along), np.sin(along), 0, 0, 0, rng.uniform(-0.3, 0.3)])
        pull = friction * _g * rng.uniform(0.5, 1.3) * pull - _g * np.eye(6)[2]
        W, c = forward @ J.T, forward @ pull
        if turns:
            c[4:] += rng.normal(0, 0.3, 8)
        weights = np.asarray(weights_of(W, 4))
        forces = -np.linalg.solve(W + give(W.dtype) * np.diag(weights), c)
        over = np.hypot(forces[4:8], forces[8:]) - friction * forces[:4]
        most = 2 if turns else 3
        slips = over >= np.sort(over)[-rng.integers(1, most, endpoint=True)]
        if np.all(forces[:4] > 0) and np.all(over[slips] > 0):
            angle = rng.uniform(0, 2 * np.pi, 4)
            begin = np.concatenate([np.cos(angle), np.sin(angle)])
            return W, c, np.full(4, friction), slips, begin, weights


def _solved(case, slips, u):
    """Forces; accelerations of all feet along their directions, and aside."""
    W, c, friction, *_, weights = case
    n = friction.shape[0]
    held = np.concatenate([np.ones(n, bool), ~slips, ~slips])
    yielding = W + give(W.dtype) * np.diag(weights)
    share = np.zeros_like(W)
    share[n:, :n] = np.concatenate([np.diag(friction * d) for d in (u[:n], u[n:])])
    matrix = np.where(held[:, None], yielding, np.eye(3 * n) + share)
    forces = np.linalg.solve(matrix, np.where(held, -c, 0))
    _, x, y = (c + W @ forces).reshape(3, n)
    return forces, u[:n] * x + u[n:] * y, u[:n] * y - u[n:] * x
