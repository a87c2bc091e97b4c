from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.automaton import HybridAutomaton, Transition
from ..._systems.parameter import parameter


def ball_on_slope(
    angle: ArrayLike,
    mass: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
    force: ArrayLike | Sequence[ArrayLike] = (0.0, 0.0),
    restitution: ArrayLike = 0.0,
    *,
    contact: Literal["sliding", "sticking", "elastic"] = "sliding",
) -> HybridAutomaton:
    r"""A point mass that drops on a slope, and slides, sticks or bounces there.

    With the normal $n = (\sin\theta, \cos\theta)$ of the slope (which goes down towards
    positive $q_1$ for positive $\theta$), the projection $P = I - n n^\top$ on it, and
    $a = u / m - (0, g)$, the acceleration without contact, the modes are

    - `"free"`: $\dot q = v$, $\dot v = a$;
    - `"sliding"`, without friction: $\dot q = v$, $\dot v = P a$;
    - `"sticking"`: $\dot q = v$, $\dot v = 0$;

    and at $n^\top q = 0$ one of these transitions happens:

    - `contact="sliding"`: from free to sliding, $v^+ = P v^-$;
    - `contact="sticking"`: from free to sticking, $v^+ = 0$;
    - `contact="elastic"`: from free to free, $v^+ = v^- - (1 + e) n n^\top v^-$.

    There is no liftoff: the applied force is constant, so that the contact force
    $m g \cos\theta - n^\top u$ has one sign for ever. It must be positive.

    **Arguments:**

    - `angle`: $\theta$, in rad.
    - `mass`: $m$, in kg.
    - `gravity`: $g$, in m/s².
    - `force`: $u = (u_1, u_2)$, the applied force, in N.
    - `restitution`: $e$, from 0 to 1. Only used by `contact="elastic"`.
    - `contact`: which transition there is, as above.

    **Returns:**

    A `hj.HybridAutomaton`. Its state is an array of shape `(4,)`: the
    horizontal and vertical position $q_1, q_2$ (m), then the velocities (m/s). Guard 0
    is $n^\top q$, watched in mode `"free"`.

    The parameters are leaves of each vector field, guard and reset that uses them. For
    the gradient with respect to one of them, differentiate a function that calls
    `ball_on_slope`.

    **Raises:**

    - `ValueError` if there is no such contact.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Section IV, (43)-(50), and (70). (47) is
        $P a$ here: as printed it writes $g$ for the acceleration of gravity.
    """
    slope = _Slope(angle, mass, gravity, force, restitution)
    modes = {
        "free": slope.free,
        "sliding": slope.sliding,
        "sticking": slope.sticking,
    }
    if contact == "sliding":
        transition = Transition("free", "sliding", slope.height, slope.slide)
    elif contact == "sticking":
        transition = Transition("free", "sticking", slope.height, slope.stick)
    elif contact == "elastic":
        transition = Transition("free", "free", slope.height, slope.bounce)
    else:
        raise ValueError(
            "Argument `contact` must be 'sliding', 'sticking' or 'elastic', but it is "
            f"{contact!r}."
        )
    return HybridAutomaton(modes, [transition])


class _Slope(eqx.Module):
    angle: Float[Array, ""] = eqx.field(converter=parameter)
    mass: Float[Array, ""] = eqx.field(converter=parameter)
    gravity: Float[Array, ""] = eqx.field(converter=parameter)
    force: Float[Array, "2"] = eqx.field(converter=parameter)
    restitution: Float[Array, ""] = eqx.field(converter=parameter)

    def normal(self):
        return jnp.stack([jnp.sin(self.angle), jnp.cos(self.angle)])

    def acceleration(self):
        u1, u2 = self.force
        return jnp.stack([u1 / self.mass, u2 / self.mass - self.gravity])

    def along(self, vector):
        n = self.normal()
        return vector - jnp.sum(n * vector) * n

    # Vector fields.

    def free(self, t, x, args):
        return jnp.concatenate([x[2:], self.acceleration()])

    def sliding(self, t, x, args):
        return jnp.concatenate([x[2:], self.along(self.acceleration())])

    def sticking(self, t, x, args):
        return jnp.concatenate([x[2:], jnp.zeros_like(x[2:])])

    # The guard.

    def height(self, t, x, args):
        return jnp.sum(self.normal() * x[:2])

    # Resets.

    def slide(self, t, x, args):
        return jnp.concatenate([x[:2], self.along(x[2:])])

    def stick(self, t, x, args):
        return jnp.concatenate([x[:2], jnp.zeros_like(x[2:])])

    def bounce(self, t, x, args):
        v = x[2:]
        n = self.normal()
        impulse = -(1 + self.restitution) * jnp.sum(n * v)
        return jnp.concatenate([x[:2], v + impulse * n])
