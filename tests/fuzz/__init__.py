"""Random hybrid systems, compared with references that share no code with the library.

`python -m tests.fuzz --help` says how to run it. `test_fuzz.py` is the short part.
"""
