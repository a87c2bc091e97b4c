from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ._system import AbstractHybridSystem, UNWATCHED


class EventSelectedSystem(AbstractHybridSystem):
    """A vector field that is chosen by the signs of event functions.

    The flow is `vector_field(t, x, b, args)` with `b` in {-1, +1}^n, and `b[j]` changes
    from -1 to +1 when `event_functions(t, x, args)[j]` increases through zero. The
    state does not jump. The mode of this system is `b`, an integer vector.

    **Arguments:**

    - `vector_field`: callable `(t, x, b, args) -> dx/dt`.
    - `event_functions`: callable `(t, x, args) -> (n,)`, each entry increasing through
        zero along the flow.
    - `rearm`: boolean matrix of shape `(n, n)`, or `None`. `rearm[i, j]` says that
        crossing `i` makes `j` a candidate again (sets `b[j] = -1`). `None` re-arms
        nothing: every surface is crossed at most once.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*,
        Definition 1.
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
        return jnp.where(mode < 0, -h, UNWATCHED)

    def jump(self, t, x, mode, event, args):
        crossed = jnp.arange(mode.shape[0]) == event
        b: Int[Array, " n"] = jnp.where(crossed, 1, mode)
        if self.rearm is not None:
            b = jnp.where(jnp.asarray(self.rearm)[event], -1, b)
        return x, b.astype(mode.dtype)

    def initial_mode(self, t, x, args) -> PyTree:
        """The signs of the event functions (+1 where zero and not yet crossed is not
        known: a surface that is exactly at zero counts as still to be crossed)."""
        h = jnp.asarray(self.event_functions(t, x, args))
        return jnp.where(h > 0, 1, -1).astype(jnp.int32)
