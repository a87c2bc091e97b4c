"""Maps of the plane as hybrid systems: what they do once in each unit of time."""

from collections.abc import Callable

import hybridjax as hj
import jax.numpy as jnp


class MapInTime(hj.AbstractHybridSystem):
    """A state that stays, and a clock, at the end of whose turn it is mapped."""

    image: Callable

    def flow(self, t, x, mode, args):
        return jnp.zeros_like(x).at[-1].set(1.0)

    def guards(self, t, x, mode, args):
        return 1.0 - x[-1:]

    def jump(self, t, x, mode, event, args):
        return jnp.append(self.image(x[:-1]), 0.0).astype(x.dtype), mode
