"""Stability and uncertainty of trajectories with events: monodromy, return maps,
periodic orbits, multipliers, exponents, covariances."""

from .._jax.signature import make_readable
from ._bifurcations import Bifurcation as Bifurcation
from ._continuation import Branch as Branch, continue_orbit as continue_orbit
from ._covariance import (
    propagate_covariance as propagate_covariance,
    Uncertain as Uncertain,
)
from ._floquet import floquet_multipliers as floquet_multipliers
from ._lyapunov import (
    lyapunov_exponents as lyapunov_exponents,
    LyapunovExponents as LyapunovExponents,
    LyapunovState as LyapunovState,
)
from ._monodromy import Monodromy as Monodromy, monodromy as monodromy
from ._periodic_orbit import (
    periodic_orbit as periodic_orbit,
    PeriodicOrbit as PeriodicOrbit,
)
from ._results import RESULTS as RESULTS
from ._return_map import (
    Period as Period,
    Return as Return,
    return_map as return_map,
    Section as Section,
)
from ._signature import Signature as Signature


make_readable(*list(globals().values()))
