"""Events on their guard, inside of the guard set, and together in one instant."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


class _Neurons(hj.AbstractHybridSystem):
    """Leaky neurons, x' = i - x, which fire at one, go back by one, and push others."""

    current: Any
    weights: Any  # shape (n, n): from the second to the first

    def flow(self, t, x, mode, args):
        return self.current - x

    def guards(self, t, x, mode, args):
        return 1 - x

    def jump(self, t, x, mode, event, args):
        own = jnp.arange(x.shape[0]) == event
        return x - own + self.weights @ own.astype(x.dtype), mode


def test_cascades():
    # One spike pushes others over the threshold, by different amounts: those fire in
    # the order of their lateness, whatever a perturbation does.
    rng = np.random.default_rng(0)
    lanes, n, h = 200, 4, 1e-6
    current = rng.uniform(1.1, 2, (lanes, n))
    weights = rng.uniform(0.02, 0.3, (lanes, n, n))
    x0, dx = rng.uniform(0, 0.95, (lanes, n)), rng.normal(size=(lanes, n))

    def run(x0, current, weights):
        sol = hj.simulate(
            _Neurons(current, weights),
            0.0,
            1.0,
            x0,
            0,
            stepsize_controller=dfx.PIDController(rtol=1e-10, atol=1e-10),
            max_steps=512,
            throw=False,
        )
        t = jnp.diff(jnp.where(jnp.isfinite(sol.events.t), sol.events.t, 0))
        return sol.x1, (sol.events.event, jnp.sum(t == 0), sol.result)

    @jax.jit
    @jax.vmap
    def derivative(x0, dx, current, weights):
        return jax.jvp(lambda x0: run(x0, current, weights), (x0,), (dx,), has_aux=True)

    @jax.jit
    @jax.vmap
    def gradient(x0, current, weights):
        return jax.grad(lambda x0: jnp.sum(run(x0, current, weights)[0]))(x0)

    system = current, weights
    value, tangent, (events, inner, result) = derivative(x0, dx, *system)
    above, _, (events_above, *_) = derivative(x0 + h * dx, dx, *system)
    below, _, (events_below, *_) = derivative(x0 - h * dx, dx, *system)
    same = np.all((events_above == events) & (events_below == events), axis=1)
    fine = same & np.asarray(result == hj.RESULTS.successful)
    assert np.sum(fine) > 150 and np.sum(fine & (inner > 60)) > 20
    difference = (above - below) / (2 * h)
    np.testing.assert_allclose(tangent[fine], difference[fine], rtol=1e-4, atol=1e-4)
    rows = gradient(x0, *system)
    np.testing.assert_allclose(
        np.sum(rows * dx, axis=1)[fine], np.sum(tangent, axis=1)[fine], rtol=1e-6
    )


class _Wedge(hj.AbstractHybridSystem):
    """A point that moves straight, and is reflected by two walls through the origin."""

    angle: Any  # between the walls

    def normals(self):
        zero = jnp.zeros_like(self.angle)
        low = jnp.stack([zero, zero + 1])
        return jnp.stack([low, jnp.stack([jnp.sin(self.angle), -jnp.cos(self.angle)])])

    def flow(self, t, x, mode, args):
        return jnp.concatenate([x[2:], jnp.zeros_like(x[2:])])

    def guards(self, t, x, mode, args):
        # Only where it approaches the wall.
        normals = self.normals().astype(x.dtype)
        return jnp.where(normals @ x[2:] < 0, normals @ x[:2], hj.UNWATCHED)

    def jump(self, t, x, mode, event, args):
        normal = self.normals().astype(x.dtype)[event]
        return x.at[2:].add(-2 * (normal @ x[2:]) * normal), mode


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_wedges(dtype):
    # Into the corner of two walls, from angles at which the first reflection turns the
    # point away from the other wall as well as from those at which it does not. The
    # outcome depends on the order unless the angle is a part of pi.
    @jax.jit
    @jax.vmap
    def run(angle, direction, size):
        towards = -size * jnp.stack([jnp.cos(direction), jnp.sin(direction)])
        x0 = jnp.concatenate([-towards, towards]).astype(dtype)

        def final(x0):
            return hj.simulate(_Wedge(angle), 0.0, 2.0, x0, 0, throw=False).x1

        x1, push = jax.linearize(final, x0)
        return x1, push(jnp.ones_like(x0)), jax.linear_transpose(push, x0)(x0)[0]

    parts = np.linspace(0.1, 0.9, 9)
    for size in (1.0, 1e-7, 1e7):
        for angle, exists in ((1.0, False), (1.2, False), (np.pi / 2, True)):
            lanes = [np.full(9, angle), angle * parts, np.full(9, size)]
            x1, forward, reverse = run(*(np.asarray(a, dtype) for a in lanes))
            assert np.all(np.isfinite(x1))
            for derivative in (forward, reverse):
                assert np.all(np.isfinite(derivative).all(axis=1) == exists)
