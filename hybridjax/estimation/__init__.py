"""State estimation across events: Kalman filters and smoothers, particle filters."""

from .._jax.signature import make_readable


make_readable(*list(globals().values()))
