"""What users get: the solution, its event log, and values at any time.

`path` steps off the tape, `stored_path` is one that can be pickled; `event_log` and
`save` read the tape, `segment` cuts it at events; `checkpoints` joins the solutions of
pieces, `summary` prints one, `html` shows one in a notebook, `messages` says what went
wrong. May import `_derivatives` and what is below. Begin with `solution.py`.
"""
