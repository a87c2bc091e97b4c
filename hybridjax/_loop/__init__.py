"""The event loop: from a system and a start to a tape.

`run` goes round; `loop` has what all event methods share in one iteration, `landing` is
the state machine of `Locate`, `projection` that of `Project`; `state` goes from
iteration to iteration, and `tape` is what they write down. May import `_steps` and what
is below. Begin with `run.py`, then `landing.py`.
"""
