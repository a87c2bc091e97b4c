"""State estimation across events: Kalman filters and smoothers, particle filters."""

from .._jax.signature import make_readable
from ._gaussian_sum_filter import (
    gaussian_sum_filter as gaussian_sum_filter,
    GaussianSumSolution as GaussianSumSolution,
)
from ._kalman_filter import (
    FilterSolution as FilterSolution,
    kalman_filter as kalman_filter,
)
from ._kalman_smoother import (
    kalman_smoother as kalman_smoother,
    SmootherSolution as SmootherSolution,
)
from ._particle_filter import (
    particle_filter as particle_filter,
    ParticleSolution as ParticleSolution,
)
from ._results import RESULTS as RESULTS


make_readable(*list(globals().values()))
