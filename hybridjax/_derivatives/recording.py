"""What the replay of a tape is given, what it returns, and how it reads the rows."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._jax.pack import Packer
from .._jax.primitives import wanted_of
from .._loop.tape import Row, Tape
from .._steps.method import TangentTolerance
from .._steps.stages import explicit_tableau
from .._systems.flat import FlatSystem


class Inputs(eqx.Module):
    """Tangents or cotangents of what a simulation depends on; `None` where zero."""

    system: PyTree  # like FlatSystem
    x0: Float[Array, " n"] | None
    t0: Float[Array, ""] | None
    t1: Float[Array, ""] | None


class Outputs(eqx.Module):
    """Tangents or cotangents of what a simulation returns; `None` where zero."""

    x: Float[Array, "rows n"] | None
    x_pre: Float[Array, "rows n"] | None
    x_end: Float[Array, " n"] | None
    t_event: Float[Array, " rows"] | None
    t_end: Float[Array, ""] | None


class AbstractRecording(eqx.Module):
    """What `replay` is given: all that one must know to push and to pull. For a second
    derivative, the system and the states in it carry a tangent themselves."""

    system: eqx.AbstractVar[FlatSystem]
    solver: eqx.AbstractVar[Any]
    # The errors that tangents may have, or `None` if they are not looked at.
    tangent_tol: eqx.AbstractVar[TangentTolerance | None]

    @property
    @abc.abstractmethod
    def end(self) -> tuple[Float[Array, ""], Float[Array, " n"]]:
        """Time and state at the end."""

    @abc.abstractmethod
    def push(self, inputs: Inputs, twice: bool) -> Outputs:
        """With `twice`, in a form that can be differentiated with respect to what is
        recorded."""

    @abc.abstractmethod
    def pull(self, cts: Outputs, wanted: Inputs, twice: bool) -> Inputs:
        """`wanted` has `True` where a cotangent is asked for, `None` elsewhere."""

    @abc.abstractmethod
    def like_outputs(self) -> Outputs:
        """Something of the shape of what is pushed out."""

    @property
    @abc.abstractmethod
    def smooth_twice(self) -> Bool[Array, ""]:
        """Where it is not, second derivatives are NaN."""

    def split(self, wanted: Inputs) -> tuple[PyTree, PyTree]:
        """The part of the system of which cotangents are wanted, and the rest."""
        treedef = jtu.tree_structure(self.system)
        mask = [w is not None for w in treedef.flatten_up_to(wanted.system)]
        return eqx.partition(self.system, jtu.tree_unflatten(treedef, mask))

    def like_inputs(self, wanted: Inputs) -> Inputs:
        t, x = self.end
        like = Inputs(self.system, x, t, t)
        return wanted_of(wanted, like)


class AbstractTapeRecording(AbstractRecording):
    """Of a whole simulation."""

    tape: eqx.AbstractVar[Tape]

    @property
    def end(self):
        return self.tape.t_end, self.tape.x_end

    @property
    def differentiable(self) -> Bool[Array, ""]:
        """Where it is not, derivatives are NaN."""
        return self.tape.successful & self.tape.smooth

    @property
    def smooth_twice(self):
        return self.differentiable & self.tape.smooth_twice

    def duration(self, row) -> Float[Array, ""]:
        """For how long a row flows; its Euler step, if it has one, is another thing."""
        flows = ~(self.tape.projects & (row.event >= 0))
        if explicit_tableau(self.solver) is None:
            # Where it failed there may be no solution either: see `flow_for`.
            flows = flows & self.tape.successful
        return jnp.where(flows, row.dt, 0)

    def like_outputs(self) -> Outputs:
        tape = self.tape
        return Outputs(tape.x, tape.x_pre, tape.x_end, tape.t_event, tape.t_end)


class Rows:
    """Reads the rows of a tape: each is a single operation."""

    def __init__(self, tape: Tape, twice: bool):
        rows = Row(
            tape.t,
            tape.dt,
            tape.rate,
            tape.x,
            tape.x_pre,
            tape.mode,
            tape.event,
            tape.inside,
            tape.shared,
        )
        self._packer = Packer(jtu.tree_map(lambda buffer: buffer[0], rows))
        # What was written down carries no tangent.
        self._table = jax.vmap(self._packer.pack)(rows) if twice else tape.table

    def read_pair(self, i):
        """Row `i` and the one after it."""
        size = self._table[0].shape[0]
        begin = jnp.minimum(i, max(size - 2, 0))
        read = lambda table: lax.dynamic_slice_in_dim(table, begin, min(size, 2))
        return i - begin, tuple(read(table) for table in self._table)

    def read(self, index: Int[Array, " several"]) -> Row:
        """Several rows."""
        return self._packer.unpack(tuple(table[index] for table in self._table))

    def unpack_pair(self, pair) -> tuple[Row, Row]:
        """If there is no row after it, the second is any other."""
        at, entries = pair
        here = self._packer.unpack(tuple(entry(two, at) for two in entries))
        return here, self._packer.unpack(tuple(two[-1] for two in entries))


def entry(buffer, i):
    return lax.dynamic_index_in_dim(buffer, i, keepdims=False)


def poison(out: PyTree, asked: Bool[Array, ""], exists: Bool[Array, ""]) -> PyTree:
    """NaN in all that a derivative puts out, where none exists: also in what no tangent
    reaches, forward as in reverse. But where it is not `asked` for, because the
    tangents or cotangents that it is given are zero, it is zero: a loss that leaves a
    lane out does not see it."""
    none = jnp.where(asked, jnp.nan, 0)
    fill = lambda d: jnp.where(exists, d, none.astype(d.dtype))
    return jtu.tree_map(fill, out)
