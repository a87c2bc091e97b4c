import dataclasses
import functools
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree, Real

from ._derivatives.shift_time import shift_time
from ._derivatives.simulation import tape_of, traced_once
from ._events.firing import same_time
from ._events.locate import Locate
from ._events.project import Project
from ._events.terminal_event import TerminalEvent
from ._jax.compiler_options import is_outermost, outermost_jit
from ._jax.errors import certify, Verdict
from ._jax.shared import Shared
from ._jax.tracing import as_array, is_traced, nans_allowed, stop_gradient
from ._loop.loop import LEAST_INTERVAL
from ._loop.state import Settings
from ._solution.checkpoints import check_only_end, in_pieces
from ._solution.event_log import event_log
from ._solution.messages import messages
from ._solution.path import Path
from ._solution.save import check_saveat, check_times, save
from ._solution.solution import Solution
from ._solution.stored_path import store
from ._steps.method import (
    check_method,
    default_controller,
    dynamic_tolerances,
    implicit_tolerances,
    tangent_tolerance,
    tolerance,
    without_gradients,
)
from ._steps.rounding import warn_of_rounding
from ._systems.event_selected import EventSelectedSystem
from ._systems.flat import flatten_system
from ._systems.rest import at_tolerance
from ._systems.start import as_time, start
from ._systems.system import AbstractHybridSystem, names_of


def simulate(
    system: AbstractHybridSystem,
    t0: Real[Any, ""],
    t1: Real[Any, ""],
    x0: PyTree,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    solver: dfx.AbstractSolver = dfx.Tsit5(),
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    dt0: Any = None,
    event_method: Locate | Project = Locate(),
    saveat: dfx.SaveAt = dfx.SaveAt(t1=True),
    max_steps: int = 4096,
    max_events: int = 64,
    terminal_event: TerminalEvent | None = None,
    checkpoints: int | None = None,
    tangent_rtol: Any = None,
    progress_meter: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
    throw: bool = True,
) -> Solution:
    """Simulates a hybrid system from `t0` to `t1`.

    Every float of the result is differentiable with respect to `x0`, `t0`, `t1`,
    `args`, the arrays of `system` and whatever its functions close over, in forward and
    in reverse mode. Where several guards fire in one instant, `jax.jvp` gives the
    one-sided (Bouligand) derivative in the direction of the tangent, and `jax.grad`
    that of the order in which the events were recorded.

    **Main arguments:**

    - `system`: a `hj.AbstractHybridSystem`.
    - `t0`, `t1`: start and end of the interval, `t0 <= t1`, in any unit of time.
    - `x0`: initial state, a pytree of floating-point arrays.
    - `mode0`: initial mode: a pytree of integer or boolean arrays, or the name of a
        mode of an automaton. May be left out for an `EventSelectedSystem`.
    - `args`: passed to the functions of the system. Any pytree.
    - `solver`: any diffrax solver for ordinary differential equations.
    - `stepsize_controller`: any diffrax step size controller. Tolerances given as
        floats or as arrays may change without a new compilation. `None` is
        `diffrax.PIDController(rtol=tol, atol=tol)`, with `tol` 1e-8 for states in
        float64, and 1e-5 in float32.
    - `saveat`: a `diffrax.SaveAt`: what to store in `ts`, `xs` and `modes`. Its `ts`
        are in ascending order, from `t0` to `t1`.

    **Other arguments:**

    - `dt0`: first step size, also after each event. `None` lets the controller choose.
        With `diffrax.ConstantStepSize`, the size of all steps: events cut the steps in
        which they happen in two.
    - `event_method`: how events are found: a `hj.Locate`, or for event-
        selected systems a `hj.Project`.
    - `max_steps`: bound on the number of solver steps, rejected ones included. It is
        also the length of the record that derivatives and `saveat` use: in large
        batches, a bound that is not much larger than needed saves time and memory.
    - `max_events`: bound on the number of events, the length of `events`.
    - `terminal_event`: a `hj.TerminalEvent` at which the simulation ends, if
        that is before `t1`: with `RESULTS.event_occurred`, right after the event and
        others of the same instant. `t1` and `x1` of the solution are then the time of
        the event and the state after it, as differentiable functions.
    - `checkpoints`: for gradients of long simulations: the number of equally spaced
        times whose states are kept, from which reverse mode simulates again. The record
        is then that of one piece, from one of these times to the next, and so is
        `max_steps`. Only `SaveAt(t1=True)` is possible, without `evaluate` and without
        a progress meter; the steps begin anew with each piece.
    - `tangent_rtol`: relative error per solver step of derivatives, in forward and in
        reverse mode. A derivative is taken through the steps that were chosen for the
        state, and through shorter ones where its own error there, by the solver's
        embedded estimate, is larger. It cannot be better than the state at which it is
        taken. `None`: steps are kept up to 300 times the controller's `rtol`,
        and shorter ones are taken with ten times that; a controller without tolerances
        is obeyed. Explicit Runge-Kutta methods with an error estimate only.
    - `progress_meter`: a diffrax progress meter.
    - `throw`: whether a failure raises. If not, see `result` of the solution, one per
        lane of a batch; derivatives of failed lanes are NaN.

    **Returns:**

    A `hj.Solution`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument. For
        tolerances and steps that are known to be less than the dtype of the state
        resolves there is a warning.
    - `hj.SimulationError` if `throw` and the simulation failed, with the
        time, the mode and the guard; or if it has no derivative and one was asked for.
    - `NotImplementedError` for a second derivative whose outer one is in reverse mode
        (take `jax.jacfwd(jax.grad(f))`), and for third derivatives.

    ??? cite "Reference"

        Events and saltation: Kong, Payne, Zhu, Johnson, Definition 1 and Equation (2).
        Several events in one instant: Council, Revzen, Burden, Figure 2; Pace, Burden,
        Equation (40). Parameters: Corner, Sandu, Sandu, Equations (21), (23), (26).
    """
    given = stepsize_controller
    controller_in = lambda dtype: default_controller(dtype) if given is None else given
    begin = start(
        *(system, t0, x0, mode0, args),
        t_name="t0",
        x_name="x0",
        mode_name="mode0",
        atol=lambda dtype: tolerance("atol", controller_in(dtype)),
    )
    dtype = begin.t.dtype
    end = as_time(t1, dtype, "t1")
    check_saveat(saveat)
    stepsize_controller = controller_in(dtype)
    check_method(solver, stepsize_controller)
    _check_event_method(event_method, begin.system)
    _check_terminal_event(terminal_event)
    bounds = {"max_steps": max_steps, "max_events": max_events}
    if checkpoints is not None:
        bounds["checkpoints"] = checkpoints
        check_only_end(saveat, progress_meter, terminal_event)
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(
                f"Argument `{name}` must be an integer, but it is a "
                f"{type(value).__name__}."
            )
        if value < 1:
            raise ValueError(
                f"Argument `{name}` must be at least 1, but it is {value}."
            )
    # What was given, as within `jax.jit` all arrays are traced that JAX makes.
    if not is_traced((t0, t1)):
        for name, value in (("t0", t0), ("t1", t1)):
            if not np.isfinite(value):
                raise ValueError(
                    f"Argument `{name}` must be finite, but it is {value}."
                )
        if t1 < t0:
            raise ValueError(_backward(t0, t1))
        if not bool(_resolved(t0, t1, dtype)):
            raise ValueError(_unresolved(t0, t1, dtype))
    unknown_times = check_times(saveat, t0, t1, dtype)
    given_dt0 = dt0
    if dt0 is not None:
        dt0 = as_time(dt0, dtype, "dt0")
        if not is_traced(given_dt0) and not given_dt0 > 0:
            raise ValueError(f"Argument `dt0` must be positive, but it is {given_dt0}.")
    controller = dynamic_tolerances(stepsize_controller, dtype)
    tangent_tol = tangent_tolerance(tangent_rtol, solver, controller, dtype)
    times = (t0, t1)
    warn_of_rounding(stepsize_controller, solver, tangent_rtol, given_dt0, times, dtype)
    solver = implicit_tolerances(solver, controller)
    settings = Settings(
        solver=without_gradients(solver),
        controller=controller,
        dt0=dt0,
        event_method=event_method,
        progress_meter=progress_meter,
        tangent_tol=tangent_tol,
        interval=(begin.t, end),
        resolved=as_array(_resolved(t0, t1, dtype)),
        max_steps=int(max_steps),
        max_events=int(max_events),
        terminal=terminal_event,
        unknown_times=unknown_times,
    )
    problem = (Shared.of((begin.system, args)), begin.t, end, begin.x, begin.mode)
    # What is not traced is not differentiated: then that is not compiled.
    moves = is_traced(t0)
    # A program of its own chooses how it is compiled.
    run = outermost_jit(_simulate) if is_outermost() else _inner()
    with nans_allowed():
        sol, verdict = run(*problem, solver, settings, saveat, checkpoints, moves)
    return certify(sol, verdict, messages(begin.system, bounds)) if throw else sol


@functools.cache
def _inner():
    return eqx.filter_jit(_simulate)


def _simulate(
    shared, t0, t1, x0, mode0, solver, settings, saveat, checkpoints, t0_moves
):
    system, args = shared.tree()

    def piece(t0, t1, x0, mode0):
        return _piece(
            system, t0, t1, x0, mode0, args, solver, settings, saveat, t0_moves
        )

    if checkpoints is None:
        return piece(t0, t1, x0, mode0)
    return in_pieces(piece, t0, t1, x0, mode0, int(checkpoints), settings.max_events)


def _piece(system, t0, t1, x0, mode0, args, solver, settings, saveat, t0_moves):
    settings = stop_gradient(settings)
    start_time, end_time = lax.stop_gradient(t0), lax.stop_gradient(t1)
    system = at_tolerance(system, tolerance("atol", settings.controller))
    flat, x_flat, unravel = flatten_system(system, start_time, x0, mode0, args, solver)
    if settings.terminal is not None:
        terminal = settings.terminal.guards(system, flat.n_guards)
        settings = dataclasses.replace(
            settings, terminal=(jnp.asarray(terminal), settings.terminal.count)
        )
    if t0_moves:
        # To start a little later with the same state is to start in time with the state
        # that flows there.
        x_flat = shift_time(flat, start_time, x_flat, mode0, start_time - t0)
    tape = tape_of(
        flat,
        x_flat,
        t0 - start_time,
        t1 - end_time,
        t0=start_time,
        t1=end_time,
        mode0=mode0,
        settings=settings,
        compute=traced_once(flat, x_flat, start_time, end_time, mode0, settings),
    )
    verdict = Verdict(
        failed=~tape.successful,
        values=(
            tape.result._value,
            tape.t_end,
            tape.mode_end,
            tape.guard_end,
            settings.interval,
        ),
        smooth=tape.smooth,
        twice=tape.smooth_twice,
    )
    x1 = tape.x_end
    if settings.terminal is not None:
        guards, count = settings.terminal
        moved = jnp.where(tape.stopped, _time_of(guards, count, tape), 0)
        t1 = jnp.where(tape.stopped, tape.t_end, t1) + moved
        x1 = shift_time(flat, tape.t_end, x1, tape.mode_end, moved)
    # What comes back to the user holds the rows once.
    tape = eqx.tree_at(lambda t: t.table, tape, ())
    tol = same_time(start_time, end_time)
    path = Path(tape, flat, solver, settings.tangent_tol, tol, unravel)
    ts, xs, modes = save(saveat, path, t0, t1, x0, mode0, args)
    names = names_of(system)
    sol = Solution(
        t0=t0,
        t1=t1,
        # Not as it was given: JAX does not lower a batch of NumPy's in every place.
        x0=jtu.tree_map(jnp.array, x0),
        mode0=mode0,
        ts=ts,
        xs=xs,
        modes=modes,
        x1=unravel(x1),
        mode1=tape.mode_end,
        events=event_log(path, settings.max_events, names),
        stats=dict(
            num_steps=tape.num_steps,
            num_accepted_steps=tape.num_accepted,
            max_steps=settings.max_steps,
            t_end=tape.t_end,
        ),
        result=tape.result,
        _path=store(path, system, start_time, x0, mode0, args, solver),
        _names=names,
    )
    return sol, verdict


def _time_of(guards, count, tape):
    """Zero, with the derivative of the time of that firing of these guards."""
    fired = jnp.cumsum(tape.fired & guards[tape.event])
    t = tape.t_event[jnp.argmax(fired >= count)]
    return t - lax.stop_gradient(t)


def _resolved(t0, t1, dtype):
    """Is the interval empty, or long enough? By the times as they were given."""
    span, largest = t1 - t0, abs(t0) + abs(t1 - t0)
    return (span <= 0) | (
        span >= LEAST_INTERVAL * float(jnp.finfo(dtype).eps) * largest
    )


def _unresolved(t0, t1, dtype) -> str:
    return (
        f"Arguments `t0` and `t1` are {t0} and {t1}, and the state is in {dtype}, "
        "which cannot tell the times between them apart. Measure time from `t0`, and "
        "let the system add it where it needs the time of day; or use a state in "
        "float64."
    )


def _backward(t0, t1) -> str:
    return (
        f"Argument `t1` must not be less than `t0`, but they are {t1} and {t0}. Events "
        "have a direction in time; to simulate backward, reverse the sign of time in "
        "the system."
    )


def _check_terminal_event(terminal_event):
    if terminal_event is None:
        return
    if not isinstance(terminal_event, TerminalEvent):
        raise ValueError(
            "Argument `terminal_event` must be a `hj.TerminalEvent`, such as "
            f"`hj.TerminalEvent(0)`, but it is {terminal_event!r}."
        )
    if jnp.shape(terminal_event.count) != ():
        raise ValueError(
            "Argument `terminal_event` must have one `count`, but its shape is "
            f"{jnp.shape(terminal_event.count)}. For one in each lane of a batch, "
            "use `jax.vmap`."
        )


def _check_event_method(event_method, system):
    if not isinstance(event_method, (Locate, Project)):
        raise ValueError(
            "Argument `event_method` must be a `hj.Locate` or a `hj.Project`, but it "
            f"is a {type(event_method).__name__}."
        )
    if isinstance(event_method, Project) and not isinstance(
        system, EventSelectedSystem
    ):
        raise ValueError(
            "Argument `event_method` can be a `hj.Project` only for a "
            f"`hj.EventSelectedSystem`, but the system is a {type(system).__name__}. "
            "Use `hj.Locate()`."
        )
    if isinstance(event_method, Project) and system.sliding:
        raise ValueError(
            "Argument `event_method` cannot be a `hj.Project` for a system with "
            "`sliding=True`: it passes surfaces, and does not stay on them. Use "
            "`hj.Locate()`."
        )
