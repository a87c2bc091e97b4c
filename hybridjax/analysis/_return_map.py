"""From one point of a trajectory to the one where it closes, if it is periodic."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._events.terminal_event import TerminalEvent
from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._loop.results import first_failure, RESULTS as SIMULATION, success_if
from .._simulate import simulate
from .._solution.path import nan_unless
from .._solution.solution import Solution
from .._systems.start import as_time, Start, start
from .._systems.system import AbstractHybridSystem
from ._results import certified, result_of, RESULTS
from ._signature import least_normal_speed, Signature


class Section(eqx.Module):
    """A Poincaré section: where a guard fires. The motion returns to the state right
    after its `count`-th firing.

    The system must be autonomous, or periodic in time with a period that is none of the
    motion: a return says nothing of the phase of what drives it. (For such systems, see
    `hj.analysis.Period`.)

    **Arguments:**

    - `event`: number of the guard, or several of which any counts, or the names
        `(source, target)` of the modes of a transition: as for `hj.TerminalEvent`.
    - `count`: how often it fires in a period.
    - `max_time`: within which time, in the system's unit.

    **Raises:**

    - `ValueError` as `hj.TerminalEvent`, or if `max_time` is not positive.
    """

    terminal: TerminalEvent
    max_time: Any

    def __init__(self, event: Any, count: Any = 1, *, max_time: Any):
        if not is_traced(max_time) and not np.all(np.asarray(max_time) > 0):
            raise ValueError(
                f"Argument `max_time` must be positive, but it is {max_time}."
            )
        self.terminal = TerminalEvent(event, count)
        self.max_time = max_time


class Period(eqx.Module):
    """The motion returns after a period.

    **Arguments:**

    - `value`: the period, in the system's unit of time; of an autonomous system, a
        guess of it.
    - `autonomous`: whether the period is unknown. If not, the system depends on time
        with this period, or with a part of it.

    **Raises:**

    - `ValueError` if `value` is not positive.
    """

    value: Any
    autonomous: bool = eqx.field(static=True)

    def __init__(self, value: Any, *, autonomous: bool = False):
        if not is_traced(value) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"Argument `value` must be positive, but it is {value}.")
        self.value = value
        self.autonomous = autonomous


class Return(eqx.Module):
    """What `hj.analysis.return_map` returns.

    **Attributes:**

    - `x`, `mode`: state and mode at the return; right after the event of a section.
    - `time`: how long it took, in the system's unit of time.
    - `signature`: the events on the way, a `hj.analysis.Signature`.
    - `normal_speed`: the least $|\\mathrm dg/\\mathrm dt|$ at which one of their guards
        was passed, infinite if there were none. Derivatives grow like one over it.
    - `solution`: the `hj.Solution`.
    - `result`: a `hj.analysis.RESULTS`. After a failure, `x` is NaN.
    """

    x: PyTree
    mode: PyTree
    time: Float[Array, ""]
    signature: Signature
    normal_speed: Float[Array, ""]
    solution: Solution
    result: RESULTS


def return_map(
    system: AbstractHybridSystem,
    until: Section | Period,
    x0: PyTree,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    t0: Any = 0.0,
    wrap: Callable[[PyTree], PyTree] | None = None,
    throw: bool = True,
    **options: Any,
) -> Return:
    """The Poincaré map: from one firing of an event to the next, or to the k-th; or
    over a period.

    Differentiable with respect to `x0`, `args`, and the arrays of `system`, as
    `hj.simulate` is. Of a section, `x` is the state at the moving time of the return:
    its derivative by `x0` has no part along the flow.

    **Arguments:**

    - `system`, `x0`, `mode0`, `args`: as for `hj.simulate`.
    - `until`: a `hj.analysis.Section` or a `hj.analysis.Period`.
    - `t0`: when it starts.
    - `wrap`: takes the state at the return to the one that is compared with the start,
        for motions that are periodic but for a symmetry: it may take away the distance
        that a robot has walked.
    - `throw`: whether a failure raises. If not, see `result`.
    - `options`: passed to `hj.simulate`.

    **Returns:**

    A `hj.analysis.Return`.

    **Raises:**

    - `ValueError` for arguments that cannot be used.
    - `hj.SimulationError` if `throw` and there is no return.
    """
    begin = started(system, until, t0, x0, mode0, args)
    out = in_one_program(returned, begin, until, args, wrap, options)
    return certified(out, out.result) if throw else out


def started(system, until, t0, x0, mode0, args) -> Start:
    if not isinstance(until, (Section, Period)):
        raise ValueError(
            "Argument `until` must be a `hj.analysis.Section` or a "
            f"`hj.analysis.Period`, but it is a {type(until).__name__}."
        )
    return start(
        system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
    )


def returned(begin: Start, until, args, wrap, options) -> Return:
    """Without checks."""
    dtype = begin.t.dtype
    here = begin.system, begin.t
    there = begin.x, begin.mode, args
    if isinstance(until, Section):
        end = begin.t + as_time(until.max_time, dtype, "max_time")
        sol = simulate(
            *here, end, *there, terminal_event=until.terminal, throw=False, **options
        )
        time = sol.t1 - begin.t
    else:
        time = as_time(until.value, dtype, "value")
        sol = simulate(*here, begin.t + time, *there, throw=False, **options)
    result = result_of(sol)
    if isinstance(until, Section):
        crossed = sol.result != SIMULATION.successful
        result = first_failure(success_if(crossed, RESULTS.section_not_crossed), result)
    x = sol.x1 if wrap is None else wrap(sol.x1)
    return Return(
        x=nan_unless(result == RESULTS.successful, x),
        mode=sol.mode1,
        time=time,
        signature=Signature.of(sol),
        normal_speed=least_normal_speed(sol),
        solution=sol,
        result=result,
    )
