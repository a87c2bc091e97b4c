"""Switched circuits. May import `_systems`."""
