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
from ._events.terminal_event import TerminalEvent as TerminalEvent
from ._jax.compiler_options import compiler_options as compiler_options
from ._jax.errors import SimulationError as SimulationError
from ._jax.signature import make_readable
from ._loop.results import RESULTS as RESULTS
from ._rollout import rollout as rollout
from ._simulate import simulate as simulate
from ._solution.comparison import mean_over_successful as mean_over_successful
from ._solution.event_log import EventLog as EventLog
from ._solution.segment import Segment as Segment
from ._solution.solution import Solution as Solution
from ._systems.automaton import (
    HybridAutomaton as HybridAutomaton,
    ModalState as ModalState,
    Transition as Transition,
)
from ._systems.clock import Clock as Clock, PresetTimes as PresetTimes
from ._systems.event_selected import EventSelectedSystem as EventSelectedSystem
from ._systems.rest import Rest as Rest
from ._systems.sampled_data import (
    SampledDataSystem as SampledDataSystem,
    SampledMode as SampledMode,
    SampledState as SampledState,
)
from ._systems.sliding_surface import SlidingSurface as SlidingSurface
from ._systems.system import (
    AbstractHybridSystem as AbstractHybridSystem,
    UNWATCHED as UNWATCHED,
)
from ._systems.with_clocks import (
    ClockedMode as ClockedMode,
    ClockedSystem as ClockedSystem,
    with_clocks as with_clocks,
)
from ._systems.with_cost import SystemWithCost as SystemWithCost, with_cost as with_cost


if TYPE_CHECKING:
    from . import (
        analysis as analysis,
        control as control,
        estimation as estimation,
        mechanics as mechanics,
        models as models,
        plot as plot,
        robots as robots,
    )


__version__ = importlib.metadata.version("hybridjax")

__all__ = [
    "AbstractHybridSystem",
    "analysis",
    "b_derivative",
    "BDerivative",
    "check_derivative",
    "Clock",
    "ClockedMode",
    "ClockedSystem",
    "compiler_options",
    "control",
    "estimation",
    "EventLog",
    "EventSelectedSystem",
    "HybridAutomaton",
    "Locate",
    "mean_over_successful",
    "mechanics",
    "ModalState",
    "models",
    "plot",
    "PresetTimes",
    "Project",
    "Rest",
    "RESULTS",
    "robots",
    "rollout",
    "saltation_matrix",
    "SampledDataSystem",
    "SampledMode",
    "SampledState",
    "Segment",
    "simulate",
    "SimulationError",
    "SlidingSurface",
    "Solution",
    "SystemWithCost",
    "TerminalEvent",
    "Transition",
    "UNWATCHED",
    "with_clocks",
    "with_cost",
]
# Not everybody needs these: they are loaded when somebody does.
_LAZY = (
    "analysis",
    "control",
    "estimation",
    "mechanics",
    "models",
    "plot",
    "robots",
)

make_readable(*(globals()[name] for name in __all__ if name not in _LAZY))


def __getattr__(name: str):
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]
