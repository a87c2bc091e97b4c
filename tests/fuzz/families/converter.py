"""A buck converter with a clock, a duty limit and a current limit.

    L di/dt = s V - v,   C dv/dt = i - v / R,   s = 1 while the switch is on

The clock, an `hj.Clock`, turns the switch on, the limits turn it off. The time of the
duty limit is a state. Where both limits are met in one instant their order does not
matter; where the clock comes in the instant in which the current limit is met, it does.
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import DURATION, Family, Parameter, START
from ..reference import affine_flow, UNWATCHED


class _Converter(hj.AbstractHybridSystem):
    voltage: Array
    load: Array
    inductance: Array
    capacitance: Array
    duration: Array
    limit: Array

    def flow(self, t, x, mode, args):
        i, v = x[0], x[1]
        di = (jnp.where(mode == 1, self.voltage, 0.0) - v) / self.inductance
        dv = (i - v / self.load) / self.capacitance
        return jnp.stack([di, dv, jnp.zeros_like(i)])

    def guards(self, t, x, mode, args):
        return jnp.where(mode == 1, jnp.stack([x[2] - t, self.limit - x[0]]), 1.0)

    def jump(self, t, x, mode, event, args):
        return x, 0 * mode

    def tick(self, t, x, mode, args):
        return jnp.stack([x[0], x[1], t + self.duration]), 0 * mode + 1


def _build(p):
    t0, phase, period = p[0], p[11], p[9]
    start = jnp.stack([p[2], p[3], t0 + p[12] * period])
    converter = _Converter(*p[4:8], *jnp.stack([p[8] * period, p[10]]))
    clock = hj.Clock(period, t0 + phase * period)
    system = hj.with_clocks(converter, {"clock": (clock, converter.tick)})
    return system, start, system.start(t0, start, jnp.asarray(1), None)[1]


class _Reference:
    def start(self, z):
        x = [z[2], z[3], z[0] + z[12] * z[9]]
        # Is it on, and how often has the clock ticked?
        n = z.shape[-1]
        return np.stack(x), np.stack([np.ones(n, int), np.zeros(n, int)])

    def flow(self, z, t, x, mode, dt):
        zero = 0 * z[6]
        A = [[zero, -1 / z[6]], [1 / z[7], -1 / (z[5] * z[7])]]
        b = np.stack([mode[0] * z[4] / z[6], zero])
        moved = affine_flow(np.array(A), b, x[:2], dt)
        return np.concatenate([moved, x[2:] + 0 * moved[:1]])

    def guards(self, z, t, x, mode):
        now, on = z[0] + t, mode[0] == 1
        tick = z[0] + (z[11] + mode[1]) * z[9]
        g = [tick - now, np.where(on, x[2] - now, UNWATCHED)]
        return np.stack([*g, np.where(on, z[10] - x[0], UNWATCHED)])

    def jump(self, z, t, x, mode, event):
        x = np.where(event == 0, np.stack([x[0], x[1], z[0] + t + z[8] * z[9]]), x)
        tick = event == 0
        return x, np.stack([tick.astype(int), mode[1] + tick])


def _draw(rng, n, gaps):
    i, v = rng.uniform(0, 0.5, (2, n))
    voltage, load = rng.uniform(1, 3, n), rng.uniform(0.5, 2, n)
    inductance, capacitance = rng.uniform(0.2, 1, (2, n))
    period, duty = rng.uniform(0.2, 0.6, n), rng.uniform(0.2, 0.9, n)
    phase = rng.uniform(0.6, 1, n)
    off = phase * rng.uniform(0.3, 0.9, n)
    limit = i + rng.uniform(0.1, 1.5, n)
    # The current limit together with the duty limit, or with the clock.
    tie, with_clock = ~np.isnan(gaps), rng.uniform(size=n) < 0.5
    duty = np.where(tie & with_clock, 1.3, duty)
    off = np.where(tie & with_clock, 1.3, off)
    z = np.stack(
        [0 * i, 0 * i, i, v, voltage, load, inductance, capacitance, duty, period]
        + [limit, phase, off]
    )
    at = np.where(with_clock, phase, off) * period + np.where(tie, gaps, 0)
    x, mode = _Reference().start(z)
    met = _Reference().flow(z, 0, x, mode, at)[0]
    z[10] = np.where(tie, met, limit)
    z[0], z[1] = rng.uniform(-1, 1, n), rng.uniform(0.5, 2, n)
    return z.T


CONVERTER = Family(
    name="converter",
    parameters=(
        START,
        DURATION,
        Parameter("current", 1, 0),
        Parameter("voltage", 1, 0),
        Parameter("supply", 1, 0),
        Parameter("load"),
        Parameter("inductance", 0, 1),
        Parameter("capacitance", 0, 1),
        Parameter("duty"),
        Parameter("period", 0, 1),
        Parameter("limit", 1, 0),
        Parameter("phase"),
        Parameter("first duty"),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0), (0, 1)),
    cells=24,
)
