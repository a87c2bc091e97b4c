"""Is there a derivative? Not where the flow jumps, for events share an instant."""

import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from .._jax.branch import cond_any, where
from .._loop.tape import Row, Tape
from .._systems.flat import FlatSystem
from .passage import not_passed, pass_in_order, same_outcome
from .recording import Rows
from .ties import generic, Ties


# So many orders of a corner are compared, at most: few, so that the work is that of the
# derivative itself.
_MAX_ORDERS = 8


def is_differentiable(system: FlatSystem, tape: Tape, moves: PyTree) -> Bool[Array, ""]:
    """Does each event cross its guard, and the outcome of no instant with several
    events depend on their order, as far as that is one of states and of those leaves of
    the system that are not `None` in `moves`?

    Tried are the reverse order, and each guard first of those among which there is a
    choice (or some of them, of many). A tangent that takes yet another order is checked
    when it does.
    """
    n_guards = system.n_guards
    rows, num_rows = Rows(tape, twice=False), eqxi.unvmap_max(tape.num_rows)
    ascending = jnp.arange(n_guards, dtype=jnp.int32)

    def differs(row: Row, leads):
        t, x, mode = row.t + row.dt, row.x_pre, row.mode
        members = tape.cluster(system, row.t, row.dt, row.x, mode)
        begins = ascending == row.event
        tied = Ties(generic(system, t, x, moves), begins)

        def passage(priority):
            return pass_in_order(
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

        def try_one(carry):
            k, first, choice, done, differs = carry
            # In ascending order; in reverse order; and then with each guard that has
            # not been there at the front.
            front = jnp.argmax(choice & ~done).astype(jnp.int32)
            rotated = jnp.mod(ascending - front, n_guards)
            other = passage(jnp.where(k == 1, n_guards - ascending, rotated))
            first = where(k == 0, other, first)
            choice = choice | other.choice
            front = jnp.where(k == 0, jnp.argmax(choice), front)
            done = done | ((ascending == front) & (k != 1))
            allowed = [p.reach.allowed(tape.corner_tol) for p in (first, other)]
            same = same_outcome(first.x, first.mode, other.x, other.mode, sum(allowed))
            return k + 1, first, choice, done, differs | ~same

        def going_on(carry):
            k, _, choice, *_ = carry
            many = jnp.sum(choice.astype(jnp.int32))
            # Two have two orders.
            tries = jnp.where(many > 2, jnp.minimum(many, _MAX_ORDERS) + 1, many)
            return (k == 0) | (k < eqxi.unvmap_max(tries))

        k, none = jnp.asarray(0, jnp.int32), jnp.zeros_like(begins)
        first = not_passed(x, mode, n_guards)
        init = k, first, none, none, jnp.zeros_like(leads)
        return leads & lax.while_loop(going_on, try_one, init)[-1]

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
