"""The simulation as a differentiable function: from inputs to a tape.

The loop of `_loop.py` computes the tape; its derivative replays the tape
(`_replay.py`). The states on the tape are then differentiable, and whatever is made of
them (saved values, event times) is plain JAX.
"""

from collections.abc import Callable

import equinox as eqx
import equinox.internal as eqxi
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._events.project import Project
from .._jax.branch import cond_any, where
from .._jax.convert import convert
from .._jax.tie import tie
from .._loop.landing import LandingLoop
from .._loop.loop import run, Settings
from .._loop.projection import ProjectionLoop
from .._loop.tape import Tape
from .._steps.step import with_gradients
from .._systems.flat import FlatSystem
from .corner import corner_outcome, same_outcome
from .replay import Inputs, push, Recording


@eqx.filter_custom_jvp
def tape_of(
    system: FlatSystem,
    x0,
    t0_shift,
    t1_shift,
    *,
    t0,
    t1,
    mode0,
    settings: Settings,
    compute: Callable,
) -> Tape:
    """Simulates from `(t0, x0, mode0)` to `t1`.

    `t0_shift` and `t1_shift` are zero in value; their tangents are those of `t0` and
    `t1`, which themselves carry none. `compute` is what `traced_once` returns.
    """
    del t0_shift, t1_shift
    tape: Tape = compute(system, x0, t0, t1, mode0, settings)
    # Known only where a derivative is asked for: below, and then for each lane of a
    # batch.
    smooth = tie(tape.smooth, (system, tape))
    return eqx.tree_at(lambda t: t.smooth, tape, smooth)


def traced_once(*inputs) -> Callable:
    """The loop, for inputs such as these, as a function of its own: its derivative asks
    for the tape once more, and JAX need not trace it again."""
    static = eqx.filter(inputs, eqx.is_array, inverse=True)

    def simulate_tape(arrays):
        system, x0, t0, t1, mode0, settings = eqx.combine(arrays, static)
        projects = isinstance(settings.event_method, Project)
        loop = (ProjectionLoop if projects else LandingLoop)(system, t0, t1, settings)
        return run(loop, x0, mode0)

    traced = convert(simulate_tape, eqx.filter(inputs, eqx.is_array))
    return lambda *inputs: traced(eqx.filter(inputs, eqx.is_array))


@tape_of.def_jvp
def _tape_jvp(primals, tangents, **kwargs):
    system = primals[0]
    tape = tape_of(*primals, **kwargs)
    continuous = ~_discontinuous(system, tape)
    transversal = ~jnp.any(tape.fired & (tape.rate == 0))
    tape = eqx.tree_at(lambda t: t.smooth, tape, continuous & transversal)
    recording = Recording(
        system=system,
        tape=tape,
        solver=with_gradients(kwargs["settings"].solver),
    )
    out = push(Inputs(*tangents), recording)
    t_tape = jtu.tree_map(lambda _: None, tape)
    t_tape = eqx.tree_at(
        lambda t: (t.x, t.x_pre, t.x_end, t.t_event, t.t_end),
        t_tape,
        (out.x, out.x_pre, out.x_end, out.t_event, out.t_end),
        is_leaf=lambda leaf: leaf is None,
    )
    return tape, t_tape


# So many orders of a corner are compared, at most: few, so that the work is that of the
# derivative itself.
_MAX_ORDERS = 8


def _discontinuous(system: FlatSystem, tape: Tape) -> Bool[Array, ""]:
    """Does the outcome of some instant with several events depend on their order?

    Tried are the reverse order, and each guard first (or some of them, of many). A
    tangent that takes yet another order is checked when it does.
    """
    n_guards = system.n_guards
    if n_guards < 2:
        return jnp.asarray(False)
    # The first row is no inner one: rolling moves a False to the end.
    inner = tape.inner
    leads = ~inner & jnp.roll(inner, -1)
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

        def outcome(priority):
            return corner_outcome(
                system,
                t,
                x,
                mode,
                priority,
                tape.guard_set_tol,
                at(leads),
                members,
            )

        def try_one(k, carry):
            reference, differs = carry
            rotated = jnp.mod(ascending - (k * n_guards) // tries, n_guards)
            priority = jnp.where(k < tries, rotated, n_guards - ascending)
            other = outcome(priority.astype(jnp.int32))
            # The first one, which is in ascending order, is what the others must be.
            reference = where(k == 0, other, reference)
            same = same_outcome(reference[0], reference[1], other[0], other[1])
            return reference, differs | ~same

        init = ((x, mode), jnp.asarray(False))
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
