"""A ball on a paddle that swings: parabolas, and a guard that depends on time."""

import numpy as np
from hybridjax.models import BallOnPaddle

from ..core import DURATION, Family, Parameter, START


def _build(p):
    return BallOnPaddle(*p[4:8]), p[2:4], 0


class _Reference:
    def start(self, z):
        return z[2:4].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        g = z[4]
        return np.stack([x[0] + x[1] * dt - g * dt**2 / 2, x[1] - g * dt])

    def guards(self, z, t, x, mode):
        return (x[0] - z[6] * np.sin(2 * np.pi * z[7] * (z[0] + t)))[None]

    def jump(self, z, t, x, mode, event):
        rate = 2 * np.pi * z[7]
        w = z[6] * rate * np.cos(rate * (z[0] + t))
        return np.stack([x[0], w - z[5] * (x[1] - w)]), mode


def _draw(rng, n, gaps):
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 2, n)
    amplitude, frequency = rng.uniform(0.02, 0.2, n), rng.uniform(0.3, 3, n)
    q = amplitude + 10 ** rng.uniform(-2, 0.3, n)
    v = rng.uniform(-2, 2, n)
    g, e = rng.uniform(2, 12, n), rng.uniform(0.3, 1, n)
    return np.stack([t0, duration, q, v, g, e, amplitude, frequency], axis=1)


PADDLE = Family(
    name="paddle",
    parameters=(
        START,
        DURATION,
        Parameter("height", 1, 0),
        Parameter("speed", 1, -1),
        Parameter("gravity", 1, -2),
        Parameter("restitution"),
        Parameter("amplitude", 1, 0),
        Parameter("frequency", 0, -1),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, -1)),
    exact=True,
    ties=False,
)
