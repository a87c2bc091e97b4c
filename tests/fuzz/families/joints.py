"""Two unit masses on springs and dampers, each with dry friction: they stop, turn back
or stick, and slip again when the other one pulls.

x'' = -K x - c x' - f,   f = F sign(x') while one moves, |f| <= F while it sticks

The damping may be negative.
"""

import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..core import DURATION, Family, Parameter, START
from ..reference import affine_flow


def _build(p):
    first, second, between, c = p[6:10]
    K = jnp.stack([first + between, -between, -between, second + between])
    system = MechanicalSystem(
        lambda q, args: jnp.ones_like(q),
        lambda t, q, v, args: -K.reshape(2, 2) @ q - c * v,
        dry_friction=p[10:12],
        stabilization=p[12],
    )
    mode0 = jnp.where(p[4:6] > 0, ContactMode.FORWARD, ContactMode.BACKWARD)
    return system, (p[2:4], p[4:6]), mode0


class _Reference:
    """The mode of each mass: 0 where it sticks, the sign of its velocity where it
    slides, and twice that from where it begins to slip until its acceleration turns."""

    def start(self, z):
        return z[2:6].copy(), np.sign(z[4:6, 0].real).astype(int)

    def _pull(self, z, x):
        first, second, between, c = z[6:10]
        pull = np.stack([first * x[0], second * x[1]]) + c * x[2:]
        return pull + between * np.stack([x[0] - x[1], x[1] - x[0]])

    def flow(self, z, t, x, mode, dt):
        first, second, between, c = z[6:10]
        none, (one, other) = 0 * c, np.where(mode != 0, 1, 0)
        A = [
            [none, none, 1 + none, none],
            [none, none, none, 1 + none],
            [-one * (first + between), one * between, -one * c, none],
            [other * between, -other * (second + between), none, -other * c],
        ]
        f = [-np.sign(m) * most for m, most in zip(mode, z[10:12], strict=True)]
        return affine_flow(np.array(A), np.stack([none, none, *f]), x, dt)

    def guards(self, z, t, x, mode):
        g = []
        for m, pull, f, v in zip(mode, self._pull(z, x), z[10:12], x[2:], strict=True):
            side = np.sign(m)
            leaving = np.where(np.abs(m) == 2, side * (-pull - side * f), side * v)
            g.append(np.where(m == 0, f**2 - pull**2, leaving))
        return np.stack(g)

    def jump(self, z, t, x, mode, event):
        here = np.arange(2)[:, None] == event
        side, sticks, meets = np.sign(mode), mode == 0, np.abs(mode) == 1
        x = np.concatenate([x[:2], np.where((here & meets)[:, None], 0, x[2:])])
        pull, f = self._pull(z, x)[:, 0].real, z[10:12, 0].real
        turned = np.where(np.abs(pull) <= f, 0, -side)
        new = np.where(sticks, -2 * np.sign(pull), np.where(meets, turned, side))
        return x, np.where(here, new, mode).astype(int)


def _draw(rng, n, gaps):
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.5, 6, n)
    x, v = rng.uniform(-1, 1, (2, n)), rng.uniform(-1.5, 1.5, (2, n))
    stiffness, damping = rng.uniform(0.5, 6, (3, n)), rng.uniform(-0.5, 0.3, n)
    force = rng.uniform(0.1, 1, (2, n))
    z = [t0, duration, *x, *v, *stiffness, damping, *force, np.full(n, 5.0)]
    return np.stack(z, axis=1)


JOINTS = Family(
    name="joints",
    parameters=(
        START,
        DURATION,
        Parameter("x", 1, 0),
        Parameter("y", 1, 0),
        Parameter("speed in x", 1, -1),
        Parameter("speed in y", 1, -1),
        Parameter("stiffness of x", 0, -2),
        Parameter("stiffness of y", 0, -2),
        Parameter("stiffness between", 0, -2),
        Parameter("damping", 0, -1),
        Parameter("friction of x", 1, -2),
        Parameter("friction of y", 1, -2),
        Parameter("stabilization", 0, -1),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, 0), (1, -1), (1, -1)),
    n_times=1,
    guards=False,
    ties=False,
    cells=96,
)
