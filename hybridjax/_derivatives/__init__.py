"""From a tape to derivatives.

`simulation` is the differentiable function from inputs to a tape; `replay` the pair of
primitives that its derivative is made of, `push` and `pull` what they do row by row. At
one event the rule is in `saltation`, at several in one instant in `corner`; `passage`
and `continuity` try their orders. `b_derivative`, `corner_point`, `triangulation` are
the same rules as an object to look at. May import `_loop` and what is below. Begin with
`simulation.py`.
"""
