from typing import Any

from .._loop.results import (
    call_success_by_name,
    extending,
    RESULTS as SIMULATION,
)


with extending():

    class RESULTS(SIMULATION):  # pyright: ignore[reportGeneralTypeIssues]
        """How a computation of `hj.control` ended: `successful`; with
        `max_iterations_reached`, `no_descent`, `not_positive_definite` or
        `not_converged`; or as the simulation that failed in it. Extends `hj.RESULTS`.
        """

        max_iterations_reached = (
            "The maximum number of iterations was reached. Try increasing "
            "`max_iterations`, or go on from what was found."
        )
        no_descent = (
            "No step reduces the cost, however strongly it is regularised. If the "
            "gradient is small, this is the optimum to rounding: ask for a larger "
            "`rtol`. If it is not, the cost has a kink or a jump here: an event is at "
            "a knot, where a control jumps (`hj.control.with_rates` makes controls "
            "continuous), or appears or vanishes (try another first guess)."
        )
        not_positive_definite = (
            "The Hessian with respect to a control is not positive definite, so that "
            "there is no best control. Give every control a cost: `R` positive "
            "definite, `Q` positive semidefinite."
        )
        not_converged = (
            "No stabilising solution of the periodic Riccati equation was found: what "
            "grows, or stays, along the cycle is beyond the reach of the controls, or "
            "costs nothing."
        )


call_success_by_name(RESULTS)


# Type checkers take the items of an enumeration for strings.
SUCCESS: Any = RESULTS.successful
