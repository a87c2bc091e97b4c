from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._systems.system import AbstractHybridSystem
from ._costs import Costs, model_of
from ._results import RESULTS
from ._stages import check_grid, first_failure, make_stages, rollout


class Linearization(eqx.Module):
    r"""What `hj.control.linearize` returns: a trajectory with `N` intervals, and what a
    deviation becomes in each of them,

    $$\delta x_{k+1} = A_k\, \delta x_k + B_k\, \delta u_k.$$

    `n` is the size of the raveled state, and $\delta x$ a deviation of that.

    **Attributes:**

    - `ts`, `xs`, `modes`: times, states and modes at the knots, `N + 1` of them in
        front. Where an event happens at a knot, they are those after it.
    - `us`: the controls, of shape `(N, m)`.
    - `A`, `B`: of shapes `(N, n, n)` and `(N, n, m)`.
    - `event`: the numbers of the guards that fired in each interval, in order, then -1,
        of shape `(N, max_events)`.
    - `kinked`: of shape `(N,)`. Several events shared an instant, or one was in the
        instant in which the interval began. There the derivative may be one of
        several; it is that of the order that was simulated.
    - `cost`: the whole cost, a scalar; zero without costs.
    - `cost_gradient`, `cost_hessian`: derivatives of the running cost with respect to
        the raveled state followed by the control, of shapes `(N, n + m)` and
        `(N, n + m, n + m)`.
    - `end_gradient`, `end_hessian`: those of the terminal cost, `(n,)` and `(n, n)`.
    - `results`: a `hj.control.RESULTS` for each interval.
    - `result`: the first of them that is not `successful`, or that.
    """

    ts: Float[Array, " N+1"]
    xs: PyTree
    modes: PyTree
    us: Float[Array, "N m"]
    A: Float[Array, "N n n"]
    B: Float[Array, "N n m"]
    event: Int[Array, "N max_events"]
    kinked: Bool[Array, " N"]
    cost: Float[Array, ""]
    cost_gradient: Float[Array, "N n+m"]
    cost_hessian: Float[Array, "N n+m n+m"]
    end_gradient: Float[Array, " n"]
    end_hessian: Float[Array, "n n"]
    results: RESULTS  # pyright: ignore
    result: RESULTS  # pyright: ignore


def linearize(
    system: AbstractHybridSystem,
    ts: Real[Array, " N+1"],
    x0: PyTree,
    mode0: PyTree,
    us: Float[Array, "N m"],
    *,
    args_of: Callable | None = None,
    running: Callable | None = None,
    terminal: Callable | None = None,
    **options: Any,
) -> Linearization:
    r"""Linearises a trajectory with controls that are held from knot to knot.

    The trajectory starts anew at each knot. Intervals are differentiated all at once,
    as one batch, each through the events in it: `A` holds their saltation matrices. An
    event at a knot belongs to the interval that ends there. A simulation that fails
    does not raise: see `result`, and `results` of each interval, whose derivatives are
    then NaN.

    **Arguments:**

    - `system`: any hybrid system.
    - `ts`: knots, in the system's unit of time, of shape `(N + 1,)`, ascending.
    - `x0`, `mode0`: state and mode at `ts[0]`, as in `hj.simulate`.
    - `us`: controls, of shape `(N, m)`: row `k` is held from `ts[k]` to `ts[k + 1]`.
    - `args_of`: a function that makes the `args` of the system from a control, of shape
        `(m,)`. `None` for systems whose `args` are the control. It may close over other
        parameters: `lambda u: (u, parameters)`.
    - `running`: `(t, x, u) -> cost`, a scalar. The cost is the **sum** over the knots
        `ts[0], ..., ts[N - 1]` at which intervals begin; so it holds the length of an
        interval, if it is to stand for an integral. (For the integral itself, whatever
        happens within intervals, use `hj.with_cost` and a terminal cost of its `z`.)
    - `terminal`: `(t, x) -> cost`, a scalar, added at the last knot.
    - `options`: `solver`, `stepsize_controller`, `dt0`, `event_method`, `tangent_rtol`,
        `max_steps` and `max_events` as in `hj.simulate`; the last two are bounds of one
        interval, and are 128 and 8.

    **Returns:**

    A `hj.control.Linearization`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (32)-(34).
    """
    check_grid(ts, us)
    given = (system, ts, x0, mode0, us, args_of, running, terminal, options)
    return in_one_program(_linearize, *given)


def _linearize(system, ts, x0, mode0, us, args_of, running, terminal, options):
    stages, x0, mode0, us = make_stages(system, ts, x0, mode0, us, args_of, options)
    costs = Costs(running, terminal)
    path = rollout(stages, x0, mode0, us, lambda u, *_: u)
    model = model_of(stages, costs, path)
    return Linearization(
        ts=stages.ts,
        xs=jax.vmap(stages.unravel)(path.xs),
        modes=path.modes,
        us=path.us,
        A=model.A,
        B=model.B,
        event=path.ends.event,
        kinked=path.ends.kinked,
        cost=costs.total(stages, path),
        cost_gradient=model.gradient,
        cost_hessian=model.hessian,
        end_gradient=model.end_gradient,
        end_hessian=model.end_hessian,
        results=path.ends.result,
        result=first_failure(path.ends.result),
    )
