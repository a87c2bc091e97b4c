"""One step of a solver, forward and back.

Steps of diffrax's solvers, with stages of our own for explicit methods (`stages`), and
what a user may pass as solver and step size controller (`method`). May import `_events`
and what is below. Begin with `step.py`.
"""
