from typing import Any

from .._jax.errors import certify, Messages, Verdict
from .._loop.results import (
    call_success_by_name,
    extending,
    RESULTS as SIMULATION,
    success_if,
)


with extending():

    class RESULTS(SIMULATION):  # pyright: ignore[reportGeneralTypeIssues]
        """How an analysis ended: as a simulation did on which it rests, `successful` or
        one of the failures of `hj.RESULTS`; or with `section_not_crossed`,
        `not_converged` or `signature_changed`. Extends `hj.RESULTS`."""

        section_not_crossed = (
            "The section was not crossed as often as asked within its `max_time`. "
            "Begin nearer to an orbit, name another event, or give more time."
        )
        not_converged = (
            "The iteration did not converge to a periodic orbit. Begin nearer to one "
            "(a simulation approaches an orbit that is stable), use `num_segments` for "
            "one that is very unstable, or `optimistix.LevenbergMarquardt` as `solver`."
        )
        signature_changed = (
            "There is a periodic orbit, but the sequence of its events and modes is "
            "another one than that of the guess. Look at its `signature`: if it is the "
            "one that is wanted, begin there, and else nearer to the other."
        )


call_success_by_name(RESULTS)


# Type checkers take the items of an enumeration for strings.
SUCCESS: Any = RESULTS.successful


def result_of(sol):
    """The result of a simulation among those of an analysis. A terminal event is
    success."""
    return success_if(sol.successful, RESULTS.promote(sol.result))


def certified(tree, result):
    """Raises a `hj.SimulationError` if the result is a failure."""
    failed = result != RESULTS.successful
    message = lambda value: RESULTS._index_to_message[int(value)]
    return certify(tree, Verdict(failed, result._value), Messages(message))
