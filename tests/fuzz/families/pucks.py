"""A point mass in space that drops on a slope with friction, in two directions.

It bounces, slides, turns downhill, stops, sticks. Half of the masses bounce, the others
stay on the slope where they land. In the frame of the slope, downhill first, across,
and its normal last.

A slide is known in closed form. With the drive c downhill, the deceleration k, p = k/c
and the angle of the slip from downhill, of which w is the tangent of the half,

    d ln(speed) / d ln w = p - cos(angle),   dw/dt = -c w / speed,

so that time and place are sums of powers of w. If p > 1 the slide ends, at w = 0.
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np

from ..core import DURATION, Family, Parameter, START
from ..reference import UNWATCHED
from .points import ON_A_SLOPE


_FREE, _STUCK, _SLIDES, _DOWN = range(4)
_ITERATIONS = 100


def _build(p):
    gravity, angle = p[10], p[8]
    # In the dtype of the parameters.
    tangents = jnp.eye(3, dtype=p.dtype)[None, :2]
    force = gravity * jnp.stack([jnp.sin(angle), 0 * angle, -jnp.cos(angle)])
    system = hj.mechanics.MechanicalSystem(
        lambda q, args: jnp.ones_like(q),
        lambda t, q, v, args: force,
        lambda q, args: q[2:],
        1,
        tangents=lambda q, args: tangents,
        friction=p[9],
        restitution=p[11],
        stabilization=p[12],
    )
    return system, (p[2:5], p[5:8]), jnp.zeros(1, jnp.int32)


def _grown(rate, m):
    """The integral of exp(-rate m)."""
    return -np.expm1(-rate * m) / rate


class _Slide:
    """From a slip on, which is not straight downhill."""

    def __init__(self, drive, friction, vx, vy):
        self.c, self.p = drive, friction / drive
        self.side = np.sign(vy.real)
        across = self.side * vy
        speed = np.sqrt(vx * vx + vy * vy)
        # Without cancellation.
        down = vx.real > 0
        with_it, against = speed + vx, speed - vx
        self.w = np.where(
            down,
            across / np.where(down, with_it, 1),
            against / np.where(down, 1, across),
        )
        self.size = 2 * speed / (1 + self.w**2)
        self.whole = 1 / (self.p - 1) + self.w**2 / (self.p + 1)

    @property
    def left(self):
        """The time until it stops, if it does."""
        return self.size / (2 * self.c) * self.whole

    def progress(self, dt):
        """ln(w at first / w then)."""
        p, w2 = self.p, self.w**2
        time = 2 * self.c * dt / self.size
        value = lambda m, p, w2: _grown(p - 1, m) + w2 * _grown(p + 1, m)
        rate = lambda m, p, w2: np.exp(-(p - 1) * m) + w2 * np.exp(-(p + 1) * m)
        real = p.real, w2.real
        # Of what ends, exp(-(p - 1) m) is at least what is left of its time; what goes
        # on turns no faster than if it had turned already. (Below the rounding of its
        # time, derivatives would overflow.)
        left = np.maximum(
            1 - time.real / np.where(real[0] > 1, self.whole.real, 1), 1e-16
        )
        ends = -np.log(left) / np.where(real[0] > 1, real[0] - 1, 1)
        faster = np.where(real[0] > 1, 1, 1 - real[0])
        high = np.where(
            real[0] > 1, ends, np.log1p(faster * np.maximum(time.real, 0)) / faster
        )
        low, m = np.zeros_like(high), high.copy()
        for k in range(_ITERATIONS):
            off = value(m, *real) - time.real
            low, high = np.where(off < 0, m, low), np.where(off < 0, high, m)
            new = m - off / rate(m, *real)
            newton = (new >= low) & (new <= high) & (k % 3 != 2)
            new = np.where(newton, new, (low + high) / 2)
            done = np.abs(new - m) <= 1e-15 * (1 + np.abs(m))
            m = new
            if done.all():
                break
        for _ in range(2):
            m = m - (value(m, p, w2) - time) / rate(m, p, w2)
        return m

    def after(self, dt):
        """How far, and how fast; past its end as if it slid back."""
        p, c, w, size = self.p, self.c, self.w, self.size
        over = (p.real > 1) & (dt.real >= self.left.real)
        m = self.progress(np.where(over, 0, dt))
        end = lambda rate: np.where(over, 1 / rate, _grown(rate, m))
        x = size**2 / (4 * c) * (end(2 * p - 2) - w**4 * end(2 * p + 2))
        y = size**2 / (2 * c) * (w * end(2 * p - 1) + w**3 * end(2 * p + 1))
        fading, now = np.exp(-(p - 1) * m), w * np.exp(-m)
        back = (p - 1) * c * (dt - self.left)
        x = np.where(over, x - back * (dt - self.left) / 2, x)
        vx = np.where(over, -back, size / 2 * fading * (1 - now**2))
        vy = np.where(over, 0, size * fading * now)
        return x, self.side * y, vx, self.side * vy


def _slide(z, x, mode):
    """Of those that do not slide, something harmless."""
    slides = (mode[0] == _SLIDES) & (x[4].real != 0)
    drive, friction = z[10] * np.sin(z[8]), z[9] * z[10] * np.cos(z[8])
    return _Slide(drive, friction, np.where(slides, x[3], 1), np.where(slides, x[4], 1))


class _Reference:
    def start(self, z):
        return z[2:8].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        m, g = mode[0], z[10]
        drive, press = g * np.sin(z[8]), g * np.cos(z[8])
        a = np.stack(
            [
                np.where(
                    m == _FREE, drive, np.where(m == _DOWN, drive - z[9] * press, 0)
                ),
                0 * g,
                np.where(m == _FREE, -press, 0),
            ]
        )
        q, v = x[:3] + x[3:] * dt + a * dt**2 / 2, x[3:] + a * dt
        along, across, vx, vy = _slide(z, x, mode).after(dt + 0 * g)
        slid = np.stack([x[0] + along, x[1] + across, x[2], vx, vy, x[5]])
        return np.where(m == _SLIDES, slid, np.concatenate([q, v]))

    def guards(self, z, t, x, mode):
        slide = _slide(z, x, mode)
        # Past its end it slides back, and not across.
        past = x[4].real == 0
        stops = np.where(past, x[3] / ((slide.p - 1) * slide.c), slide.left)
        stops = np.where((mode[0] == _SLIDES) & (slide.p.real > 1), stops, UNWATCHED)
        return np.where(mode[0] == _FREE, x[2], stops)[None]

    def jump(self, z, t, x, mode, event):
        e, push = z[11], -(1 + z[11]) * x[5]
        speed = np.sqrt(x[3] ** 2 + x[4] ** 2)
        brake = z[9] * push
        lands = mode[0] == _FREE
        keeps = lands & (speed.real > brake.real)[0]
        share = np.where(keeps, 1 - brake / np.where(speed == 0, 1, speed), 0)
        v = np.stack([share * x[3], share * x[4], np.where(lands, -e * x[5], 0)])
        holds = np.tan(z[8][0].real) <= z[9][0].real
        stays = np.where(holds, _STUCK, _DOWN)
        mode = np.where(keeps, _SLIDES, stays)
        mode = np.where(lands & (e[0].real > 0), _FREE, mode)
        return np.concatenate([x[:3], v]), mode[None]


def _draw(rng, n, gaps):
    angle = rng.uniform(0.05, 0.7, n)
    # Those at which the slope just holds are left out: there all is slow.
    p = np.where(
        rng.uniform(size=n) < 0.4, rng.uniform(0.3, 0.9, n), rng.uniform(1.1, 4, n)
    )
    q = np.stack([*rng.uniform(-1, 1, (2, n)), rng.uniform(0.05, 0.6, n)])
    v = rng.uniform(-2, 2, (3, n))
    e = np.where(rng.uniform(size=n) < 0.5, 0, rng.uniform(0.3, 0.95, n))
    g = rng.uniform(2, 12, n)
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 1.5, n)
    mu = p * np.tan(angle)
    return np.stack([t0, duration, *q, *v, angle, mu, g, e, 5 + 0 * e], axis=1)


PUCKS = Family(
    name="pucks",
    parameters=(
        START,
        DURATION,
        Parameter("downhill", 1, 0),
        Parameter("across", 1, 0),
        Parameter("height", 1, 0),
        Parameter("speed downhill", 1, -1),
        Parameter("speed across", 1, -1),
        Parameter("speed upwards", 1, -1),
        *ON_A_SLOPE,
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0), (1, 0), (1, -1), (1, -1), (1, -1)),
    n_times=1,
    guards=False,
    ties=False,
    cells=48,
    # At the end of a slide the errors of a velocity, however small, turn it.
    pause=1e-3,
)
