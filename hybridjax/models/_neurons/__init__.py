"""Neurons."""
