"""Piecewise smooth vector fields. May import `_systems`."""
