"""The simulation as a differentiable function: from inputs to a tape.

The loop of `_loop/run.py` computes the tape; its derivative replays the tape
(`replay.py`). The states on the tape are then differentiable, and whatever is made of
them (saved values, event times) is plain JAX.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._events.project import Project
from .._jax.branch import cond_any
from .._jax.convert import convert
from .._jax.tie import tie
from .._loop.landing import LandingLoop
from .._loop.projection import ProjectionLoop
from .._loop.run import run
from .._loop.state import Settings
from .._loop.tape import Tape
from .._steps.method import TangentTolerance, with_gradients
from .._systems.flat import FlatSystem
from .continuity import is_differentiable
from .pull import Pull
from .push import Push
from .recording import AbstractTapeRecording, Inputs, Outputs
from .replay import push


class Recording(AbstractTapeRecording):
    system: FlatSystem
    tape: Tape
    solver: Any
    tangent_tol: TangentTolerance | None

    def push(self, inputs: Inputs, twice: bool) -> Outputs:
        return Push(inputs, self, twice)()

    def pull(self, cts: Outputs, wanted: Inputs, twice: bool) -> Inputs:
        return Pull(cts, wanted, self, twice)()


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
    system, settings = primals[0], kwargs["settings"]
    tape, inputs = tape_of(*primals, **kwargs), Inputs(*tangents)
    smooth = cond_any(
        ~tape.ordinary,
        lambda: is_differentiable(system, tape, inputs.system),
        lambda: tape.smooth,
    )
    tape = eqx.tree_at(lambda t: t.smooth, tape, smooth)
    recording = Recording(
        system=system,
        tape=tape,
        solver=with_gradients(settings.solver),
        tangent_tol=settings.tangent_tol,
    )
    out = push(inputs, recording)
    t_tape = jtu.tree_map(lambda _: None, tape)
    t_tape = eqx.tree_at(
        lambda t: (t.x, t.x_pre, t.x_end, t.t_event, t.t_end),
        t_tape,
        (out.x, out.x_pre, out.x_end, out.t_event, out.t_end),
        is_leaf=lambda leaf: leaf is None,
    )
    return tape, t_tape
