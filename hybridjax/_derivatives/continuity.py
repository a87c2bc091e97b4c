"""Is there a derivative? Not where the flow jumps, for events share an instant."""

import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from .._jax.branch import cond_any, where
from .._loop.tape import Row, Tape
from .._systems.flat import FlatSystem
from .passage import pass_in_order, same_outcome
from .recording import Rows
from .ties import generic, Ties


# So many orders of a corner are compared, at most: few, so that the work is that of the
# derivative itself.
_MAX_ORDERS = 8


def is_differentiable(system: FlatSystem, tape: Tape, moves: PyTree) -> Bool[Array, ""]:
    """Does each event cross its guard, and the outcome of no instant with several
    events depend on their order, as far as that is one of states and of those leaves of
    the system that are not `None` in `moves`?

    Tried are the reverse order, and each guard first (or some of them, of many). A
    tangent that takes yet another order is checked when it does.
    """
    n_guards = system.n_guards
    rows, num_rows = Rows(tape, twice=False), eqxi.unvmap_max(tape.num_rows)
    ascending = jnp.arange(n_guards, dtype=jnp.int32)
    tries = min(n_guards, _MAX_ORDERS)

    def differs(row: Row, leads):
        t, x, mode = row.t + row.dt, row.x_pre, row.mode
        members = tape.cluster(system, row.t, row.dt, row.x, mode)
        begins = ascending == row.event
        tied = Ties(generic(system, t, x, moves), begins)

        def outcome(priority):
            passage = pass_in_order(
                system,
                t,
                x,
                mode,
                priority,
                tied,
                tape.guard_set_tol,
                tape.same_time,
                leads,
                members,
            )
            allowed = passage.reach.allowed(tape.corner_tol)
            return passage.x, passage.mode, allowed

        def try_one(k, carry):
            reference, differs = carry
            rotated = jnp.mod(ascending - (k * n_guards) // tries, n_guards)
            priority = jnp.where(k < tries, rotated, n_guards - ascending)
            other = outcome(priority.astype(jnp.int32))
            # The first one, which is in ascending order, is what the others must be.
            reference = where(k == 0, other, reference)
            (x_0, mode_0, allowed_0), (x_k, mode_k, allowed_k) = reference, other
            same = same_outcome(x_0, mode_0, x_k, mode_k, allowed_0 + allowed_k)
            return reference, differs | ~same

        init = ((x, mode, jnp.zeros_like(x)), jnp.asarray(False))
        return leads & lax.fori_loop(0, tries + 1, try_one, init)[1]

    def body(carry):
        i, exists, fired = carry
        row, next_ = rows.unpack_pair(rows.read_pair(i))
        inner, fired = row.inner(fired), row.event >= 0
        exists = exists & ~row.turns
        # One guard has one order only.
        if n_guards > 1:
            more = next_.inner(fired) & (i + 1 < num_rows)
            leads = fired & ~inner & (row.shared | more)
            exists = exists & ~cond_any(
                leads, lambda: differs(row, leads), lambda: jnp.asarray(False)
            )
        return i + 1, exists, fired

    true = jnp.asarray(True)
    init = (jnp.asarray(0, jnp.int32), true, ~true)
    return lax.while_loop(lambda c: c[0] < num_rows, body, init)[1]
