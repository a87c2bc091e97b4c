"""Closed forms and independent references, and what is compared with them."""

import functools
from typing import Any, cast

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import MechanicalSystem
from scipy.optimize import brentq


#
# Differences
#


def slope_along(fn, at, direction, h):
    """The derivative of `fn` at a pytree of arrays, along a direction in it, by
    differences of fourth order."""
    moved = lambda k: jax.tree.map(lambda a, b: a + k * h * b, at, direction)
    ends = [np.asarray(fn(moved(k))) for k in (-2, -1, 1, 2)]
    return np.tensordot([1, -8, 8, -1], np.stack(ends), 1) / (12 * h)


def inner(a, b):
    """The inner product of two sequences of vectors."""
    return sum(np.dot(*pair) for pair in zip(a, b, strict=True))


#
# Bouncing balls
#


def bounce_times(height, restitution, count, speed: Any = 0.0, gravity: Any = 9.81):
    """The first `count` impact times of a ball thrown up from `height`."""
    v = np.sqrt(speed**2 + 2 * gravity * height)
    times = [(speed + v) / gravity]
    for _ in range(count - 1):
        v = restitution * v
        times.append(times[-1] + 2 * v / gravity)
    return np.array(times)


def bouncing_ball(height, restitution, t, speed: Any = 0.0, gravity: Any = 9.81):
    """Height and speed of a bouncing ball at time `t`: its flights are parabolas."""
    start, q, v = 0.0, height, speed
    while True:
        impact = np.sqrt(v**2 + 2 * gravity * q)
        end = start + (v + impact) / gravity
        if end > t:
            s = t - start
            return np.array([q + v * s - gravity * s**2 / 2, v - gravity * s])
        start, q, v = end, 0.0, restitution * impact


def ball_outcome(z, bounces, t1=2.0, floor=0.0):
    """What becomes of a ball that bounces so many times until `t1`, differentiable: the
    final height and speed, then the times of the bounces. `z` is the initial height and
    speed, gravity and restitution."""
    q, v, g, e = z
    t, times = 0.0, []
    for _ in range(bounces):
        impact = -jnp.sqrt(v**2 + 2 * g * (q - floor))
        t = t + (v - impact) / g
        q, v = floor, -e * impact
        times.append(t)
    rest = t1 - t
    return jnp.stack([q + v * rest - g * rest**2 / 2, v - g * rest, *times])


#
# Rods
#


def on_end(tilt, speed, rate):
    """The state of a `models.rod` of length 1 that slides on its left end: by its angle
    to the ground, the speed of the slip, and the rate of the angle."""
    sin, cos = 0.5 * jnp.sin(tilt), 0.5 * jnp.cos(tilt)
    q = jnp.stack([0 * sin, sin, tilt])
    return q, jnp.stack([speed - sin * rate, cos * rate, rate])


#
# Guards
#


def plank_on_feet(at, inertia, gravity, load, **options):
    """Of mass 1, on feet in a line, `at` these places, with its weight at
    `load(t, args)`: a `MechanicalSystem` of its height and its angle, both small."""

    def effort(t, q, v, args):
        place = load(t, args)
        return -gravity * jnp.stack([jnp.ones_like(place), place])

    return MechanicalSystem(
        lambda q, args: jnp.stack([jnp.ones_like(inertia), inertia]),
        effort,
        lambda q, args: q[0] + at * q[1],
        len(at),
        **options,
    )


def first_root(fn, begin, end, resolution):
    """The first time in `(begin, end]` at which `fn` decreases through zero, or `None`:
    dense sampling, and then Brent's method."""
    grid = np.append(np.arange(begin, end, resolution), end)
    values = fn(grid)
    (falls,) = np.nonzero((values[:-1] > 0) & (values[1:] <= 0))
    if len(falls) == 0:
        return None
    k = falls[0]
    root = brentq(fn, grid[k], grid[k + 1], xtol=1e-15)
    return cast(float, root)


#
# Programs
#


def same_rounding() -> dict[str, bool]:
    """Compiler options with which batches of different size, and what is around them,
    do not change how lanes are rounded. `conftest.py` turns that off where there is a
    choice."""
    name = "xla_cpu_use_fusion_emitters"
    return {name: True} if name in hj.compiler_options() else {}


#
# Derivatives
#


def error(got, expected):
    """The largest error, over the largest number there is."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    assert np.all(np.isfinite(got))
    if expected.size == 0:
        return 0.0
    return np.max(np.abs(got - expected)) / np.max(np.abs(expected))


def value_and_jacobian(fn):
    """For a closed form. Compiled: one by one, its operations take longer."""
    return jax.jit(lambda z: (fn(z), jax.jacfwd(fn)(z)))


def both_jacobians(fn):
    """For a function from a vector to `(vector, auxiliary)`, one that gives the value,
    the Jacobian by forward mode, that by reverse mode, and the auxiliary. What else
    `fn` takes is not differentiated.

    Cheaper to compile than `jax.jacfwd` and `jax.jacrev`: one simulation, its forward
    replay for one tangent, and the transpose of that.
    """
    run = jax.jit(functools.partial(_products, fn))
    return lambda z, *more: _columns_and_rows(lambda k: run(k, z, *more), z.size)


def batch_jacobians(fn):
    """As `both_jacobians`, of a batch: of points, and of what else `fn` takes, which is
    not differentiated."""

    @jax.jit
    def run(k, zs, *more):
        each = lambda z, *more: _products(fn, k, z, *more)
        return jax.vmap(each)(zs, *more)

    return lambda zs, *more: _columns_and_rows(lambda k: run(k, zs, *more), zs.shape[1])


def _products(fn, k, z, *more):
    """The value, column `k` of the Jacobian, row `k` of it, and the auxiliary."""
    value, push, auxiliary = jax.linearize(lambda z: fn(z, *more), z, has_aux=True)
    one = lambda a: (jnp.arange(a.size) == k % a.size).astype(a.dtype)
    (row,) = jax.linear_transpose(push, z)(one(value))
    return value, push(one(z)), row, auxiliary


def _columns_and_rows(products, n):
    value, *parts, auxiliary = products(0)
    m, parts = value.shape[-1], [parts]
    for k in range(1, max(m, n)):
        _, *part, _ = products(k)
        parts.append(part)
    columns, rows = ([np.asarray(a) for a in some] for some in zip(*parts, strict=True))
    return value, np.stack(columns[:n], axis=-1), np.stack(rows[:m], axis=-2), auxiliary
