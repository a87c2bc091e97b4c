"""Control across events: linearisation, Riccati equations, tracking, trajectory
optimisation, model predictive control."""

from .._jax.signature import make_readable
from ._differential_riccati import (
    differential_riccati as differential_riccati,
    DifferentialRiccati as DifferentialRiccati,
)
from ._ilqr import ilqr as ilqr, ILQRLog as ILQRLog, ILQRSolution as ILQRSolution
from ._linearize import Linearization as Linearization, linearize as linearize
from ._mpc import mpc_step as mpc_step
from ._results import RESULTS as RESULTS
from ._riccati import (
    periodic_riccati as periodic_riccati,
    Riccati as Riccati,
    riccati as riccati,
)
from ._track import (
    extend_reference as extend_reference,
    ExtendedReference as ExtendedReference,
    track as track,
    Tracking as Tracking,
    tracking_lqr as tracking_lqr,
    TrackingLQR as TrackingLQR,
)
from ._with_rates import SystemWithRates as SystemWithRates, with_rates as with_rates


make_readable(*list(globals().values()))
