"""A system together with the derivative of its flow, as one hybrid system."""

import equinox as eqx
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


# What the flow does: on in time; or back in time, with the field of the mode frozen,
# to a guard; or it is there, and watches nothing any more.
FORWARD, REWOUND = -1, -2


class Linearised(AbstractTimedSystem):
    r"""The state $x$, and columns of its derivative by what it was at the start,

    $$\dot x = F, \quad \dot \Phi = D_x F\, \Phi, \qquad x^+ = R(x^-), \quad
    \Phi^+ = \Xi\, \Phi^-.$$

    So the derivative is a part of the state: its error is controlled, and first
    derivatives of a simulation of this are those of the state and of the matrix, in
    forward and in reverse mode. Several events in one instant are taken in the order of
    the simulation.

    **State:** `(x, columns, (dt, last))`: $x$ of shape `(n,)`, the columns, of shape
    `(n, p)`; and how the time of the last event moves with them, of shape `(p,)`, and
    that time: with them move events that a reset or the start has put inside their
    guard set.

    **Mode:** `(mode, way)`, that of the system, and `FORWARD`, the number of a guard,
    or `REWOUND`.

    **Guards:** those of the system; and the one to which the flow goes back, last.

    Time is measured from `origin`: what is short is resolved, whatever the time is.
    """

    system: FlatSystem
    origin: Float[Array, ""]
    # On or back, 1 or -1.
    sign: Float[Array, ""]
    # Events nearer than this are in one instant.
    tol: Float[Array, ""]
    # Without it events move columns by the Jacobian of the reset.
    saltation: bool = eqx.field(static=True)

    def time(self, s):
        return self.origin + self.sign * s

    def flow(self, t, x, mode, args):
        x, columns, last = x
        field = lambda x: self.sign * self.system.flow(self.time(t), x, mode[0])
        dx, push = jax.linearize(field, x)
        return dx, _each(push, columns), jtu.tree_map(jnp.zeros_like, last)

    def guards(self, t, x, mode, args):
        mode, way = mode
        g = self.system.guards(self.time(t), x[0], mode)
        # The guard to which the flow goes back is negative until it is there.
        back = -jnp.append(g, UNWATCHED)[way]
        watched = jnp.where(way == FORWARD, g, UNWATCHED)
        return jnp.append(watched, jnp.where(way >= 0, back, UNWATCHED))

    def jump(self, t, x, mode, event, args):
        (before, columns, (dt, last)), (mode, way) = x, mode
        n_guards, time = self.system.n_guards, self.time(t)
        if n_guards == 0:
            return x, (mode, way)
        there = event == n_guards
        event = jnp.minimum(event, n_guards - 1)
        after, mode_after = self.system.jump(time, before, mode, event)
        inside = self._inside(t, before, mode, event, last) | (not self.saltation)
        nothing = jtu.tree_map(lambda _: None, self.system)

        def push(dx, dt):
            tangents = (nothing, dx, dt)
            return event_tangent(
                self.system, time, before, mode, event, tangents, inside, False
            )

        pushed, dt_now = columns, dt
        if columns.shape[1] > 0:
            pushed, dt_now = jax.vmap(push, (1, 0), (1, 0))(columns, dt)
        if not self.saltation:
            dt_now = dt
        x, mode = where(there, (x, mode), ((after, pushed, (dt_now, t)), mode_after))
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


def _each(push, columns):
    if columns.shape[1] == 0:
        return columns
    return jax.vmap(push, 1, 1)(columns)
