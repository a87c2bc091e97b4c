"""Masses, forces and bilateral constraints, without contacts.

May import `_systems` and `_jax`. Begin with `multibody.py`.
"""
