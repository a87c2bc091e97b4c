"""Eigenvalues of products of matrices."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


_multipliers = jax.jit(hj.analysis.floquet_multipliers)


def _factors(diagonals, rng):
    """Of a product that is triangular in some basis, with blocks of two on it: an angle
    and a size each; with its eigenvalues."""
    k, blocks, _ = diagonals.shape
    n = 2 * blocks
    bases = [np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(k)]
    out = []
    for i in range(k):
        t = np.triu(rng.normal(size=(n, n)), 1)
        t *= np.abs(diagonals[i, :, 1]).repeat(2)[:, None]
        for b, (angle, size) in enumerate(diagonals[i]):
            c, s = size * np.cos(angle), size * np.sin(angle)
            t[2 * b : 2 * b + 2, 2 * b : 2 * b + 2] = [[c, -s], [s, c]]
        out.append(bases[(i + 1) % k] @ t @ bases[i].T)
    angles, sizes = diagonals[..., 0].sum(0), diagonals[..., 1].prod(0)
    turns = sizes * np.exp(1j * angles)
    return np.array(out), np.concatenate([turns, turns.conj()])


@pytest.mark.parametrize("k", [1, 7, 40])
def test_small_ones(k):
    # From 1 to 1e-80, where the product holds 16 digits; pairs and all.
    rng = np.random.default_rng(0)
    sizes = np.array([1.1, 0.9, 1e-1, 1e-2]) * rng.uniform(0.5, 2, (k, 4))
    angles = rng.uniform(-0.3, 0.3, (k, 4))
    factors, exact = _factors(np.stack([angles, sizes], axis=-1), rng)
    got = np.asarray(_multipliers(factors))
    assert np.all(np.diff(np.abs(got)) <= 1e-9 * np.abs(got[:-1]))
    for value in exact:
        assert np.min(np.abs(got - value)) < 1e-9 * np.abs(value)
    if k == 40:
        plain = np.linalg.eigvals(np.linalg.multi_dot(factors[::-1]))
        assert np.min(np.abs(plain - exact[-1])) > np.abs(exact[-1])


def test_singular_factor():
    # A plastic impact, in each of a batch; and the derivative, by differences.
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(5, 4, 3, 3))
    factors[:, 1, :, 2] = 0
    v = rng.normal(size=factors.shape)
    each = jax.vmap(_multipliers)
    got, slope = jax.jvp(each, (factors,), (v,))
    product = factors[:, 3] @ factors[:, 2] @ factors[:, 1] @ factors[:, 0]
    exact = np.linalg.eigvals(product)
    exact = np.take_along_axis(exact, np.argsort(-np.abs(exact), axis=1), axis=1)
    assert np.all(np.abs(exact[:, 2]) < 1e-13)
    np.testing.assert_allclose(got, exact, atol=1e-12)
    h = 1e-6
    differences = (each(factors + h * v) - each(factors - h * v)) / (2 * h)
    np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-6)


def test_float32():
    factors = jnp.array([[[2.0, 1.0], [0.0, 1e-3]]] * 8, jnp.float32)
    got = _multipliers(factors)
    assert got.dtype == jnp.complex64
    np.testing.assert_allclose(got, [256, 1e-24], rtol=1e-4)


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"`factors` must be a stack.*\(2, 2\)"):
        hj.analysis.floquet_multipliers(jnp.eye(2))
