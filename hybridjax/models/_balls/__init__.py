"""Balls and points that bounce. May import `_systems`, `mechanics` and `_fields`."""
