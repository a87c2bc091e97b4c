"""A simulation that can be looked at, at any time: a tape, and how to step off it."""

from collections.abc import Callable

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._derivatives.along import along
from .._derivatives.shift_time import shift_time
from .._loop.tape import Tape
from .._steps.method import TangentTolerance, with_gradients
from .._systems.flat import FlatSystem


class Path(eqx.Module):
    """A tape, and what it takes to step off it."""

    tape: Tape
    system: FlatSystem
    solver: dfx.AbstractSolver
    tangent_tol: TangentTolerance | None
    same_time: Float[Array, ""]
    unravel: Callable

    def reaches(self, s) -> Bool[Array, ""]:
        """Whether the simulation got to the time `s`."""
        return s <= self.tape.t_end + self.same_time

    def at(self, s) -> tuple[PyTree, PyTree, Bool[Array, ""]]:
        """State and mode at time `s`: one solver step from the start of its row; and
        whether there are any: where not, they are those of the end.

        A time equal to that of an event up to rounding is after it.
        """
        tape = self.tape
        time = jax.lax.stop_gradient(s)
        ended = time + self.same_time >= tape.t_end
        i = jnp.searchsorted(tape.t, time + self.same_time, side="right") - 1
        i = jnp.clip(i, 0, tape.t.shape[0] - 1)
        pick = lambda buffer, end: jnp.where(ended, end, buffer[i])
        t, x = pick(tape.t, tape.t_end), pick(tape.x, tape.x_end)
        mode = jtu.tree_map(pick, tape.mode, tape.mode_end)
        # Without any row, all is the end.
        begin = jnp.minimum(tape.t[0], tape.t_end)
        reached = self.reaches(time) & (time >= begin - self.same_time)
        # Times from before the row, by rounding, are those of its start. Rows start at
        # fixed times, but the end moves with `t1`.
        start = jax.lax.stop_gradient(t)
        moved = (s - time) - (t - start)
        dt = jnp.where(reached, jnp.maximum(time - start, 0), 0)
        projected = tape.projects & (tape.event[i] >= 0) & ~ended
        euler = x + dt * self.system.flow(start, x, mode) if tape.projects else x
        x_step = along(
            self.system,
            x,
            t=start,
            dt=jnp.where(projected, 0, dt),
            mode=mode,
            solver=with_gradients(self.solver),
            tangent_tol=self.tangent_tol,
            exists=tape.successful & tape.smooth,
        )
        x = jnp.where(projected, euler, x_step)
        x = shift_time(self.system, start + dt, x, mode, jnp.where(reached, moved, 0))
        return self.unravel(x), mode, reached


def nan_unless(exists: Bool[Array, "..."], tree: PyTree) -> PyTree:
    """NaN in all floats, where they do not exist. What is there instead keeps its
    derivative, which after a failure is NaN."""

    def nan(a):
        here = jnp.reshape(exists, exists.shape + (1,) * (a.ndim - exists.ndim))
        return jnp.where(here, jnp.zeros((), a.dtype), jnp.nan).astype(a.dtype)

    add = lambda a: a + nan(a) if jnp.issubdtype(a.dtype, jnp.inexact) else a
    return jtu.tree_map(add, jtu.tree_map(jnp.asarray, tree))
