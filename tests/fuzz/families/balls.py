"""Two balls between a floor and a ceiling: parabolas and restitution.

The balls do not influence each other, so that a tie of their impacts is harmless.
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import DURATION, Family, Parameter, START


class _Balls(hj.AbstractHybridSystem):
    gravity: Array
    restitution: Array
    floor: Array
    ceiling: Array

    def flow(self, t, x, mode, args):
        return jnp.concatenate([x[2:], jnp.stack([-self.gravity, -self.gravity])])

    def guards(self, t, x, mode, args):
        return jnp.concatenate([x[:2] - self.floor, self.ceiling - x[:2]])

    def jump(self, t, x, mode, event, args):
        hit = jnp.arange(2) == event % 2
        v = jnp.where(hit, -self.restitution * x[2:], x[2:])
        return jnp.concatenate([x[:2], v]), mode


def _build(p):
    return _Balls(*p[6:10]), p[2:6], 0


class _Reference:
    def start(self, z):
        return z[2:6].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        g = z[6]
        q, v = x[:2], x[2:]
        return np.concatenate([q + v * dt - g * dt**2 / 2, v - g * dt])

    def guards(self, z, t, x, mode):
        return np.concatenate([x[:2] - z[8], z[9] - x[:2]])

    def jump(self, z, t, x, mode, event):
        x = x.copy()
        for i in range(2):
            x[2 + i] = np.where(event % 2 == i, -z[7] * x[2 + i], x[2 + i])
        return x, mode


def _draw(rng, n, gaps):
    floor, ceiling = rng.uniform(-0.5, 0.5, n), rng.uniform(1.0, 3.0, n)
    q = floor + (ceiling - floor) * rng.uniform(0.02, 0.98, (2, n))
    v = rng.uniform(-3, 3, (2, n))
    tie = ~np.isnan(gaps)
    # The second a little ahead of the first, on the same path.
    dt, g = np.where(tie, gaps, 0), rng.uniform(0.5, 10, n)
    q[1] = np.where(tie, q[0] + v[0] * dt - g * dt**2 / 2, q[1])
    v[1] = np.where(tie, v[0] - g * dt, v[1])
    e = rng.uniform(0.4, 1, n)
    duration = rng.uniform(0.2, 2, n)
    t0 = rng.uniform(-1, 1, n)
    return np.stack([t0, duration, *q, *v, g, e, floor, ceiling], axis=1)


BALLS = Family(
    name="balls",
    parameters=(
        START,
        DURATION,
        Parameter("height of the first", 1, 0),
        Parameter("height of the second", 1, 0),
        Parameter("speed of the first", 1, -1),
        Parameter("speed of the second", 1, -1),
        Parameter("gravity", 1, -2),
        Parameter("restitution"),
        Parameter("floor", 1, 0),
        Parameter("ceiling", 1, 0),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    symmetric=True,
    state=((1, 0), (1, 0), (1, -1), (1, -1)),
    exact=True,
    cells=64,
)
