"""A rod that lands on its ends, and bounces: rigid-body flight in closed form.

Without friction as `RigidBar`, where flat landings are tried too: they have a
derivative if all mass is in the ends, and are discontinuous otherwise. With friction,
in one impact at a time, as a `MechanicalSystem`.
"""

import jax.numpy as jnp
import numpy as np
from hybridjax.models import RigidBar, rod

from ..core import DURATION, Family, Parameter, START


def _build_bar(p):
    mass, half, inertia, g, e = p[6:11]
    return RigidBar(mass, half, inertia, g, e), p[2:6], jnp.zeros(2, jnp.int32)


class _Bar:
    def start(self, z):
        return z[2:6].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        g = z[9]
        q = [x[0] + x[2] * dt - g * dt**2 / 2, x[1] + x[3] * dt]
        return np.stack([*q, x[2] - g * dt, x[3] + 0 * dt])

    def guards(self, z, t, x, mode):
        lift = z[7] * np.sin(x[1])
        return np.stack([x[0] - lift, x[0] + lift])

    def jump(self, z, t, x, mode, event):
        mass, half, inertia, _, e = z[6:11]
        arm = np.where(event == 0, -1, 1) * half * np.cos(x[1])
        speed = x[2] + arm * x[3]
        push = -(1 + e) * speed / (1 / mass + arm**2 / inertia)
        return np.stack([*x[:2], x[2] + push / mass, x[3] + push * arm / inertia]), mode


def _bodies(rng, n):
    mass, half = rng.uniform(0.5, 2, n), rng.uniform(0.2, 1, n)
    inertia = mass * half**2 * rng.uniform(0.2, 1.5, n)
    g, e = rng.uniform(2, 12, n), rng.uniform(0.3, 1, n)
    height = half + rng.uniform(0.05, 1, n)
    turn, spin = rng.uniform(-1.5, 1.5, n), rng.uniform(-3, 3, n)
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 1.2, n)
    return mass, half, inertia, g, e, height, turn, spin, t0, duration


def _draw_bar(rng, n, gaps):
    mass, half, inertia, g, e, z, turn, spin, t0, duration = _bodies(rng, n)
    v = rng.uniform(-2, 2, n)
    tie, dumbbell = ~np.isnan(gaps), rng.uniform(size=n) < 0.5
    inertia = np.where(tie & dumbbell, mass * half**2, inertia)
    fall = (v + np.sqrt(v**2 + 2 * g * z)) / g
    # Flat where it lands, but for the gap.
    late = np.where(tie, gaps, 0) * np.abs(v - g * fall) / (2 * half)
    turn = np.where(tie, late - spin * fall, turn)
    return np.stack([t0, duration, z, turn, v, spin, mass, half, inertia, g, e], axis=1)


_BODY = (
    Parameter("mass"),
    Parameter("half length", 1, 0),
    Parameter("inertia", 2, 0),
    Parameter("gravity", 1, -2),
    Parameter("restitution"),
)

BARS = Family(
    name="bars",
    parameters=(
        START,
        DURATION,
        Parameter("height", 1, 0),
        Parameter("angle"),
        Parameter("speed", 1, -1),
        Parameter("spin", 0, -1),
        *_BODY,
    ),
    draw=_draw_bar,
    build=_build_bar,
    reference=_Bar(),
    state=((1, 0), (0, 0), (1, -1), (0, -1)),
    exact=True,
    cells=64,
)


#
# With friction
#


def _build_rod(p):
    mass, half, inertia, g, e, mu = p[8:14]
    system = rod(mass, half, inertia, mu, restitution=e, gravity=g, stabilization=p[14])
    return system, (p[2:5], p[5:8]), jnp.zeros(2, jnp.int32)


class _Rod:
    def start(self, z):
        return z[2:8].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        g, (vx, vz, w) = z[11], x[3:]
        fall = g * dt
        q = [x[0] + vx * dt, x[1] + vz * dt - fall * dt / 2, x[2] + w * dt]
        return np.stack([*q, vx + 0 * dt, vz - fall, w + 0 * dt])

    def guards(self, z, t, x, mode):
        lift = z[9] * np.sin(x[2])
        return np.stack([x[1] - lift, x[1] + lift])

    def jump(self, z, t, x, mode, event):
        mass, half, inertia, _, e, mu = z[8:14]
        side = np.where(event == 0, -1, 1) * half
        # Moments of a unit of normal and of tangential impulse.
        mn, mt = side * np.cos(x[2]), -side * np.sin(x[2])
        vn, vt = x[4] + mn * x[5], x[3] + mt * x[5]
        nn, tt = 1 / mass + mn**2 / inertia, 1 / mass + mt**2 / inertia
        nt, change = mn * mt / inertia, -(1 + e) * vn
        det = nn * tt - nt**2
        pn, pt = (tt * change + nt * vt) / det, (-nn * vt - nt * change) / det
        grips = (pn.real > 0) & (np.abs(pt.real) <= (mu * pn).real)
        sign = -np.sign(vt.real)
        sliding = change / (nn + sign * mu * nt)
        pn = np.where(grips, pn, sliding)
        pt = np.where(grips, pt, sign * mu * sliding)
        # Sliding that would be reversed, or stopped, in the impact: not here.
        after = vt + nt * pn + tt * pt
        wrong = ~grips & ((sign * after.real >= 0) | (pn.real <= 0))
        v = [x[3] + pt / mass, x[4] + pn / mass, x[5] + (mn * pn + mt * pt) / inertia]
        return np.where(wrong, np.nan, np.stack([*x[:3], *v])), mode


def _draw_rod(rng, n, gaps):
    mass, half, inertia, g, e, z, turn, spin, t0, duration = _bodies(rng, n)
    v, mu = rng.uniform(-2, 2, (2, n)), rng.uniform(0, 0.8, n)
    x = rng.uniform(-1, 1, n)
    body = [mass, half, inertia, g, e, mu, 5 + 0 * e]
    return np.stack([t0, duration, x, z, turn, *v, spin, *body], axis=1)


RODS = Family(
    name="rods",
    parameters=(
        START,
        DURATION,
        Parameter("x", 1, 0),
        Parameter("z", 1, 0),
        Parameter("angle"),
        Parameter("speed in x", 1, -1),
        Parameter("speed in z", 1, -1),
        Parameter("spin", 0, -1),
        *_BODY,
        Parameter("friction"),
        Parameter("stabilization", 0, -1),
    ),
    draw=_draw_rod,
    build=_build_rod,
    reference=_Rod(),
    state=((1, 0), (1, 0), (0, 0), (1, -1), (1, -1), (0, -1)),
    n_times=3,
    exact=True,
    ties=False,
    cells=48,
)
