"""Contacts: kinematics, forces, guards, impacts, and the modes that follow.

`kinematics` says what the contacts look like in a state, `complementarity` solves for
forces and finds out which contacts are active; on these stand `forces`, `guards`,
`impact`, `settling`, `transitions` and `start_contacts`. Their argument `system` is a
`MechanicalSystem`, with parameters of the dtype of the state. May import `_dynamics`
and what is below. Begin with `kinematics.py`.
"""
