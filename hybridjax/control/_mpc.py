from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from .._jax.compiler_options import in_one_program
from .._systems.system import AbstractHybridSystem
from ._ilqr import ilqr, ILQRSolution


def mpc_step(
    system: AbstractHybridSystem,
    plan: ILQRSolution,
    x: PyTree,
    mode: PyTree,
    running: Callable,
    terminal: Callable,
    *,
    shift: int = 1,
    max_iterations: int = 3,
    **options: Any,
) -> ILQRSolution:
    """One step of model predictive control: the plan from what was measured, warm.

    The plan before is shifted by the intervals that have passed, its last control is
    held for as many more, and a few iterations of `hj.control.ilqr` make it the plan
    from the state that was measured. Apply `us[0]`, or `us[0] + K[0] @ dx` within the
    interval. One program; it is compiled once, whatever the state and the plan.

    !!! example

        ```python
        plan = hj.control.ilqr(system, ts, x, mode, us, running, terminal)
        while True:
            x, mode = measure_after_applying(plan.us[0])
            plan = hj.control.mpc_step(system, plan, x, mode, running, terminal)
        ```

    **Arguments:**

    - `system`, `running`, `terminal`: as in `hj.control.ilqr`.
    - `plan`: what that, or this, returned before.
    - `x`, `mode`: state and mode at the knot `plan.ts[shift]`.
    - `shift`: how many intervals have passed since the plan began.
    - `max_iterations`: as in `hj.control.ilqr`. So few seldom reach an optimum:
        `RESULTS.max_iterations_reached` is what to expect, and no failure.
    - `options`: as in `hj.control.ilqr`.

    **Returns:**

    A `hj.control.ILQRSolution`.

    **Raises:**

    - `ValueError` as `hj.control.ilqr`, and for a `shift` beyond the plan.
    """
    if not isinstance(plan, ILQRSolution):
        raise ValueError(
            "Argument `plan` must be what `hj.control.ilqr` or `hj.control.mpc_step` "
            f"returned, but it is a {type(plan).__name__}."
        )
    N = plan.us.shape[0]
    if isinstance(shift, bool) or not isinstance(shift, int) or not 0 <= shift <= N:
        raise ValueError(
            f"Argument `shift` must be an integer from 0 to the number of intervals, "
            f"{N}, but it is {shift!r}."
        )
    given = (system, plan, x, mode, running, terminal, shift, max_iterations, options)
    return in_one_program(_mpc_step, *given)


def _mpc_step(system, plan, x, mode, running, terminal, shift, max_iterations, options):
    last = plan.ts[-1] - plan.ts[-2]
    more = plan.ts[-1] + last * jnp.arange(1, shift + 1)
    ts = jnp.concatenate([plan.ts[shift:], more])
    held = jnp.broadcast_to(plan.us[-1], (shift, plan.us.shape[1]))
    us = jnp.concatenate([plan.us[shift:], held])
    return ilqr(
        system,
        ts,
        x,
        mode,
        us,
        running,
        terminal,
        max_iterations=max_iterations,
        **options,
    )
