"""Hybrid dynamical systems in JAX: simulated, and differentiated exactly."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from ._check_derivative import check_derivative as check_derivative
from ._derivatives.b_derivative import (
    b_derivative as b_derivative,
    BDerivative as BDerivative,
)
from ._derivatives.saltation import saltation_matrix as saltation_matrix
from ._events.locate import Locate as Locate
from ._events.project import Project as Project
from ._jax.compiler_options import compiler_options as compiler_options
from ._jax.errors import SimulationError as SimulationError
from ._jax.signature import make_readable
from ._loop.results import RESULTS as RESULTS
from ._rollout import rollout as rollout
from ._simulate import simulate as simulate
from ._solution.event_log import EventLog as EventLog
from ._solution.segment import Segment as Segment
from ._solution.solution import Solution as Solution
from ._systems.automaton import (
    HybridAutomaton as HybridAutomaton,
    ModalState as ModalState,
    Transition as Transition,
)
from ._systems.event_selected import EventSelectedSystem as EventSelectedSystem
from ._systems.system import (
    AbstractHybridSystem as AbstractHybridSystem,
    UNWATCHED as UNWATCHED,
)
from ._systems.with_cost import SystemWithCost as SystemWithCost, with_cost as with_cost


if TYPE_CHECKING:
    from . import mechanics as mechanics, models as models


__version__ = importlib.metadata.version("hybridjax")

__all__ = [
    "AbstractHybridSystem",
    "b_derivative",
    "BDerivative",
    "check_derivative",
    "compiler_options",
    "EventLog",
    "EventSelectedSystem",
    "HybridAutomaton",
    "Locate",
    "mechanics",
    "ModalState",
    "models",
    "Project",
    "RESULTS",
    "rollout",
    "saltation_matrix",
    "Segment",
    "simulate",
    "SimulationError",
    "Solution",
    "SystemWithCost",
    "Transition",
    "UNWATCHED",
    "with_cost",
]
# Not everybody needs these: they are loaded when somebody does.
_LAZY = ("mechanics", "models")

make_readable(*(globals()[name] for name in __all__ if name not in _LAZY))


def __getattr__(name: str):
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]
