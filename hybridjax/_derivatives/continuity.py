"""Does the flow jump, where several events share an instant?"""

import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, PyTree

from .._jax.branch import cond_any, where
from .._loop.tape import Tape
from .._systems.flat import FlatSystem
from .passage import pass_in_order, same_outcome
from .ties import generic, Ties


# So many orders of a corner are compared, at most: few, so that the work is that of the
# derivative itself.
_MAX_ORDERS = 8


def is_discontinuous(system: FlatSystem, tape: Tape, moves: PyTree) -> Bool[Array, ""]:
    """Does the outcome of some instant with several events depend on their order, as
    far as that is one of states and of those leaves of the system that are not `None`
    in `moves`?

    Tried are the reverse order, and each guard first (or some of them, of many). A
    tangent that takes yet another order is checked when it does.
    """
    n_guards = system.n_guards
    if n_guards < 2:
        return jnp.asarray(False)
    leads = tape.leads
    ascending = jnp.arange(n_guards, dtype=jnp.int32)
    tries = min(n_guards, _MAX_ORDERS)

    def differs(i):
        at = lambda buffer: lax.dynamic_index_in_dim(buffer, i, keepdims=False)
        t, x, mode = (
            at(tape.t) + at(tape.dt),
            at(tape.x_pre),
            jtu.tree_map(at, tape.mode),
        )
        members = tape.cluster(system, at(tape.t), at(tape.dt), at(tape.x), mode)
        begins = ascending == at(tape.event)
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
                at(leads),
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
        return at(leads) & lax.fori_loop(0, tries + 1, try_one, init)[1]

    def any_differs():
        def body(carry):
            i, found = carry
            found = found | cond_any(
                leads[i],
                lambda: differs(i),
                lambda: jnp.asarray(False),
            )
            return i + 1, found

        num_rows = eqxi.unvmap_max(tape.num_rows)
        init = (jnp.asarray(0, jnp.int32), jnp.asarray(False))
        return lax.while_loop(lambda c: c[0] < num_rows, body, init)[1]

    return cond_any(leads.any(), any_differs, lambda: jnp.asarray(False))
