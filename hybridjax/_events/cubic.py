"""Guards over one step, as cubics that are checked.

A guard over a step is a function g(s), s in [0, 1]. From its values and rates at both
ends comes a cubic H. At a few interior points g itself is evaluated: the error of H is
estimated by `E * w(s)` with `w(s) = 16 s² (1 - s)²`, which is the shape that the error
of Hermite interpolation has. Whatever is said about g is said only if it holds for all
functions that near H; otherwise the step must be shortened. See
`docs/concepts/finding_events.md`.
"""

import functools

import jax.numpy as jnp
import numpy as np

from .._jax.reduce import all_of, least


# Where g is compared with H. Neither equidistant nor symmetric, so that a guard that
# oscillates within the step does not hide between them. Nor are they multiples of a
# common fraction: a guard with k periods in the step has the same value and rate at its
# ends, and for each k up to 870 the cosine there is seen to fall below zero at one of
# these points, (1 - cos(2 pi k s)) / w(s) > 1.
CHECK_POINTS = (0.12489, 0.36571, 0.59379, 0.87604)

# How much larger than estimated the error of H may be: in value, and in slope.
# max |w'| is 3.1, so the second says that the slope has the right sign.
VALUE_MARGIN = 2.0
SLOPE_MARGIN = 8.0


def weight(s):
    return 16 * s**2 * (1 - s) ** 2


def clearly_positive(g0, d0, g1, d1, g_check, grazing_tol):
    """Are all guards so far from zero over the step that nothing more needs be known?

    A cubic lies within the hull of its Bernstein coefficients. Takes the arguments of
    `find_crossings`; returns the answer, and the factor by which the next step may be
    longer as far as the guards are concerned.
    """
    if g0.shape[0] == 0:
        return jnp.asarray(True), jnp.asarray(10.0, g0.dtype)
    error = error_of(g0, d0, g1, d1, g_check)
    lowest = jnp.minimum(jnp.minimum(g0 + d0 / 3, g1 - d1 / 3), g1)
    # A guard that has just fired starts at zero, and rises.
    start = (g0 > VALUE_MARGIN * error) | (d0 > SLOPE_MARGIN * error)
    touch = grazing_tol * jnp.maximum(jnp.abs(d0), jnp.abs(d1))
    clear = (lowest > VALUE_MARGIN * error + touch) & start
    ratio = least(lowest / jnp.maximum(error, jnp.finfo(g0.dtype).tiny))
    factor = 0.9 * jnp.sqrt(jnp.sqrt(jnp.maximum(ratio / VALUE_MARGIN, 1)))
    return all_of(clear), jnp.clip(factor, 1, 10)


def contradicts(g0, d0, g1, d1):
    """Where do guards not go by what their rates say, not even by half of it? In short
    steps that is so where a guard jumps, and where rounding is all that is seen. Where
    rates differ it is not counted: it may bend within the step, as in stiff flows."""
    fastest = jnp.maximum(jnp.abs(d0), jnp.abs(d1))
    steady = jnp.abs(d1 - d0) <= fastest / 2
    return steady & (jnp.abs(g1 - g0 - (d0 + d1) / 2) > fastest / 2)


def stays_above(floor, aim, g0, d0, g1, d1, g_check):
    """Do all guards stay above `floor` over the step, or rise, or are they leaving?

    Takes `aim`, somewhat more than `floor`, and the arguments of `find_crossings`.
    Returns the answer, and the factors by which the next step should be shorter, so
    that a guard that is passed ends near `aim`; and by which it may be longer.
    """
    if g0.shape[0] == 0:
        one = jnp.ones((), g0.dtype)
        return jnp.asarray(True), one, 10 * one
    size = size_of(g0, d0, g1, d1)
    error = error_of(g0, d0, g1, d1, g_check) + rounding_of(size)
    # The Bernstein coefficients of the cubic, and of its slope.
    lowest = jnp.minimum(jnp.minimum(g0 + d0 / 3, g1 - d1 / 3), jnp.minimum(g0, g1))
    slowest = jnp.minimum(jnp.minimum(d0, d1), 3 * (g1 - g0) - d0 - d1)
    above = lowest - floor > VALUE_MARGIN * error
    rises = slowest > SLOPE_MARGIN * error
    # One that has just fired is leaving zero; it may turn round before it has left.
    leaving = (g0 <= 0) & (d0 >= 0)
    # What never moves is not watched.
    still = size == jnp.abs(g0) + jnp.abs(g1)
    clear = above | rises | still | (leaving & (g1 >= g0))
    # Where the quadratic through both ends, with the slope at the start, meets `aim`.
    bend, drop = g1 - g0 - d0, g0 - aim
    root = jnp.sqrt(jnp.maximum(d0 * d0 - 4 * bend * drop, 0)) - d0
    until = jnp.where(root > 0, 2 * drop / jnp.where(root > 0, root, 1), 1)
    until = jnp.where(g1 < floor, jnp.clip(until, 0, 0.95), 0.5)
    back = jnp.where(bend < 0, -d0 / jnp.where(bend < 0, bend, 1), 1)
    until = jnp.where(leaving, jnp.clip(0.95 * back, 1e-3, 0.95), until)
    shorter = least(jnp.where(clear, 1, until))
    ratio = jnp.where(above & ~rises, (lowest - floor) / error, jnp.inf)
    longer = 0.9 * jnp.sqrt(jnp.sqrt(least(ratio) / VALUE_MARGIN))
    return all_of(clear), shorter, jnp.clip(longer, 1, 10)


def error_of(g0, d0, g1, d1, g_check):
    """The amplitude of the error of a cubic, in units of `weight`."""
    errors = errors_at_points(g0, d0, g1, d1, g_check)
    return functools.reduce(jnp.maximum, map(jnp.abs, errors))


def size_of(g0, d0, g1, d1):
    return jnp.abs(g0) + jnp.abs(g1) + jnp.abs(d0) + jnp.abs(d1)


def rounding_of(size):
    """What may be rounding, of the error of a cubic of that size."""
    return 64 * jnp.finfo(size.dtype).eps * size


def errors_at_points(g0, d0, g1, d1, g_check):
    """What a cubic lacks at each of `CHECK_POINTS`, in units of `weight`."""
    s = np.asarray(CHECK_POINTS)
    basis = np.stack(
        [
            (1 + 2 * s) * (1 - s) ** 2,
            s * (1 - s) ** 2,
            s**2 * (3 - 2 * s),
            s**2 * (s - 1),
        ]
    )
    cubic = [
        sum(float(b) * v for b, v in zip(column, (g0, d0, g1, d1), strict=True))
        for column in basis.T
    ]
    return [(g_check[k] - cubic[k]) / float(weight(s[k])) for k in range(s.size)]
