"""Control across events: linearisation, Riccati equations, tracking, trajectory
optimisation, model predictive control."""

from .._jax.signature import make_readable


make_readable(*list(globals().values()))
