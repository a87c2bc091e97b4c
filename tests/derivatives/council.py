"""Independent references for corners of vector fields without resets, in NumPy and in
rational numbers, after Council, Revzen, Burden.

Everywhere `normals` has the surface normals as rows, and `field(b)` is the vector field
at the corner for the signs `b`, an integer array of -1 and +1.
"""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np


def signs(index: int, n: int):
    """The signs of a row of a table."""
    return np.array([1 if index >> j & 1 else -1 for j in range(n)])


def index(b) -> int:
    return int(sum(2**j for j, sign in enumerate(b) if sign > 0))


def table_field(table):
    """The field of `hj.models.piecewise_constant`."""
    table = np.asarray(table)
    return lambda b: 1 + table[index(b)]


def random_corner(rng, n: int, d: int, spread=1.0):
    """A table and normals that are multiples of 1/64, exact as floats, so that every
    surface is crossed from everywhere: `normals @ field(b) > 0`."""
    grid = lambda low, high, shape: rng.integers(64 * low, 64 * high, shape) / 64
    while True:
        normals = grid(-1, 1, (n, d)) + np.eye(n, d)
        table = grid(-0.5 * spread, spread, (2**n, d))
        if np.min((1 + table) @ normals.T) > 0.1:
            return table, normals


def listing(table, normals, order):
    """The same vector field, its surfaces listed in another order."""
    n = len(order)
    rows = [sum((i >> k & 1) << order[k] for k in range(n)) for i in range(2**n)]
    return table[rows], normals[list(order)]


def listings(table, normals):
    n = normals.shape[0]
    pairs = [listing(table, normals, p) for p in itertools.permutations(range(n))]
    return np.stack([t for t, _ in pairs]), np.stack([m for _, m in pairs])


def b_derivative(normals, field, v):
    """The algorithm of Fig. 2, and the order in which it crosses the surfaces."""
    x, time = np.array(v, float), 0.0
    b = -np.ones(len(normals), int)
    order = []
    while np.any(b < 0):
        tau = -(normals @ x) / (normals @ field(b))
        tau[b > 0] = np.inf
        j = int(np.argmin(tau))
        time += tau[j]
        x += tau[j] * field(b)
        b[j] = 1
        order.append(j)
    return x - time * field(b), order


def saltation_matrix(normals, field, order):
    """(57), with the row and the denominator of the surface that is being crossed, and
    later factors on the left."""
    n, d = normals.shape
    b = -np.ones(n, int)
    matrix = np.eye(d)
    for j in order:
        before = field(b)
        b[j] = 1
        gap = (field(b) - before) / (normals[j] @ before)
        matrix = (np.eye(d) + np.outer(gap, normals[j])) @ matrix
    return matrix


def exact_flow(normals, field, x, duration):
    """The piecewise constant flow in rational numbers: the state after `duration`, the
    crossing times of all surfaces, and the states there.

    Surfaces are planes through the origin. Those that the start is beyond are crossed
    there and then.
    """
    rational = lambda a: [Fraction(value) for value in np.asarray(a).tolist()]
    dot = lambda a, b: sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0))
    rows = [rational(row) for row in normals]
    n = len(rows)
    x, duration = rational(x), Fraction(duration)
    b, now = -np.ones(n, int), Fraction(0)
    times: list[Any] = [None] * n
    states: list[Any] = [None] * n
    while np.any(b < 0):
        f = rational(field(b))
        due = {j: -dot(rows[j], x) / dot(rows[j], f) for j in range(n) if b[j] < 0}
        j = min(due, key=lambda k: due[k])
        tau = max(due[j], Fraction(0))
        assert now + tau <= duration
        x = [p + tau * q for p, q in zip(x, f, strict=True)]
        now += tau
        b[j], times[j], states[j] = 1, now, x
    f = rational(field(b))
    return [p + (duration - now) * q for p, q in zip(x, f, strict=True)], times, states


def exact_derivative(normals, field, x, duration, v, later, step=Fraction(1, 2**12)):
    """One-sided derivatives of what `exact_flow` returns, by a difference that has no
    error: near a trajectory through the origin the flow is linear along every ray.

    In the direction `v` of the start, and `later` of its time, with the end fixed.
    """
    pairs = zip(np.asarray(x).tolist(), np.asarray(v).tolist(), strict=True)
    moved = np.array([Fraction(p) + step * Fraction(q) for p, q in pairs], object)
    later = Fraction(later)
    after = exact_flow(normals, field, moved, Fraction(duration) - step * later)
    before = exact_flow(normals, field, x, duration)
    x1, times, states = (
        _difference(p, q, step) for p, q in zip(after, before, strict=True)
    )
    return x1, times + float(later), states


def _difference(p, q, step):
    if isinstance(p, list):
        pairs = zip(p, q, strict=True)
        entries: list[Any] = [_difference(a, b, step) for a, b in pairs]
        return np.array(entries)
    return float((p - q) / step)
