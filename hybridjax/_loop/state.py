"""What an iteration of the loop goes from and to, and what it is made of."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._steps.method import TangentTolerance
from .._steps.step import StepResult
from .results import choose, RESULTS


class Settings(eqx.Module):
    """What the loop needs to know besides the problem."""

    solver: dfx.AbstractSolver
    controller: Any
    dt0: Float[Array, ""] | None
    event_method: Any
    progress_meter: dfx.AbstractProgressMeter
    tangent_tol: TangentTolerance | None
    # The whole interval, where this is a piece of it.
    interval: tuple[Float[Array, ""], Float[Array, ""]]
    # Can times between be told from each other? (Given in another dtype, perhaps.)
    resolved: Bool[Array, ""]
    max_steps: int = eqx.field(static=True)
    max_events: int = eqx.field(static=True)
    # Which guards end the simulation, and after how many firings, if any do.
    terminal: Any = None
    # Times at which a state is asked for, if they were traced: they may be anything.
    unknown_times: tuple[Float[Array, " times"], ...] = ()

    @property
    def adaptive(self) -> bool:
        return isinstance(self.controller, dfx.AbstractAdaptiveStepSizeController)


class Firings(eqx.Module):
    """What is remembered of each guard, to tell an accumulation of its events."""

    last: Float[Array, " n_guards"]  # when it fired last
    gap: Float[Array, " n_guards"]  # the time between that and the firing before
    close: Int[Array, " n_guards"]  # how many in a row could not be told apart


class State(eqx.Module):
    t: Float[Array, ""]
    x: Float[Array, " n"]
    flow: Float[Array, " n"]  # the vector field at (t, x)
    mode: PyTree
    g: Float[Array, " n_guards"]
    rate: Float[Array, " n_guards"]  # dg/dt along the flow
    # Are these three those of here, a boolean? Where it takes long to compile them, the
    # step finds out that begins at the start, or after a jump. Elsewhere they always
    # are, and this is `None`.
    known: Any
    jumped: Bool[Array, ""]  # is this the right limit at an event
    later: Bool[Array, " n_guards"]  # which guards came after the instant of that
    # Step size.
    t_next: Float[Array, ""]  # where the controller wants to go
    controller: PyTree
    guard_dt: Float[Array, ""]  # how far the guards can be foreseen
    approach: PyTree  # what the event method remembers
    firings: Firings
    blurred: Int[Array, ""]  # steps in a row that were too short to judge a guard
    # Steps in a row in which a guard contradicted its rates, since one told too little.
    numb: Int[Array, " n_guards"]
    # Outcome.
    to_fire: Any  # how many firings of a terminal event are left, if there is one
    num_events: Int[Array, ""]
    num_steps: Int[Array, ""]
    num_accepted: Int[Array, ""]
    guard_end: Int[Array, ""]
    result: RESULTS  # pyright: ignore
    done: Bool[Array, ""]


class Attempt(eqx.Module):
    """One solver step, what the controller says of it, and the guards over it."""

    dt: Float[Array, ""]
    t1: Float[Array, ""]
    step: StepResult
    finite: Bool[Array, ""]
    keep: Bool[Array, ""]
    failed: Bool[Array, ""]
    t_next: Float[Array, ""]
    # Where the controller wants the next step to begin, and whether the vector field
    # jumps before that: `None` if it is one that knows of no jumps.
    t_after: Float[Array, ""] | None
    made_jump: Bool[Array, ""] | None
    controller: PyTree
    g: Float[Array, " n_guards"]
    rate: Float[Array, " n_guards"]
    g_check: Float[Array, "points n_guards"]


def select(default: State, *options: tuple[Bool[Array, ""], State]) -> State:
    """The state of the one option that is true, if there is one. What an option has
    from the default is not chosen anew."""
    chosen, treedef = jtu.tree_flatten(default)
    base = list(chosen)
    for pred, option in options:
        leaves = treedef.flatten_up_to(option)
        chosen = [
            old if new is start else jnp.where(pred, new, old)
            for old, new, start in zip(chosen, leaves, base, strict=True)
        ]
    return jtu.tree_unflatten(treedef, chosen)


def first(result, new, happened):
    """`new` where it happened and nothing had gone wrong before."""
    return choose(happened & (result == RESULTS.successful), new, result)
