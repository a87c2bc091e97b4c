import warnings

from .._loop.results import RESULTS as SIMULATION_RESULTS


with warnings.catch_warnings():
    # The message of `successful` is another one than in diffrax.
    warnings.simplefilter("ignore")

    class RESULTS(SIMULATION_RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
        """How a computation of `hj.control` ended: `successful`, or
        `max_iterations_reached`, `no_descent`, `not_positive_definite`, `not_converged`; or
        as the simulation that failed in it. Extends `hj.RESULTS`."""

        max_iterations_reached = (
            "The maximum number of iterations was reached. Try increasing "
            "`max_iterations`; or go on from what was found."
        )
        no_descent = (
            "No step reduces the cost, however strongly it is regularised. If the gradient "
            "is small, this is the optimum to rounding: ask for a larger `rtol`, or for "
            "smaller tolerances of the simulation. Else the cost jumps here, as where an "
            "event appears or vanishes: try another first guess."
        )
        not_positive_definite = (
            "The Hessian with respect to a control is not positive definite, so that there "
            "is no best control. Give every control a cost: `R` positive definite, `Q` "
            "positive semidefinite."
        )
        not_converged = (
            "The periodic Riccati equation has no stabilising solution that was found: "
            "what grows, or stays, along the cycle is beyond the reach of the controls, or "
            "costs nothing."
        )


# As there.
RESULTS._index_to_message[RESULTS.successful._value] = "successful"  # pyright: ignore
