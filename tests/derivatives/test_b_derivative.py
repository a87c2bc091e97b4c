"""`hj.b_derivative`: the derivative at a corner, as an object.

References: `council.py`, which is NumPy after Council et al.; for systems with
resets, compositions of `hj.saltation_matrix`, which has tests of its own.
"""

import itertools

import equinox as eqx
import hybridjax as hj
import hybridjax.models as models
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import council


# Surfaces and states: as many, or fewer.
SHAPES = [
    (2, 2),
    pytest.param((3, 3), marks=pytest.mark.thorough),
    pytest.param((2, 4), marks=pytest.mark.thorough),
    (3, 5),
]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def corner(request):
    n, d = request.param
    rng = np.random.default_rng([n, d])
    table, normals = council.random_corner(rng, n, d)
    b = hj.b_derivative(models.piecewise_constant(table, normals), 0.5, jnp.zeros(d))
    directions = rng.standard_normal((50, d))
    return n, d, normals, council.table_field(table), b, directions


def test_tangents_and_orders(corner):
    n, d, normals, field, b, directions = corner
    expected = [council.b_derivative(normals, field, v) for v in directions]
    pushed = jax.jit(jax.vmap(b))(directions)
    np.testing.assert_allclose(pushed, [v for v, _ in expected], rtol=0, atol=1e-12)
    np.testing.assert_allclose(b(directions[0]), expected[0][0], rtol=0, atol=1e-12)
    for v, (_, order) in zip(directions, expected, strict=True):
        assert b.order(v).tolist() == order
    assert len({tuple(order) for _, order in expected}) > 1
    np.testing.assert_array_equal(b.guards, True)
    np.testing.assert_array_equal(b.x_after, 0)
    np.testing.assert_array_equal(b.mode_after, 1)
    assert not b.is_discontinuous
    assert not b.is_linear()


def test_matrices(corner):
    # (57)
    n, d, normals, field, b, directions = corner
    for order in itertools.permutations(range(n)):
        piece = council.saltation_matrix(normals, field, order)
        np.testing.assert_allclose(b.matrix(order), piece, rtol=0, atol=1e-12)
    # Each tangent is mapped by the matrix of its order.
    for v in directions[:10]:
        np.testing.assert_allclose(b(v), b.matrix(b.order(v)) @ v, rtol=0, atol=1e-12)


def test_vertices(corner):
    # (33), (35)
    n, d, normals, field, b, _ = corner
    z_minus, z_plus = map(np.asarray, b.vertices())
    assert z_minus.shape == z_plus.shape == (2**n, d)
    kernel = np.linalg.svd(normals)[2][n:]
    for i in range(2**n):
        signs = council.signs(i, n)
        on = np.where(signs > 0, normals @ z_minus[i], normals @ z_plus[i])
        np.testing.assert_allclose(on, 0, rtol=0, atol=1e-12)
        np.testing.assert_allclose(kernel @ z_minus[i], 0, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            z_plus[i] - z_minus[i], field(signs), rtol=0, atol=1e-12
        )
    # The sampled system flows from one to the other in one unit of time.
    for i in range(2**n):
        x = np.where(np.abs(z_minus[i]) < 1e-12, 0, z_minus[i])
        signs = np.where(council.signs(i, n) > 0, 1, -1)
        late = normals @ (x + 0.5 * field(signs))
        assert np.all(np.where(signs > 0, late > 0, late < 0))


def test_barycentric(corner):
    # (58): the generators of a cone take its order, and so do their sums.
    n, d, normals, field, b, _ = corner
    rng = np.random.default_rng(0)
    for order in itertools.permutations(range(n)):
        z_minus, z_plus = map(np.asarray, b.barycentric(order))
        assert z_minus.shape == z_plus.shape == (d, n - 1)
        weights = rng.uniform(0.1, 1, n - 1)
        v = z_minus @ weights
        pushed, taken = council.b_derivative(normals, field, v)
        assert taken == list(order)
        np.testing.assert_allclose(z_plus @ weights, pushed, rtol=0, atol=1e-11)
        through = z_plus @ np.linalg.pinv(z_minus) @ v
        np.testing.assert_allclose(through, pushed, rtol=0, atol=1e-11)


def test_linear_corner():
    # (12)
    b = hj.b_derivative(
        models.piecewise_constant(models.linear_table(0.25, 3)), 0.0, jnp.zeros(3)
    )
    assert b.is_linear() and b.is_linear(tol=1e-12)
    for order in itertools.permutations(range(3)):
        np.testing.assert_allclose(b.matrix(order), 0.6 * np.eye(3), rtol=0, atol=1e-12)


def test_many_surfaces():
    n = 50
    rng = np.random.default_rng(0)
    normals = np.eye(n) + 0.3 / n * rng.uniform(-1, 1, (n, n))
    weights = rng.standard_normal((n, n))
    system = hj.EventSelectedSystem(
        lambda t, x, b, args: 1 + 0.5 * jnp.sin(args[1] @ b.astype(x.dtype)),
        lambda t, x, args: args[0] @ x,
    )
    args = (jnp.asarray(normals), jnp.asarray(weights))
    b = hj.b_derivative(system, 0.0, jnp.zeros(n), args=args)
    directions = rng.standard_normal((5, n))
    field = lambda s: 1 + 0.5 * np.sin(weights @ s)
    expected = [council.b_derivative(normals, field, v) for v in directions]
    np.testing.assert_allclose(
        jax.vmap(b)(directions), [v for v, _ in expected], rtol=0, atol=1e-9
    )
    v, order = directions[0], expected[0][1]
    assert b.order(v).tolist() == order
    piece = council.saltation_matrix(normals, field, order)
    np.testing.assert_allclose(b.matrix(order), piece, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="vertices"):
        b.vertices()


#
# Resets
#

FLAT = jnp.asarray([0.0, 0.0, -3.0, 0.2])
FLIGHT = jnp.zeros(2, jnp.int32)


def bar(inertia, restitution):
    system = models.RigidBar(inertia=inertia, restitution=restitution, release=True)
    return system, hj.b_derivative(system, 0.3, FLAT, FLIGHT)


def test_decoupled_bar_is_linear():
    # Inertia = mass * half_length²: an impulse at one end does not move the other.
    system, b = bar(0.25, 0.5)
    assert b.is_linear() and not b.is_discontinuous

    @jax.jit
    def impact(x, mode, event):
        matrix = hj.saltation_matrix(system, 0.3, x, mode, event)
        return matrix, system.jump(jnp.asarray(0.3), x, mode, event, None)

    # The states between the two impacts, by hand: end 0 then 1, and end 1 then 0.
    for order in ((0, 1), (1, 0)):
        x, mode, expected = FLAT, FLIGHT, np.eye(4)
        for event in order:
            one, (x, mode) = impact(x, mode, event)
            expected = np.asarray(one) @ expected
        np.testing.assert_allclose(b.matrix(order), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(b.x_after, x, rtol=0, atol=1e-12)
    v = jnp.asarray([0.3, -1.0, 0.2, 0.5])
    np.testing.assert_allclose(b(v), b.matrix((0, 1)) @ v, rtol=0, atol=1e-12)
    np.testing.assert_allclose(b(-v), -b(v), rtol=0, atol=1e-12)
    for method in (b.vertices, lambda: b.barycentric((0, 1))):
        with pytest.raises(ValueError, match="reset"):
            method()


@pytest.mark.parametrize("inertia, restitution", [(0.5, 0.5), (0.5, 0.0)])
def test_discontinuous_bar(inertia, restitution):
    # Elastic, or plastic with the end that would have to be pulled let go.
    _, b = bar(inertia, restitution)
    assert b.is_discontinuous
    assert not b.is_linear()
    v = jnp.ones(4)
    for method in (b, lambda v: b.matrix((0, 1)), lambda v: b.vertices()):
        with pytest.raises(ValueError, match="order"):
            method(v)
    # Inside of `jax.jit` there is no error, but no number either.
    both = eqx.filter_jit(lambda b, v: (b(v), b.matrix((0, 1))))(b, v)
    assert np.isnan(both[0]).all() and np.isnan(both[1]).all()


def test_in_jit_and_float32():
    table, normals = council.random_corner(np.random.default_rng(3), 3, 3)
    v = np.array([0.3, -1.0, 0.4])
    expected, _ = council.b_derivative(normals, council.table_field(table), v)

    @jax.jit
    def push(table, normals, x, v):
        return hj.b_derivative(models.piecewise_constant(table, normals), 0.0, x)(v)

    for dtype, tol in ((jnp.float64, 1e-12), (jnp.float32, 1e-4)):
        cast = [jnp.asarray(a, dtype) for a in (table, normals, np.zeros(3), v)]
        out = push(*cast)
        assert out.dtype == dtype
        np.testing.assert_allclose(out, expected, rtol=0, atol=tol)
    # No corner: no derivative.
    off = jnp.asarray([0.5, 0.5, 0.5])
    assert np.isnan(push(table, normals, off, v)).all()


def test_from_a_simulation():
    # Two events of one instant, as the log has them.
    table, _ = council.random_corner(np.random.default_rng(4), 2, 2)
    system = models.piecewise_constant(table)
    sol = hj.simulate(system, 0.0, 1.0, -0.5 * (1 + system.vector_field.table[0]))
    log = sol.events
    assert log.t[0] == log.t[1]
    b = hj.b_derivative(system, log.t[0], log.x_before[0], log.mode_before[0])
    for v in (np.array([1.0, -2.0]), np.array([-1.0, 1.5])):
        expected, _ = council.b_derivative(np.eye(2), council.table_field(table), v)
        np.testing.assert_allclose(b(v), expected, rtol=0, atol=1e-12)


def test_one_guard():
    ball = models.BouncingBall()
    x = jnp.asarray([0.0, -2.0])
    v = jnp.asarray([1.0, -2.0])
    one = hj.b_derivative(ball, 0.0, x, 0)
    matrix = hj.saltation_matrix(ball, 0.0, x, 0, 0)
    np.testing.assert_allclose(one.matrix([0]), matrix, rtol=0, atol=1e-14)
    np.testing.assert_allclose(one(v), matrix @ v, rtol=0, atol=1e-13)
    assert one.is_linear()


def test_bad_input():
    system = models.piecewise_constant(jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="No guard is zero"):
        hj.b_derivative(system, 0.0, jnp.asarray([-1.0, -2.0]))
    b = hj.b_derivative(system, 0.0, jnp.zeros(2))
    with pytest.raises(ValueError, match="tangent"):
        b(jnp.zeros(3))
    for order in ([0], [0, 0], [0, 2], [0.0, 1.0]):
        with pytest.raises(ValueError, match="`order`"):
            b.matrix(order)
        with pytest.raises(ValueError, match="`order`"):
            b.barycentric(order)
    traced = eqx.filter_jit(lambda b: b.vertices())
    with pytest.raises(ValueError, match=r"jax\.jit"):
        traced(b)
    # A ball at rest on the ground: its guard is at rest too.
    with pytest.raises(ValueError, match="rest|No guard"):
        hj.b_derivative(models.BouncingBall(gravity=0.0), 0.0, jnp.zeros(2), 0)
