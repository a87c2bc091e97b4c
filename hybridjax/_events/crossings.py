"""Where a cubic that represents a guard says that it crosses zero."""

import functools
from typing import NamedTuple

import equinox.internal as eqxi
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._jax.branch import compute_if
from .cubic import (
    CHECK_POINTS,
    error_of,
    errors_at_points,
    rounding_of,
    size_of,
    SLOPE_MARGIN,
    VALUE_MARGIN,
    weight,
)


# Where "g > 0" is decided, besides the extrema of H.
_GRID = np.arange(1, 9) / 8

# From values at CHECK_POINTS to coefficients of a polynomial, the highest first.
_LAGRANGE = np.linalg.inv(np.vander(CHECK_POINTS))

# A crossing counts as isolated if H is this much better than the drop across it, even
# if the slope there is unclear (a guard like u³).
_ISOLATION = 1e-3


class Crossing(NamedTuple):
    """Of each guard."""

    certain: Bool[Array, " n_guards"]  # is H good enough to say anything
    root: Float[Array, " n_guards"]  # first crossing in [0, 1], or inf
    turns: Bool[Array, " n_guards"]  # no crossing: a rise that turns round below zero
    factor: Float[Array, " n_guards"]  # by which the step length could be scaled
    touch: Float[Array, " n_guards"]  # a minimum of H that is zero, or inf
    rounded: Bool[Array, " n_guards"]  # is the error of H no more than rounding


def find_crossings(g0, d0, g1, d1, g_check, grazing_tol) -> Crossing:
    """Analyses all guards over one step.

    **Arguments:**

    - `g0`, `g1`: values at the ends, shape `(n_guards,)`.
    - `d0`, `d1`: rates at the ends, times the step length.
    - `g_check`: values at `CHECK_POINTS`, shape `(points, n_guards)`.
    - `grazing_tol`: speed at a minimum, relative to the largest speed, under which the
        guard counts as touched tangentially.
    """
    # For all guards at once, not one guard under `jax.vmap`: half the time to trace.
    eps = jnp.finfo(g0.dtype).eps
    a, b = _coefficients(g0, d0, g1, d1)
    value = functools.partial(_value, g0, d0, a, b)
    slope = functools.partial(_slope, d0, a, b)

    # The error of the cubic.
    error = error_of(g0, d0, g1, d1, g_check)
    error_floor = rounding_of(size_of(g0, d0, g1, d1))
    rounded = error <= error_floor

    # Extrema of H: it is monotone between 0, s1, s2 and 1. The ends are as given, so
    # that rounding does not make an extremum there.
    unclipped = _extrema(d0, a, b)
    s1, s2 = (jnp.clip(s, 0, 1) for s in unclipped)
    h1, h2 = (jnp.where(s <= 0, g0, jnp.where(s >= 1, g1, value(s))) for s in (s1, s2))
    zero, one = jnp.zeros_like(g0), jnp.ones_like(g0)
    pieces = ((zero, g0, s1, h1), (s1, h1, s2, h2), (s2, h2, one, g1))
    has_root = turns = jnp.zeros_like(g0, bool)
    lower = upper = drop = zero
    before = None
    for left, h_left, right, h_right in pieces:
        event = (h_left > 0) & (h_right <= 0)
        turn = jnp.zeros_like(event)
        if before is not None:
            # In the guard set, rising, but turning round before leaving it: fires at
            # the peak.
            turn = (h_left <= 0) & (before < h_left) & (h_right < h_left - error_floor)
        first = ~has_root & (event | turn)
        turns = turns | (first & turn)
        has_root = has_root | first
        lower = jnp.where(first, left, lower)
        upper = jnp.where(first, right, upper)
        drop = jnp.where(first, h_left - h_right, drop)
        before = h_left

    def judge(root):
        """The root, and the error for which g is certainly positive before it, and
        certainly falling across it."""
        root = jnp.where(turns, lower, root)
        root = jnp.where(has_root, root, jnp.inf)

        def allowed_at(s):
            # Where g certainly rises it does not fire either: it may be leaving its
            # guard set.
            h = value(s) / (VALUE_MARGIN * jnp.maximum(weight(s), eps))
            allowed = jnp.maximum(h, jnp.abs(slope(s)) / SLOPE_MARGIN)
            isolated = jnp.maximum(allowed, _ISOLATION * drop)
            allowed = jnp.where(has_root & (s >= lower), isolated, allowed)
            return jnp.where((s <= root) & (s > 0), allowed, jnp.inf)

        # Not one array of points, whose minimum would be taken point by point: this is
        # arithmetic on whole arrays of guards and lanes.
        points = (*map(float, _GRID), s1, s2, jnp.where(has_root, root, 1))
        return root, functools.reduce(jnp.minimum, map(allowed_at, points))

    # In a branch, so that XLA does not repeat it in each kernel that needs it.
    root, allowed = compute_if(
        eqxi.unvmap_any(jnp.isfinite(error)),
        lambda: judge(_root(g0, d0, a, b, lower, upper)),
        (lower, lower),
    )
    root = jnp.where(has_root, root, jnp.inf)
    certain = (error <= allowed) | rounded
    # The error is of order four in the step length.
    ratio = jnp.maximum(allowed, error_floor) / jnp.maximum(error, error_floor)
    # An error that is all rounding does not keep steps as short as they are.
    ratio = jnp.where(rounded, jnp.maximum(ratio, 32), ratio)
    ratio = jnp.where(error_floor == 0, jnp.inf, ratio)
    factor = 0.9 * jnp.sqrt(jnp.sqrt(jnp.minimum(ratio, 1e8)))

    return Crossing(
        certain,
        root,
        turns,
        factor,
        jnp.where(
            certain, _touch(unclipped, d0, d1, a, b, value, grazing_tol), jnp.inf
        ),
        rounded,
    )


def sharpened(root, g0, d0, g1, d1, g_check):
    """A root of the cubic, as that of a guard which is also right at `CHECK_POINTS`."""
    a, b = _coefficients(g0, d0, g1, d1)
    # What H lacks is a polynomial, in units of `weight`. H has the slope of both,
    # nearly.
    errors = errors_at_points(g0, d0, g1, d1, g_check)
    coefficients = [
        sum(float(c) * e for c, e in zip(row, errors, strict=True)) for row in _LAGRANGE
    ]
    s = root
    for _ in range(3):
        lacks = weight(s) * functools.reduce(lambda sum, c: sum * s + c, coefficients)
        dh = _slope(d0, a, b, s)
        new = s - (_value(g0, d0, a, b, s) + lacks) / jnp.where(dh < 0, dh, -jnp.inf)
        # Not to an end of the step, where it is all but at rest.
        s = jnp.clip(new, root / 2, (root + 1) / 2)
    return s


def _coefficients(g0, d0, g1, d1):
    # Of s² and s³ in H.
    return 3 * (g1 - g0) - 2 * d0 - d1, 2 * (g0 - g1) + d0 + d1


def _extrema(d0, a, b):
    # Roots of d0 + 2 a s + 3 b s², in the form that does not cancel.
    disc = a * a - 3 * b * d0
    q = -(a + jnp.where(a >= 0, 1, -1) * jnp.sqrt(jnp.maximum(disc, 0)))
    no = jnp.asarray(-1, d0.dtype)
    r1 = jnp.where((disc >= 0) & (b != 0), q / jnp.where(b == 0, 1, 3 * b), no)
    r2 = jnp.where((disc >= 0) & (q != 0), d0 / jnp.where(q == 0, 1, q), no)
    return jnp.minimum(r1, r2), jnp.maximum(r1, r2)


def _root(g0, d0, a, b, lower, upper):
    # Regula falsi to start, then roots of the quadratics that touch H, within the
    # bracket: of order three, and exact for a ballistic flight.
    h_lower, h_upper = (_value(g0, d0, a, b, s) for s in (lower, upper))
    span = h_lower - h_upper
    s = lower + (upper - lower) * h_lower / jnp.where(span == 0, 1, span)
    for _ in range(4):
        h, dh = _value(g0, d0, a, b, s), _slope(d0, a, b, s)
        lower = jnp.where(h > 0, s, lower)
        upper = jnp.where(h > 0, upper, s)
        ddh = 2 * a + 6 * b * s
        divisor = dh - jnp.sqrt(jnp.maximum(dh * dh - 2 * h * ddh, 0))
        new = s - 2 * h / jnp.where(divisor == 0, 1, divisor)
        inside = (new >= lower) & (new <= upper) & (divisor != 0)
        new = jnp.where(inside, new, (lower + upper) / 2)
        s = jnp.where(h == 0, s, new)
    return s


def _value(g0, d0, a, b, s):
    return g0 + s * (d0 + s * (a + s * b))


def _slope(d0, a, b, s):
    return d0 + s * (2 * a + 3 * s * b)


def _touch(extrema, d0, d1, a, b, value, tol):
    s1, s2 = extrema
    fastest = jnp.maximum(jnp.abs(d0), jnp.abs(d1))

    def at(s):
        # Slightly beyond the end too: the minimum may fall between two steps.
        inside = (s > 0) & (s <= 1 + 1e-3)
        curvature = 2 * a + 6 * b * s
        near = 2 * curvature * jnp.abs(value(s)) <= (tol * fastest) ** 2
        # A maximum right beside the minimum: g passes without turning round (u³).
        # The fastest that H moves between them is a quarter of this.
        turns = curvature * (s2 - s1) > 4 * tol * fastest
        touches = inside & (curvature > 0) & near & turns & (fastest > 0)
        return jnp.where(touches, s, jnp.inf)

    return jnp.minimum(at(s1), at(s2))
