from typing import Any

from .._loop.results import call_success_by_name, extending, RESULTS as SIMULATION


with extending():

    class RESULTS(SIMULATION):  # pyright: ignore[reportGeneralTypeIssues]
        """How an estimation ended: `successful`, or what happened first: a simulation
        that failed, as in `hj.RESULTS`, which this extends; `singular_innovation`; or
        `no_particles`."""

        singular_innovation = (
            "The covariance of an innovation is singular, or not finite: the "
            "measurement noise must have full rank. Argument `measurement_root` needs "
            "linearly independent rows; an entry that was not measured is NaN in `ys`."
        )
        no_particles = (
            "No particle is left: the simulations of all of them failed, or none "
            "explains the measurement. Use more particles, or more noise."
        )


call_success_by_name(RESULTS)

# Type checkers take the items of an enumeration for strings.
SUCCESS: Any = RESULTS.successful
