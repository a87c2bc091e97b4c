"""What JAX lacks: it knows nothing of hybrid systems.

Here is what fences off the habits of JAX and XLA: functions that are traced once, and
derivatives that are traced only where they are used (`convert`, `deferred`,
`primitives`); branches that stay branches, and small kernels (`branch`, `reduce`,
`pack`); cotangents that stay out of lanes that do not want them (`gate`, `tie`); errors
that a compiled program raises (`errors`); and compiler options. Imports nothing of
hybridjax. Begin with `branch.py`; docs/performance.md says why.
"""
