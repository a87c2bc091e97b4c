"""Rigid bodies that land. May import what `_balls` may, and `_balls`."""
