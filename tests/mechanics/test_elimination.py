"""Small matrices, beside NumPy."""

import jax
import numpy as np
import pytest
from hybridjax.mechanics._dynamics.elimination import inverse


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
    got = _inverse(np.where(active[:, None], a, np.eye(n)), active)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)
