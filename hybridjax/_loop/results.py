from typing import Any

import diffrax as dfx


class RESULTS(dfx.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """How a simulation ended: `successful`, `max_steps_reached`,
    `max_events_reached`, `zeno`, `grazing`, `not_live`, `nonfinite_state`,
    `dt_min_reached`, `invalid_interval`, `unresolved_interval` or `invalid_times`.
    Extends [`diffrax.RESULTS`][]."""

    max_events_reached = (
        "The maximum number of events was reached. Try increasing `max_events`."
    )
    zeno = (
        "Events accumulate: the same guard fires again and again in gaps that the time "
        "cannot resolve. If motion dies down (a ball coming to rest), say which mode "
        "that leads to, by `hj.Transition(..., rest=hj.Rest(...))`; with a "
        "`MechanicalSystem`, raise its `rest_speed`. If the flow leads to a surface "
        "from both sides, add a mode for sliding, and a transition into it. If the "
        "guard is a clock, see that its reset sets it back by a whole period, and that "
        "a period is far above the rounding errors of the time: else simulate shorter "
        "intervals, that begin near zero, or in float64."
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
        "on both sides leads to the surface, the system needs a mode for sliding on it."
    )
    nonfinite_state = (
        "The vector field, a guard or a reset returned NaN or infinity. Check them at "
        "the time, mode and state where this happened."
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


def choose(pred, a: Any, b: Any) -> Any:
    """`RESULTS.where`; type checkers take the items of an enumeration for strings."""
    return RESULTS.where(pred, a, b)
