from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from .names import Names
from .system import AbstractSelfStartingSystem, UNWATCHED


class EventSelectedSystem(AbstractSelfStartingSystem):
    """A vector field that is chosen by the signs of event functions.

    The flow is `vector_field(t, x, b, args)` with `b` in {-1, +1}^n, and `b[j]` changes
    from -1 to +1 when `event_functions(t, x, args)[j]` increases through zero: surface
    `j` is *crossed*. Surfaces with `b[j] = -1` are *candidates*. The state does not
    jump. The mode of this system is `b`, an integer vector.

    **Arguments:**

    - `vector_field`: callable `(t, x, b, args) -> dx/dt`.
    - `event_functions`: callable `(t, x, args) -> (n,)`, each entry increasing through
        zero along the flow.
    - `rearm`: boolean matrix of shape `(n, n)`, or `None`. `rearm[i, j]` says that
        crossing `i` makes `j` a candidate again (sets `b[j] = -1`); a matrix of zeros
        lets every surface be crossed once. With `None`, once all surfaces have been
        crossed, one whose event function falls through zero becomes a candidate again.
        That is an event too, with the number of the surface.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*,
        Definition 1. Candidates and re-arming: Anderson, Revzen, *Rapid integrator for
        a class of multi-contact systems*, Section 3.1, where `rearm` is the "guard
        reset matrix".
    """

    vector_field: Callable
    event_functions: Callable
    rearm: Bool[np.ndarray, "n n"] | Bool[Array, "n n"] | None = None

    def __check_init__(self):
        if self.rearm is not None:
            shape = jnp.shape(self.rearm)
            if len(shape) != 2 or shape[0] != shape[1]:
                raise ValueError(
                    "Argument `rearm` must be a square boolean matrix with one row and "
                    f"one column per event function, but its shape is {shape}."
                )

    def flow(self, t, x, mode, args):
        return self.vector_field(t, x, mode, args)

    def guards(self, t, x, mode, args):
        h = jnp.asarray(self.event_functions(t, x, args))
        if h.ndim != 1:
            raise ValueError(
                "Argument `event_functions` must return a vector of shape (n,), but "
                f"it returned shape {h.shape}."
            )
        if self.rearm is None:
            crossed = jnp.where((mode > 0).all(), h, UNWATCHED)
        else:
            crossed = UNWATCHED
        return jnp.where(mode < 0, -h, crossed)

    def jump(self, t, x, mode, event, args):
        fired = jnp.arange(mode.shape[0]) == event
        if self.rearm is None:
            b: Int[Array, " n"] = jnp.where(fired, -mode, mode)
        else:
            b = jnp.where(fired, 1, mode)
            b = jnp.where(jnp.asarray(self.rearm)[event], -1, b)
        return x, b.astype(mode.dtype)

    def initial_mode(self, t, x, args) -> PyTree:
        """The signs of the event functions (+1 where zero and not yet crossed is not
        known: a surface that is exactly at zero counts as still to be crossed)."""
        h = jnp.asarray(self.event_functions(t, x, args))
        return jnp.where(h > 0, 1, -1).astype(jnp.int32)

    def start(self, t, x, mode, args):
        return x, self.initial_mode(t, x, args) if mode is None else mode

    @property
    def naming(self) -> Names:
        return Names()
