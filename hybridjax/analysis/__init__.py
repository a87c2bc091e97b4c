"""Stability and uncertainty of trajectories with events: monodromy, return maps,
periodic orbits, multipliers, exponents, covariances."""

from .._jax.signature import make_readable


make_readable(*list(globals().values()))
