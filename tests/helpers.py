"""Closed forms and independent references that several test files compare with."""

import numpy as np
from scipy.optimize import brentq


def bounce_times(height, restitution, count, speed=0.0, gravity=9.81):
    """The first `count` impact times of a ball thrown up from `height`."""
    v = np.sqrt(speed**2 + 2 * gravity * height)
    times = [(speed + v) / gravity]
    for _ in range(count - 1):
        v = restitution * v
        times.append(times[-1] + 2 * v / gravity)
    return np.array(times)


def bouncing_ball(height, restitution, t, speed=0.0, gravity=9.81):
    """Height and speed of a bouncing ball at time `t`: its flights are parabolas."""
    start, q, v = 0.0, height, speed
    while True:
        impact = np.sqrt(v**2 + 2 * gravity * q)
        end = start + (v + impact) / gravity
        if end > t:
            s = t - start
            return np.array([q + v * s - gravity * s**2 / 2, v - gravity * s])
        start, q, v = end, 0.0, restitution * impact


def first_root(fn, begin, end, resolution):
    """The first time in `(begin, end]` at which `fn` decreases through zero, or `None`:
    dense sampling, and then Brent's method."""
    grid = np.append(np.arange(begin, end, resolution), end)
    values = fn(grid)
    (falls,) = np.nonzero((values[:-1] > 0) & (values[1:] <= 0))
    if len(falls) == 0:
        return None
    k = falls[0]
    return brentq(fn, grid[k], grid[k + 1], xtol=1e-15, rtol=8.9e-16)
