import jax.numpy as jnp

from .._systems.system import AbstractHybridSystem


class Frozen(AbstractHybridSystem):
    """A system that stays in its mode, whatever its guards are."""

    system: AbstractHybridSystem

    def flow(self, t, x, mode, args):
        return self.system.flow(t, x, mode, args)

    def guards(self, t, x, mode, args):
        return jnp.zeros((0,))

    def jump(self, t, x, mode, event, args):
        return x, mode
