import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from .names import Names
from .sliding import INTERSECTION, NO_WAY_ON, Side, Switch
from .system import AbstractSelfStartingSystem, UNWATCHED


class EventSelectedSystem(AbstractSelfStartingSystem):
    r"""A vector field that is chosen by the signs of event functions.

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
    - `sliding`: whether to slide along a surface to which the vector fields on both
        sides lead (Filippov). All surfaces may then be crossed in both directions, at
        any time, so that `rearm` must be `None`.

    With `sliding`, `b[j]` is the sign of event function `j`, or 0 while the state
    slides on its surface. The vector field, which is asked for `b` in {-1, +1}^n only,
    is there

    $$F = (1 - \lambda) F^- + \lambda F^+, \qquad
    \lambda = \frac{\dot h^-}{\dot h^- - \dot h^+},$$

    the mean of those on both sides that keeps $h_j$ at zero, with the rates
    $\dot h^\pm$ of $h_j$ along $F^\pm$. Sliding begins where the surface is met and
    $\dot h^- > 0 > \dot h^+$, and ends where one of the two falls to zero. For a
    while after that `b[j]` is 2 or -2, for +1 or -1: a state that is leaving its
    surface. Each of these changes is an event with the number of the surface; the last
    one, from 2 to 1, changes nothing else. Other surfaces may be crossed meanwhile.
    Derivatives are exact, also of the times at which sliding begins and ends.

    Not supported, and named by the `hj.SimulationError` (`nonfinite_state`
    with `throw=False`): sliding on two surfaces at once, `b` with two zeros; and a
    surface from which both fields lead away, so that there is no unique way on, `b[j]`
    = 3. A start on a surface, with `b[j]` = 0 in `mode0`, is put onto it to all digits,
    along $F^+ - F^-$. Without `mode0` its first event is the entry.

    **Raises:**

    - `ValueError` if `rearm` is no square matrix, or is given together with `sliding`.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*,
        Definition 1. Candidates and re-arming: Anderson, Revzen, *Rapid integrator for
        a class of multi-contact systems*, Section 3.1, where `rearm` is the "guard
        reset matrix". Sliding: Filippov, *Differential equations with discontinuous
        righthand sides*, Section 4, (12).
    """

    vector_field: Callable
    event_functions: Callable
    rearm: Bool[np.ndarray, "n n"] | Bool[Array, "n n"] | None = None
    sliding: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.sliding and self.rearm is not None:
            raise ValueError(
                "Argument `rearm` must be `None` if `sliding`: surfaces on which the "
                "state may slide are always candidates, from both sides."
            )
        if self.rearm is not None:
            shape = jnp.shape(self.rearm)
            if len(shape) != 2 or shape[0] != shape[1]:
                raise ValueError(
                    "Argument `rearm` must be a square boolean matrix with one row and "
                    f"one column per event function, but its shape is {shape}."
                )

    def flow(self, t, x, mode, args):
        if self.sliding:
            return self._switch(args).flow(t, x, mode)
        return self.vector_field(t, x, mode, args)

    def guards(self, t, x, mode, args):
        if self.sliding:
            return self._switch(args).guards(t, x, mode)
        h = self._surfaces(t, x, args)
        if self.rearm is None:
            crossed = jnp.where((mode > 0).all(), h, UNWATCHED)
        else:
            crossed = UNWATCHED
        return jnp.where(mode < 0, -h, crossed)

    def jump(self, t, x, mode, event, args):
        if self.sliding:
            return self._switch(args).jump(t, x, mode, event)
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
        if self.sliding:
            return self._switch(args).sides(t, x)
        h = self._surfaces(t, x, args)
        return jnp.where(h > 0, 1, -1).astype(jnp.int32)

    def start(self, t, x, mode, args):
        if mode is None:
            return x, self.initial_mode(t, x, args)
        if self.sliding:
            return self._switch(args).start(t, x, jnp.asarray(mode))
        return x, mode

    @property
    def naming(self) -> Names:
        return _NamesOfSides() if self.sliding else Names()

    def _surfaces(self, t, x, args):
        h = jnp.asarray(self.event_functions(t, x, args))
        if h.ndim != 1:
            raise ValueError(
                "Argument `event_functions` must return a vector of shape (n,), but "
                f"it returned shape {h.shape}."
            )
        return h

    def _switch(self, args) -> Switch:
        def fields(t, x, sides):
            at = lambda side: jnp.where(sides == Side.ON, side, jnp.sign(sides))
            field = lambda side: self.vector_field(t, x, at(side), args)
            return field(-1), field(1)

        return Switch(fields, lambda t, x: self._surfaces(t, x, args))


@dataclasses.dataclass(frozen=True)
class _NamesOfSides(Names):
    """Says why surfaces on which the state slides may be the end."""

    def mode_in_message(self, mode) -> str:
        b = np.asarray(mode)
        text = str(b.tolist())
        on, lost = np.flatnonzero(b == Side.ON), np.flatnonzero(b == Side.LOST)
        if len(on) > 1:
            text += f" (surfaces {_listed(on)} intersect: {INTERSECTION})"
        for j in lost:
            text += f" (surface {j}: {NO_WAY_ON})"
        return text


def _listed(numbers) -> str:
    return " and ".join(str(j) for j in numbers)
