"""State estimation across events: Kalman filters and smoothers, particle filters."""

from .._jax.signature import make_readable
from ._kalman_filter import (
    FilterSolution as FilterSolution,
    kalman_filter as kalman_filter,
)
from ._results import RESULTS as RESULTS


make_readable(*list(globals().values()))
