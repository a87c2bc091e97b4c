"""A point mass that drops on a slope with friction: it bounces, slides, stops, sticks.

Half of the masses bounce, the others stay on the slope where they land.
"""

import jax.numpy as jnp
import numpy as np
from hybridjax.models import point_mass_on_slope

from ..core import DURATION, Family, Parameter, START
from ..reference import UNWATCHED


_FREE, _STUCK, _DOWN, _UP = 0, 1, 2, 3


def _build(p):
    system = point_mass_on_slope(
        p[6], p[7], restitution=p[9], gravity=p[8], stabilization=p[10]
    )
    return system, (p[2:4], p[4:6]), jnp.zeros(1, jnp.int32)


def _frame(z):
    sin, cos = np.sin(z[6]), np.cos(z[6])
    return np.stack([cos, -sin]), np.stack([sin, cos])


class _Reference:
    def start(self, z):
        return z[2:6].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        tangent, _ = _frame(z)
        g, m = z[8], mode[0]
        weight = np.stack([0 * g, -g])
        sign = np.where(m == _DOWN, -1, np.where(m == _UP, 1, 0))
        along = g * np.sin(z[6]) + sign * z[7] * g * np.cos(z[6])
        a = np.where(m == _FREE, weight, np.where(m == _STUCK, 0, along * tangent))
        q, v = x[:2], x[2:]
        return np.concatenate([q + v * dt + a * dt**2 / 2, v + a * dt])

    def guards(self, z, t, x, mode):
        tangent, normal = _frame(z)
        gap = np.sum(normal * x[:2], axis=0)
        slide = np.sum(tangent * x[2:], axis=0)
        m = mode[0]
        g = np.where(m == _DOWN, slide, np.where(m == _UP, -slide, UNWATCHED))
        return np.where(m == _FREE, gap, g)[None]

    def jump(self, z, t, x, mode, event):
        tangent, normal = _frame(z)
        mu, e = z[7], z[9]
        vt, vn = np.sum(tangent * x[2:], axis=0), np.sum(normal * x[2:], axis=0)
        push = -(1 + e) * vn
        grips = np.abs(vt.real) <= (mu * push).real
        stopped = np.where(grips, 0, vt - np.sign(vt.real) * mu * push)
        lands = mode[0] == _FREE
        vt = np.where(lands, stopped, 0)
        vn = np.where(lands, -e * vn, 0)
        holds = np.tan(z[6][0].real) <= mu[0].real
        still = np.where(holds, _STUCK, _DOWN)
        slides = np.where(vt[0].real > 0, _DOWN, np.where(vt[0].real < 0, _UP, still))
        bounces = lands & (e[0].real > 0)
        v = vt * tangent + vn * normal
        mode = np.where(bounces, _FREE, slides)
        return np.concatenate([x[:2], v]), mode[None]


def _draw(rng, n, gaps):
    angle, mu = rng.uniform(0.02, 0.8, n), rng.uniform(0.02, 0.9, n)
    height, speed = rng.uniform(0.05, 1, n), rng.uniform(-2, 2, (2, n))
    q = np.stack([np.sin(angle), np.cos(angle)]) * height
    q += np.stack([np.cos(angle), -np.sin(angle)]) * rng.uniform(-1, 1, n)
    e = np.where(rng.uniform(size=n) < 0.5, 0, rng.uniform(0.3, 0.95, n))
    g = rng.uniform(2, 12, n)
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 1.5, n)
    return np.stack([t0, duration, *q, *speed, angle, mu, g, e, 5 + 0 * e], axis=1)


ON_A_SLOPE = (
    Parameter("angle"),
    Parameter("friction"),
    Parameter("gravity", 1, -2),
    # Where it is zero, contacts close.
    Parameter("restitution", moves=False),
    Parameter("stabilization", 0, -1),
)

POINTS = Family(
    name="points",
    parameters=(
        START,
        DURATION,
        Parameter("x", 1, 0),
        Parameter("z", 1, 0),
        Parameter("speed in x", 1, -1),
        Parameter("speed in z", 1, -1),
        *ON_A_SLOPE,
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0), (1, -1), (1, -1)),
    n_times=1,
    guards=False,
    ties=False,
    exact=True,
    cells=48,
)
