"""Small matrices, beside NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.mechanics._dynamics.elimination import inverse
from hybridjax.mechanics._dynamics.least_solve import least_solve

from ..helpers import slope_along


@jax.jit
def _inverse(a, active):
    return inverse(a, active)


# None, few, and more than the smaller matrix has room for.
@pytest.mark.parametrize("count", [0, 20, 48, 49, 100])
def test_rows_of_many_contacts(count):
    n = 100
    rng = np.random.default_rng(count)
    a = rng.normal(size=(n, n))
    active = np.isin(np.arange(n), rng.permutation(n)[:count])
    # What is beside the active block does not count.
    expected = np.eye(n)
    block = np.ix_(active, active)
    expected[block] = np.linalg.inv(a[block])
    got, sign = _inverse(np.where(active[:, None], a, np.eye(n)), active)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)
    assert sign == np.linalg.slogdet(a[block])[0]


def test_rows_in_every_order():
    # Each pivot in another row than its variable, in each lane in another one.
    rng = np.random.default_rng(7)
    a = np.stack([np.diag(rng.uniform(1, 2, 5))[rng.permutation(5)] for _ in range(40)])
    a[20:] += rng.normal(size=(20, 5, 5))
    got, sign = jax.jit(jax.vmap(inverse))(a)
    np.testing.assert_allclose(got, np.linalg.inv(a), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(sign, np.linalg.slogdet(a)[0])
    assert set(sign.tolist()) == {-1, 1}


def test_contradictions_of_redundant_rows():
    # Four feet with friction against directions of their own, of which three would do:
    # how hard each is pressed is not determined, and what they do then depends on it.
    # So small contradictions of their rows, by errors, must not add to that.
    rng, n, d = np.random.default_rng(1), 4, 6
    normals = rng.normal(size=(3, d))[[0, 1, 2, 2]]
    normals[3] += normals[0] - normals[1]
    mixed = normals + 0.3 * rng.normal(size=(n, d))
    matrix, weights = normals @ mixed.T, np.sum(normals**2, axis=1)
    against = np.array([1.0, -1.0, 1.0, -1.0])  # what no motion of them does
    np.testing.assert_allclose(against @ matrix, 0, atol=1e-12)

    @jax.jit
    def solved(b, d_matrix, db):
        solve = lambda matrix, b: least_solve(matrix, b, weights, agree=False)
        return jax.jvp(solve, (matrix, b), (d_matrix, db))

    b, db = normals @ rng.normal(size=d), normals @ rng.normal(size=d)
    d_matrix = normals @ rng.normal(size=(d, n))
    x, dx = solved(b, d_matrix, db)
    np.testing.assert_allclose(matrix @ x, b, atol=1e-12)
    np.testing.assert_allclose(matrix @ dx + d_matrix @ x, db, atol=1e-12)
    # Rounding is such an error, too: divided by what makes the matrix regular. There is
    # more than one, and a GPU rounds otherwise than a CPU.
    least = 4 * np.sqrt(np.finfo(float).eps)
    for error in (1e-12, 1e-10, 1e-8):
        off, d_off = solved(b + error * against, d_matrix, db + error * against)
        np.testing.assert_allclose(off, x, rtol=0, atol=100 * error + least)
        np.testing.assert_allclose(d_off, dx, rtol=0, atol=100 * error + least)
    # Nor may large ones, in a derivative: a Jacobian has columns along which the rows
    # contradict each other by as much as they change. What is left out is what forces
    # would have to make that make no motion, by the small part of the weights.
    left_out = weights * np.linalg.svd(matrix)[2][-1]
    _, d_off = solved(b, d_matrix, db + 1e3 * left_out)
    np.testing.assert_allclose(d_off, dx, rtol=0, atol=1e3 * 10 * least)


def test_what_redundant_rows_do_not_determine_moves():
    # The rows of the fourth foot are a combination of the others that changes. What the
    # rows leave open is a matter of the weights, and has a derivative, too.
    rng = np.random.default_rng(2)
    bases, sides = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 4, 6))
    pushes = rng.normal(size=(2, 6))

    def solved(s):
        normals = bases[0] + s * bases[1] + s**2 * bases[1, ::-1]
        fourth = normals[2] + jnp.cos(s) * normals[0] - (1 + s) * normals[1]
        normals = jnp.concatenate([normals, fourth[None]])
        matrix = normals @ (normals + 0.3 * (sides[0] + s * sides[1])).T
        b = normals @ (pushes[0] + s * pushes[1])
        return least_solve(matrix, b, jnp.sum(normals**2, axis=1), agree=False)

    value = jax.jit(lambda s: (solved(s), jax.jacfwd(solved)(s), jax.jacrev(solved)(s)))
    h, least = 1e-3, np.sqrt(np.finfo(float).eps)
    for s in (0.0, 0.3, -0.5):
        _, forward, backward = value(s)
        expected = slope_along(lambda s: value(s)[0], s, 1.0, h)
        # The values have errors of `least`.
        np.testing.assert_allclose(forward, expected, rtol=0, atol=10 * least / h)
        np.testing.assert_allclose(forward, backward, rtol=0, atol=10 * least)
