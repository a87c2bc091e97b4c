"""What a hybrid system is: modes, guards and resets, as users write them and as the
engine carries them.

Users see `system`, `automaton`, `rest`, `event_selected`, `with_cost`, `with_clocks`,
`sampled_data`; the engine sees a `FlatSystem`, whose state is one vector and whose
parameters are leaves. `start` brings what a user passed into that form. May import
`_jax`. Begin with `system.py`, then `flat.py`.
"""
