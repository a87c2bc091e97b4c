"""A plank on three feet in a line, which tips about its last one: a load walks over it.

Polynomials. Before it tips, feet lose their load, and take it again, at which nothing
moves: the reference has no such events.
"""

import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode

from ...helpers import plank_on_feet
from ..core import DURATION, Family, Parameter, START
from ..reference import UNWATCHED


def _build(p):
    half, middle, inertia, g = p[2:6]
    at = half * jnp.stack([-1 + 0 * middle, middle, 1 + 0 * middle])

    load = lambda t, args: jnp.polyval(p[6:9], t - p[0])
    plank = plank_on_feet(at, inertia, g, load, stabilization=p[9])
    return plank, (jnp.zeros_like(p[:2]),) * 2, jnp.full(3, int(ContactMode.FORWARD))


class _Plank:
    """At rest (mode 0), or turning about its left (1) or its right end (2)."""

    def start(self, z):
        return 0 * z[2:6], np.zeros((1, z.shape[-1]), int)

    def flow(self, z, t, x, mode, dt):
        half, _, inertia, g = z[2:6]
        end = np.where(mode[0] == 1, -half, half)
        bend, speed, place = self._load(z, t)
        pull = np.where(mode[0] == 0, 0, g / (inertia + half**2))
        push = pull * (end - place), -pull * speed, -pull * bend
        spin = x[3] + sum(a * dt**k / k for k, a in enumerate(push, 1))
        turn = sum(a * dt ** (k + 1) / (k * (k + 1)) for k, a in enumerate(push, 1))
        turn = x[1] + x[3] * dt + turn
        return np.stack([-end * turn, turn, -end * spin, spin])

    def guards(self, z, t, x, mode):
        place = self._load(z, t)[2]
        ends = np.stack([z[2] + place, z[2] - place])
        return np.where(mode == 0, ends, UNWATCHED)

    def jump(self, z, t, x, mode, event):
        return x, 1 + np.broadcast_to(event, mode.shape)

    def _load(self, z, t):
        """Its acceleration, halved, its speed, and where it is."""
        bend, speed, place = z[6:9]
        return bend, speed + 2 * bend * t, place + speed * t + bend * t**2


def _draw(rng, n, gaps):
    half, middle = rng.uniform(0.3, 2, n), rng.uniform(-0.7, 0.7, n)
    inertia, g = half**2 * rng.uniform(0.1, 1, n), rng.uniform(2, 12, n)
    # Back to `least` at half of the time or before, and to an end at 0.6 to 0.9 of it.
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 2, n)
    least, turns = rng.uniform(-0.95, 0.3, n), rng.uniform(-0.2, 0.5, n)
    bend = (1 - least) / (rng.uniform(0.6, 0.9, n) - turns) ** 2
    ahead = half * rng.choice([-1, 1], n)
    load = bend / duration**2, -2 * bend * turns / duration, least + bend * turns**2
    # That starts on the plank.
    fits = np.abs(load[2]) < 0.95
    load = [
        np.where(fits, a, b) for a, b in zip(load, (0, 1.3 / duration, 0), strict=True)
    ]
    load = [ahead * a for a in load]
    return np.stack([t0, duration, half, middle, inertia, g, *load, 5 + 0 * g], axis=1)


PLANKS = Family(
    name="planks",
    parameters=(
        START,
        DURATION,
        Parameter("half length", 1, 0),
        Parameter("middle"),
        Parameter("inertia", 2, 0),
        Parameter("gravity", 1, -2),
        Parameter("bend", 1, -2),
        Parameter("speed", 1, -1),
        Parameter("place", 1, 0),
        Parameter("stabilization", 0, -1),
    ),
    draw=_draw,
    build=_build,
    reference=_Plank(),
    state=((1, 0), (0, 0), (1, -1), (0, -1)),
    n_times=0,
    guards=False,
    exact=True,
    ties=False,
    cells=48,
)
