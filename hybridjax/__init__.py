"""Hybrid dynamical systems in JAX: simulated, and differentiated exactly."""

import importlib.metadata

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
from ._loop.results import RESULTS as RESULTS
from ._rollout import rollout as rollout
from ._simulate import simulate as simulate
from ._solution.event_log import EventLog as EventLog
from ._solution.solution import Solution as Solution
from ._systems.automaton import (
    HybridAutomaton as HybridAutomaton,
    ModalState as ModalState,
    Transition as Transition,
)
from ._systems.event_selected import EventSelectedSystem as EventSelectedSystem
from ._systems.rest import Rest as Rest
from ._systems.system import (
    AbstractHybridSystem as AbstractHybridSystem,
    UNWATCHED as UNWATCHED,
)
from ._systems.with_cost import SystemWithCost as SystemWithCost, with_cost as with_cost


__version__ = importlib.metadata.version("hybridjax")
