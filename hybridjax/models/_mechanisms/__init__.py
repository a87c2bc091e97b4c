"""Mechanisms with bilateral constraints. May import all other models."""
