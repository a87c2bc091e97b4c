"""Pictures of solutions, by matplotlib: over time, in a plane, of events, moving ones;
and of a derivative with kinks.

`_arcs` reads a solution piece by piece, for all that draw one. Matplotlib is imported
where something is drawn. May import the engine. Begin with `_trajectory.py`.
"""

from .._jax.signature import make_readable
from ._animate import animate as animate
from ._b_derivative import b_derivative as b_derivative
from ._events import events as events
from ._phase import phase as phase
from ._trajectory import trajectory as trajectory


make_readable(*list(globals().values()))
