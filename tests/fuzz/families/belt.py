"""A block on a belt, with Coulomb friction: it slides along the surface v = belt.

x'' = -k x - c x' -+ f,   above and below the speed of the belt

The damping may be negative: then the block sticks and slips again and again.
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np

from ..core import Family, Parameter
from ..reference import affine_flow
from .block import BLOCK, draw_block


def _build(p):
    def field(side):
        def rates(t, x, args):
            return jnp.stack([x[1], -p[4] * x[0] - p[5] * x[1] - side * p[6]])

        return rates

    surface = hj.SlidingSurface("behind", "ahead", lambda t, x, args: x[1] - p[7])
    system = hj.HybridAutomaton({"behind": field(-1), "ahead": field(1)}, [surface])
    return system, p[2:4], "behind"


class _Reference:
    def start(self, z):
        return z[2:4].copy(), np.full((1, z.shape[-1]), -1)

    def _pull(self, z, x):
        return z[4] * x[0] + z[5] * x[1]

    def flow(self, z, t, x, mode, dt):
        k, c, f, _ = z[4:8]
        slips, side = mode[0] != 0, np.sign(mode[0])
        A = [[0 * k, 1 + 0 * k], [np.where(slips, -k, 0), np.where(slips, -c, 0)]]
        return affine_flow(np.array(A), np.stack([0 * f, -side * f]), x, dt)

    def guards(self, z, t, x, mode):
        pull, f, side = self._pull(z, x), z[6], np.sign(mode[0])
        rate = -side * f - pull
        leaving = np.where(np.abs(mode[0]) == 2, side * rate, side * (x[1] - z[7]))
        return np.where(side == 0, f**2 - pull**2, leaving)[None]

    def jump(self, z, t, x, mode, event):
        side, sticks = np.sign(mode[0]), mode[0] == 0
        meets = np.abs(mode[0]) == 1
        x = np.stack([x[0], np.where(meets, z[7], x[1])])
        pull, f = self._pull(z, x)[0].real, z[6, 0].real
        # The force on the other side of the surface: does it lead back?
        over = np.where((side * f - pull) * side > 0, 0, -side)
        new = np.where(meets, over, np.where(sticks, -2 * np.sign(pull), side))
        return x, new.astype(int)[None]


def _draw(rng, n, gaps):
    block, belt = draw_block(rng, n, 6, (-0.5, 0.3))
    return np.stack([*block, rng.uniform(0.2, 1.5, n), belt], axis=1)


BELT = Family(
    name="belt",
    parameters=(
        *BLOCK,
        Parameter("friction", 1, -2),
        Parameter("belt speed", 1, -1),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, -1)),
    ties=False,
    cells=64,
)
