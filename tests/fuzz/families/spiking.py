"""Four neurons that leak, integrate and fire: exponentials.

A spike pushes the others, up or down, also over their threshold: cascades. Of two that
reach the threshold in one instant, the one that fires first is pushed by the other
after its reset, and the one that fires last is not: the flow is discontinuous there.
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import DURATION, Family, Parameter, START


_N = 4


class _Neurons(hj.AbstractHybridSystem):
    current: Array
    weights: Array
    tau: Array
    threshold: Array
    rest: Array

    def flow(self, t, x, mode, args):
        return (self.current - x) / self.tau

    def guards(self, t, x, mode, args):
        return self.threshold - x

    def jump(self, t, x, mode, event, args):
        pushed = x + self.weights[event]
        return jnp.where(jnp.arange(_N) == event, self.rest, pushed), mode


def _build(p):
    weights = p[10:26].reshape(_N, _N)
    return _Neurons(p[6:10], weights, *p[26:29]), p[2:6], 0


class _Reference:
    def start(self, z):
        return z[2:6].copy(), np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        current = z[6:10]
        return current + (x - current) * np.exp(-dt / z[26])

    def guards(self, z, t, x, mode):
        return z[27] - x

    def jump(self, z, t, x, mode, event):
        out = []
        for j in range(_N):
            push = sum(np.where(event == i, z[10 + _N * i + j], 0) for i in range(_N))
            out.append(np.where(event == j, z[28] + 0 * x[j], x[j] + push))
        return np.stack(out), mode


def _draw(rng, n, gaps):
    v = rng.uniform(-0.5, 0.95, (_N, n))
    current = rng.uniform(0.5, 2.5, (_N, n))
    excitatory = rng.uniform(size=n) < 0.5
    weights = rng.uniform(-0.3, 0.3, (_N, _N, n))
    weights = np.where(excitatory, np.abs(weights), weights)
    weights[np.arange(_N), np.arange(_N)] = 0
    tau = rng.uniform(0.5, 1.5, n)
    tie = ~np.isnan(gaps)
    current[0] = np.where(tie, rng.uniform(1.5, 2.5, n), current[0])
    current[1] = np.where(tie, current[0], current[1])
    later = current[0] + (v[0] - current[0]) * np.exp(np.where(tie, gaps, 0) / tau)
    v[1] = np.where(tie, later, v[1])
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 1.5, n)
    threshold, rest = rng.uniform(1, 1.1, n), rng.uniform(-0.5, 0, n)
    flat = weights.reshape(_N * _N, n)
    return np.stack([t0, duration, *v, *current, *flat, tau, threshold, rest], axis=1)


SPIKING = Family(
    name="spiking",
    parameters=(
        START,
        DURATION,
        *(Parameter(f"voltage {i}", 1, 0) for i in range(_N)),
        *(Parameter(f"current {i}", 1, 0) for i in range(_N)),
        *(
            Parameter(f"weight from {i} to {j}", 1, 0, i != j)
            for i in range(_N)
            for j in range(_N)
        ),
        Parameter("time constant", 0, 1),
        Parameter("threshold", 1, 0),
        Parameter("rest", 1, 0),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    symmetric=True,
    state=((1, 0),) * _N,
    cells=32,
)
