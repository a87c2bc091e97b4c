"""A block on a belt, held by a spring and a damper: it sticks and slips.

x'' = -k x - c x' + f,   f = +-fk while it slips, |f| <= fs while it sticks
"""

import hybridjax as hj
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import Family, Parameter
from ..reference import affine_flow, UNWATCHED
from .block import BLOCK, draw_block


_STICK, _BEHIND, _AHEAD = 0, 1, 2


class _Block(hj.AbstractHybridSystem):
    stiffness: Array
    damping: Array
    static: Array
    kinetic: Array
    belt: Array

    def _pull(self, x):
        return self.stiffness * x[0] + self.damping * x[1]

    def flow(self, t, x, mode, args):
        friction = jnp.where(mode == _BEHIND, self.kinetic, -self.kinetic)
        acceleration = jnp.where(mode == _STICK, 0.0, friction - self._pull(x))
        return jnp.stack([x[1], acceleration])

    def guards(self, t, x, mode, args):
        pull = self._pull(x)
        behind = self.belt - x[1]
        slips = jnp.where(mode == _BEHIND, behind, -behind)
        stick = mode == _STICK
        return jnp.stack(
            [
                jnp.where(stick, self.static - pull, slips),
                jnp.where(stick, self.static + pull, hj.UNWATCHED),
            ]
        )

    def jump(self, t, x, mode, event, args):
        x = jnp.stack([x[0], self.belt])
        over = jnp.where(mode == _BEHIND, _AHEAD, _BEHIND)
        lands = jnp.where(jnp.abs(self._pull(x)) <= self.static, _STICK, over)
        slips = jnp.where(event == 0, _BEHIND, _AHEAD)
        return x, jnp.where(mode == _STICK, slips, lands)


def _build(p):
    return _Block(*p[4:9]), p[2:4], jnp.asarray(_BEHIND)


class _Reference:
    def start(self, z):
        return z[2:4].copy(), np.full((1, z.shape[-1]), _BEHIND)

    def flow(self, z, t, x, mode, dt):
        k, c, _, kinetic, _ = z[4:9]
        slips = mode[0] != _STICK
        A = [[0 * k, 1 + 0 * k], [np.where(slips, -k, 0), np.where(slips, -c, 0)]]
        f = np.where(slips, np.where(mode[0] == _BEHIND, kinetic, -kinetic), 0)
        return affine_flow(np.array(A), np.stack([0 * f, f]), x, dt)

    def guards(self, z, t, x, mode):
        k, c, static, _, belt = z[4:9]
        pull, behind, stick = k * x[0] + c * x[1], belt - x[1], mode[0] == _STICK
        slips = np.where(mode[0] == _BEHIND, behind, -behind)
        first = np.where(stick, static - pull, slips)
        return np.stack([first, np.where(stick, static + pull, UNWATCHED)])

    def jump(self, z, t, x, mode, event):
        k, c, static, _, belt = z[4:9]
        pull = (k * x[0] + c * belt)[0].real
        x = np.stack([x[0], belt])
        over = np.where(mode[0] == _BEHIND, _AHEAD, _BEHIND)
        lands = np.where(np.abs(pull) <= static[0].real, _STICK, over)
        slips = np.where(event == 0, _BEHIND, _AHEAD)
        return x, np.where(mode[0] == _STICK, slips, lands)[None]


def _draw(rng, n, gaps):
    block, belt = draw_block(rng, n, 4, (0, 0.5))
    kinetic = rng.uniform(0.2, 1.5, n)
    static = kinetic * rng.uniform(1.1, 1.8, n)
    return np.stack([*block, static, kinetic, belt], axis=1)


STICK_SLIP = Family(
    name="stick_slip",
    parameters=(
        *BLOCK,
        Parameter("static friction", 1, -2),
        Parameter("kinetic friction", 1, -2),
        Parameter("belt speed", 1, -1),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0), (1, -1)),
    ties=False,
    cells=64,
)
