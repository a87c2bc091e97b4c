"""A ball among five straight walls: straight flights.

Half of the tables are rectangles, in whose corners the order of two bounces does not
matter (their fifth wall is far away). The others have corners of other angles, where
the flow is discontinuous.
"""

import jax.numpy as jnp
import numpy as np
from hybridjax.models import WalledBall

from ..core import DURATION, Family, Parameter, START


_WALLS = 5


def _build(p):
    angles = p[7 : 7 + _WALLS]
    normals = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    return WalledBall(normals, p[7 + _WALLS :], 0.0, p[6]), p[2:6], 0


def _along(z, vector):
    angles = z[7 : 7 + _WALLS]
    return np.cos(angles) * vector[0] + np.sin(angles) * vector[1]


class _Reference:
    def start(self, z):
        return z[2:6].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        return np.concatenate([x[:2] + x[2:] * dt, x[2:] + 0 * dt])

    def guards(self, z, t, x, mode):
        return _along(z, x[:2]) - z[7 + _WALLS :]

    def jump(self, z, t, x, mode, event):
        angle = np.take_along_axis(z[7 : 7 + _WALLS], event[None, None], axis=0)[0]
        normal = np.stack([np.cos(angle), np.sin(angle)])
        speed = np.sum(normal * x[2:], axis=0)
        return np.concatenate([x[:2], x[2:] - (1 + z[6]) * speed * normal]), mode


def _draw(rng, n, gaps):
    angles = 2 * np.pi / _WALLS * np.arange(_WALLS)[:, None]
    angles = angles + rng.uniform(-0.3, 0.3, (_WALLS, n))
    offsets = -rng.uniform(0.5, 1.5, (_WALLS, n))
    rectangle = rng.uniform(size=n) < 0.5
    square = np.pi / 2 * np.arange(_WALLS)[:, None] + rng.uniform(0, 6, n)
    angles = np.where(rectangle, square, angles)
    offsets[4] = np.where(rectangle, -50, offsets[4])
    q = rng.uniform(-0.3, 0.3, (2, n))
    direction, speed = rng.uniform(0, 2 * np.pi, n), rng.uniform(0.5, 4, n)
    v = speed * np.stack([np.cos(direction), np.sin(direction)])
    # Into the corner of two neighbouring walls.
    i = rng.integers(0, 3, n)
    k = np.arange(n)
    n1, n2 = (
        np.stack([np.cos(angles[j, k]), np.sin(angles[j, k])]) for j in (i, i + 1)
    )
    c1, c2 = offsets[i, k], offsets[i + 1, k]
    det = n1[0] * n2[1] - n1[1] * n2[0]
    corner = np.stack([c1 * n2[1] - c2 * n1[1], n1[0] * c2 - n2[0] * c1]) / det
    tie = ~np.isnan(gaps)
    v = np.where(tie, (corner - q) / rng.uniform(0.3, 1, n), v)
    late = np.where(tie, gaps, 0) * np.sum(n2 * v, axis=0)
    offsets[i + 1, k] += late
    e = np.where(rng.uniform(size=n) < 0.3, 1.0, rng.uniform(0.5, 1, n))
    duration, t0 = rng.uniform(0.3, 2, n), rng.uniform(-1, 1, n)
    return np.stack([t0, duration, *q, *v, e, *angles, *offsets], axis=1)


BILLIARDS = Family(
    name="billiards",
    parameters=(
        START,
        DURATION,
        Parameter("x", 1, 0),
        Parameter("z", 1, 0),
        Parameter("speed in x", 1, -1),
        Parameter("speed in z", 1, -1),
        Parameter("restitution"),
        *(Parameter(f"angle {i}") for i in range(_WALLS)),
        *(Parameter(f"offset {i}", 1, 0) for i in range(_WALLS)),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0), (1, -1), (1, -1)),
    exact=True,
    cells=24,
)
