"""What users get: the solution, its event log, and values at any time.

`path` steps off the tape, `event_log` and `save` read it, `checkpoints` joins the
solutions of pieces, `messages` says what went wrong. May import `_derivatives` and what
is below. Begin with `solution.py`.
"""
