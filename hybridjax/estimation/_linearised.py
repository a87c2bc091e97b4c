"""A system together with the derivative of its flow, and with the covariance of noise
on the way, as one hybrid system."""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float

from .._derivatives.saltation import event_tangent
from .._events.firing import is_inside
from .._jax.branch import where
from .._systems.flat import FlatSystem
from .._systems.names import Names
from .._systems.system import AbstractTimedSystem, UNWATCHED
from ..analysis._noise import NoiseRoot


# What the flow does: on in time; or back in time, with the field of the mode frozen,
# to a guard; or it is there, and watches nothing any more.
FORWARD, REWOUND = -1, -2


class Linearised(AbstractTimedSystem):
    r"""The state $x$, columns of its derivative by what it was at the start, and the
    covariance of white noise since then,

    $$\dot x = F, \quad \dot \Phi = A\, \Phi, \quad \dot Q = A Q + Q A^\top + L L^\top,
    \quad A = D_x F; \qquad x^+ = R(x^-), \quad \Phi^+ = \Xi\, \Phi^-, \quad
    Q^+ = \Xi\, Q^- \Xi^\top.$$

    So the derivative is a part of the state: its error is controlled, and first
    derivatives of a simulation of this are those of the state and of the matrices, in
    forward and in reverse mode. Several events in one instant are taken in the order of
    the simulation.

    **State:** `(x, columns, noise, last)`: $x$ of shape `(n,)`; the columns, of shape
    `(n + 1, p)`; the covariance, of shape `(n + 1, n + 1)`, or `None`; and the time of
    the last event. The last row of the columns, and the last row and column of the
    covariance, are those of that time: with it move events that a reset or the start
    has put inside their guard set.

    **Mode:** `(mode, way)`, that of the system, and `FORWARD`, the number of a guard,
    or `REWOUND`.

    **Guards:** those of the system; and the one to which the flow goes back, last.

    Time is measured from `origin`: what is short is resolved, whatever the time is.
    """

    system: FlatSystem
    diffusion: NoiseRoot | None
    origin: Float[Array, ""]
    # On or back, 1 or -1.
    sign: Float[Array, ""]
    # Events nearer than this are in one instant.
    tol: Float[Array, ""]
    # Without it events move columns by the Jacobian of the reset.
    saltation: Bool[Array, ""]

    def time(self, s):
        return self.origin + self.sign * s

    def flow(self, t, x, mode, args):
        (x, columns, noise, last), (mode, _) = x, mode
        time = self.time(t)
        field = lambda x: self.sign * self.system.flow(time, x, mode)
        dx, push = jax.linearize(field, x)
        # The time of the last event does not change.
        drift = lambda a: with_time(_each(push, a[:-1]), 0)
        if self.diffusion is not None:
            root, half = self.diffusion(time, x, mode), drift(noise)
            noise = half + half.T + with_time(jnp.matmul(root, root.T), 1)
        return dx, drift(columns), noise, jnp.zeros_like(last)

    def guards(self, t, x, mode, args):
        mode, way = mode
        g = self.system.guards(self.time(t), x[0], mode)
        # The guard to which the flow goes back is negative until it is there.
        back = -jnp.append(g, UNWATCHED)[way]
        watched = jnp.where(way == FORWARD, g, UNWATCHED)
        return jnp.append(watched, jnp.where(way >= 0, back, UNWATCHED))

    def jump(self, t, x, mode, event, args):
        (before, columns, noise, last), (mode, way) = x, mode
        n_guards, time = self.system.n_guards, self.time(t)
        if n_guards == 0:
            return x, (mode, way)
        there = event == n_guards
        event = jnp.minimum(event, n_guards - 1)
        after, mode_after = self.system.jump(time, before, mode, event)
        inside = self._inside(t, before, mode, event, last) | ~self.saltation
        nothing = jtu.tree_map(lambda _: None, self.system)

        def push(column):
            dx, dt = column[:-1], column[-1]
            tangents = (nothing, dx, dt)
            dx, dt_now = event_tangent(
                self.system, time, before, mode, event, tangents, inside, False
            )
            return jnp.append(dx, jnp.where(self.saltation, dt_now, dt))

        matrix = _each(push, jnp.eye(before.shape[0] + 1, dtype=before.dtype))
        if noise is not None:
            noise = jnp.matmul(jnp.matmul(matrix, noise), matrix.T)
        pushed = after, jnp.matmul(matrix, columns), noise, t
        x, mode = where(there, (x, mode), (pushed, mode_after))
        return x, (mode, jnp.where(there, REWOUND, way))

    def _inside(self, t, x, mode, event, last) -> Bool[Array, ""]:
        """Was the state put inside of the guard set, in this very instant?"""
        time = self.time(t)
        g, rate = self.system.guard_rates(
            time, x, mode, self.system.flow(time, x, mode)
        )
        at_once = t <= last + self.tol
        return at_once & is_inside(g[event], rate[event], self.tol)

    def next_time(self, t, x, mode, args):
        if not self.system.is_timed:
            return None
        time = self.system.next_time(self.time(t), x[0], mode[0])
        return jnp.where(mode[1] == FORWARD, time - self.origin, jnp.inf)

    def start(self, t, x, mode, args):
        return x, mode

    @property
    def naming(self) -> Names:
        return Names()


def with_time(matrix, columns):
    """With a row of zeros, and maybe a column."""
    return jnp.pad(matrix, ((0, 1), (0, columns)))


def _each(push, columns):
    if columns.shape[1] == 0:
        return columns
    return jax.vmap(push, 1, 1)(columns)
