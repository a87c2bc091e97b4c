"""All applied forces of a robot."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from ._actuators import Actuators
from ._passive import Passive


class Forces(eqx.Module):
    """Those of actuators, springs and dampers."""

    actuators: Actuators
    passive: Passive
    control: Callable | None

    def __call__(self, t, q, v, args):
        n = self.actuators.gain.shape[1]
        passive = self.passive.effort(q, v)
        if n == 0:
            return passive
        u = args if self.control is None else self.control(t, q, v, args)
        if u is None:
            u = jnp.zeros((n,), q.dtype)
        u = jnp.asarray(u)
        if u.shape != (n,):
            name, fix = (
                ("`args`", "Pass one, or a `control` to `hj.robots.from_mjcf`.")
                if self.control is None
                else ("What `control` returns", "Return one.")
            )
            raise ValueError(
                f"{name} must be the vector of the {n} controls of the robot, of shape "
                f"({n},), but it has shape {u.shape}. {fix}"
            )
        return passive + self.actuators.effort(q, v, u)
