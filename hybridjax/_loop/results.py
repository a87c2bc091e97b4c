import contextlib
import warnings
from typing import Any

import diffrax as dfx


class RESULTS(dfx.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """How a simulation ended: `successful`; `event_occurred`, at a terminal event; or
    in a failure: `max_steps_reached`, `max_events_reached`, `zeno`, `grazing`,
    `not_live`, `nonfinite_state`, `dt_min_reached`, `invalid_interval`,
    `unresolved_interval` or `invalid_times`. Extends `diffrax.RESULTS`."""

    max_events_reached = (
        "The maximum number of events was reached. Try increasing `max_events`."
    )
    zeno = (
        "Events accumulate: the same guard fires again and again in gaps that the time "
        "cannot resolve. If motion dies down (a ball coming to rest), say which mode "
        "that leads to, by `hj.Transition(..., rest=hj.Rest(...))`; with a "
        "`MechanicalSystem`, raise its `rest_speed`. If the flow leads to a surface "
        "from both sides, let it slide: `hj.EventSelectedSystem(..., sliding=True)`, "
        "or a `hj.SlidingSurface` between two modes of an automaton. If the guard is a "
        "clock, make it one by `hj.with_clocks`, and see that a period is far above "
        "the rounding errors of the time: else simulate shorter intervals, that begin "
        "near zero, or in float64."
    )
    grazing = (
        "A guard is touched tangentially: its rate of change vanishes where it is "
        "zero. Whether the event happens depends on rounding, and the derivative does "
        "not exist there."
    )
    not_live = (
        "An event function does not increase through zero (the system is not live "
        "there): the flow stops at its surface, touches it, or leads back to it from "
        "beyond, so that `hj.Project` cannot pass it. Use `hj.Locate()`; if the flow "
        "on both sides leads to the surface, with `EventSelectedSystem(sliding=True)`."
    )
    nonfinite_state = (
        "The vector field, a guard or a reset returned NaN or infinity (or, with an "
        "implicit solver, the Jacobian of the vector field). Check them, and their "
        "parameters, at the time, mode and state where this happened."
    )
    # Of times that are traced; others raise a `ValueError` in any case.
    invalid_interval = (
        "Argument `t1` must not be less than `t0`, and both must be finite. Events "
        "have a direction in time; to simulate backward, reverse the sign of time in "
        "the system."
    )
    invalid_times = (
        "Argument `saveat` must have its `ts` between `t0` and `t1`, in ascending "
        "order. Sort them, leave out those that are not, or simulate for longer; with "
        "times that differ from lane to lane, `jnp.minimum(ts, t1)`."
    )
    unresolved_interval = (
        "Arguments `t0` and `t1` are so near each other, for their size, that times "
        "between them cannot be told apart in the dtype of the state. Measure time "
        "from `t0`, and let the system add it where it needs the time of day; or use a "
        "state in float64."
    )


def call_success_by_name(results: Any):
    """In diffrax, its message is the empty string."""
    results._index_to_message[results.successful._value] = "successful"


call_success_by_name(RESULTS)


@contextlib.contextmanager
def extending():
    """A context in which to extend this enumeration; then, `call_success_by_name`."""
    with warnings.catch_warnings():
        # Of messages of one item that differ, as this one's and that of diffrax.
        warnings.filterwarnings("ignore", "Enumeration has duplicate", UserWarning)
        yield


def result_name(index) -> str:
    """The name of a result, of which the number is known."""
    items = RESULTS._name_to_item.items()
    return next(name for name, item in items if item._value == index)


def choose(pred, a: Any, b: Any) -> Any:
    """`where` of the enumeration of two results; type checkers take its items for
    strings."""
    return a._enumeration.where(pred, a, b)


def success_if(flag, failure: Any) -> Any:
    return choose(flag, failure._enumeration.successful, failure)


def first_failure(*results: Any) -> Any:
    """The first that is no success, if there is one."""
    *before, last = results
    for result in reversed(before):
        last = choose(result == result._enumeration.successful, last, result)
    return last
