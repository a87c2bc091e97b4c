"""Hybrid dynamical systems in JAX: simulated, and differentiated exactly."""

import importlib.metadata

from ._automaton import (
    HybridAutomaton as HybridAutomaton,
    ModalState as ModalState,
    Transition as Transition,
)
from ._b_derivative import b_derivative as b_derivative, BDerivative as BDerivative
from ._compiler_options import compiler_options as compiler_options
from ._errors import SimulationError as SimulationError
from ._event_selected import EventSelectedSystem as EventSelectedSystem
from ._locate import Locate as Locate
from ._project import Project as Project
from ._results import RESULTS as RESULTS
from ._rollout import rollout as rollout
from ._saltation import saltation_matrix as saltation_matrix
from ._simulate import simulate as simulate
from ._solution import EventLog as EventLog, Solution as Solution
from ._system import (
    AbstractHybridSystem as AbstractHybridSystem,
    UNWATCHED as UNWATCHED,
)
from ._with_cost import SystemWithCost as SystemWithCost, with_cost as with_cost


__version__ = importlib.metadata.version("hybridjax")
