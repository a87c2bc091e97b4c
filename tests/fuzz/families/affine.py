"""A plane in four parts, with an affine vector field in each: an event-selected system.

dx/dt = A x + c + b_0 k_0 + b_1 k_1 + b_0 b_1 k_2,   h_i = n_i x - d_i
"""

import hybridjax as hj
import numpy as np

from ..core import DURATION, Family, Parameter, START
from ..reference import affine_flow, UNWATCHED


def _build(p):
    A = p[4:8].reshape(2, 2)
    c, k = p[8:10], p[10:16].reshape(3, 2)
    normals, offsets = p[16:20].reshape(2, 2), p[20:22]

    def field(t, x, b, args):
        b = b.astype(x.dtype)
        Ax = A[:, 0] * x[0] + A[:, 1] * x[1]
        return Ax + c + b[0] * k[0] + b[1] * k[1] + b[0] * b[1] * k[2]

    def surfaces(t, x, args):
        return normals[:, 0] * x[0] + normals[:, 1] * x[1] - offsets

    rearm = np.zeros((2, 2), bool)
    return hj.EventSelectedSystem(field, surfaces, rearm), p[2:4], None


class _Reference:
    def start(self, z):
        return z[2:4].copy(), -np.ones((2, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        A = z[4:8].reshape(2, 2, *z.shape[1:])
        b = z[8:10] + mode[0] * z[10:12] + mode[1] * z[12:14]
        return affine_flow(A, b + mode[0] * mode[1] * z[14:16], x, dt)

    def guards(self, z, t, x, mode):
        h = [z[16 + 2 * i] * x[0] + z[17 + 2 * i] * x[1] - z[20 + i] for i in (0, 1)]
        return np.stack([np.where(mode[i] < 0, -h[i], UNWATCHED) for i in (0, 1)])

    def jump(self, z, t, x, mode, event):
        return x, np.where(np.arange(2)[:, None] == event, 1, mode)


def _draw(rng, n, gaps):
    x = rng.uniform(-1, 0, (2, n))
    A = rng.uniform(-0.3, 0.3, (4, n))
    c = rng.uniform(2.5, 3, (2, n))
    k = rng.uniform(-0.2, 0.2, (6, n))
    # All rates are positive: the system is live.
    tilt = rng.uniform(-0.25, 0.25, (2, n))
    normals = [np.cos(tilt[0]), np.sin(tilt[0]), np.sin(tilt[1]), np.cos(tilt[1])]
    # Where the surfaces are is where the state is a while later.
    mode = -np.ones((2, n))
    hit = rng.uniform(0.1, 0.6, (2, n))
    hit[1] = np.where(np.isnan(gaps), hit[1], hit[0] + gaps)
    z = np.stack([0 * c[0], 0 * c[0], *x, *A, *c, *k, *normals])
    offsets = []
    for i in (0, 1):
        at = _Reference().flow(z, 0, x, mode, hit[i])
        offsets.append(normals[2 * i] * at[0] + normals[2 * i + 1] * at[1])
    z = np.concatenate([z, offsets])
    z[0], z[1] = rng.uniform(-1, 1, n), rng.uniform(0.5, 1.2, n)
    return z.T


AFFINE = Family(
    name="affine",
    parameters=(
        START,
        DURATION,
        Parameter("x0", 1, 0),
        Parameter("x1", 1, 0),
        *(Parameter(f"A{i}", 0, -1) for i in range(4)),
        *(Parameter(f"c{i}", 1, -1) for i in range(2)),
        *(Parameter(f"k{i}", 1, -1) for i in range(6)),
        *(Parameter(f"n{i}") for i in range(4)),
        *(Parameter(f"d{i}", 1, 0) for i in range(2)),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0)),
    cells=24,
    n_times=2,
    eps=1e-4,
)
