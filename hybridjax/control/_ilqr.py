from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._loop.results import success_if
from .._systems.system import AbstractHybridSystem
from ._costs import Costs
from ._iteration import ILQRLog, Iteration, State
from ._results import RESULTS, SUCCESS
from ._stages import check_grid, make_stages, Stages


class ILQRSolution(eqx.Module):
    """What `hj.control.ilqr` and `hj.control.mpc_step` return: a trajectory with `N`
    intervals, the best that was found.

    **Attributes:**

    - `ts`, `xs`, `modes`: times, states and modes at the knots, `N + 1` of them in
        front, those after events.
    - `us`: controls, of shape `(N, m)`.
    - `K`: feedback gains of the last iteration, of shape `(N, m, n)`: `u = us[k] + K[k]
        @ dx`, with `dx` how far the raveled state is off `xs[k]`. NaN without any.
    - `cost`, `gradient_norm`: the cost, and how far from an optimum it is.
    - `initial_gradient_norm`: that of the first guess.
    - `event`: the guards that fired in each interval, then -1, of shape
        `(N, max_events)`.
    - `kinked`: of shape `(N,)`: intervals in which derivatives may be one-sided, as in
        `hj.control.Linearization`.
    - `log`: a `hj.control.ILQRLog`.
    - `result`: a `hj.control.RESULTS`.
    """

    ts: Float[Array, " N+1"]
    xs: PyTree
    modes: PyTree
    us: Float[Array, "N m"]
    K: Float[Array, "N m n"]
    cost: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    initial_gradient_norm: Float[Array, ""]
    event: Int[Array, "N max_events"]
    kinked: Bool[Array, " N"]
    log: ILQRLog
    result: RESULTS  # pyright: ignore


def ilqr(
    system: AbstractHybridSystem,
    ts: Real[Array, " N+1"],
    x0: PyTree,
    mode0: PyTree,
    us: Float[Array, "N m"],
    running: Callable,
    terminal: Callable,
    *,
    args_of: Callable | None = None,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    final_time: tuple[Any, Any] | None = None,
    xs: PyTree = None,
    exact_hessians: bool = False,
    max_iterations: int = 100,
    rtol: Any = 1e-6,
    atol: Any = 0.0,
    regularization: Any = 0.0,
    num_steps: int = 6,
    progress_meter: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
    **options: Any,
) -> ILQRSolution:
    r"""Finds controls, held from knot to knot, that minimise a cost: the iterative
    linear quadratic regulator, across events.

    $$J = \sum_{k < N} \ell(t_k, x_k, u_k) + \ell_f(t_N, x_N)$$

    Which events happen, and when, comes out of it; none of it is prescribed. Each
    iteration linearises all intervals in one batch, through their events, sweeps back
    through a quadratic model, and tries several step sizes in another batch, each
    with the feedback of the sweep. A trajectory whose simulation fails costs infinitely
    much. The best is taken if it costs less, in fact and not by the model, which knows
    nothing of events that appear or vanish; if none does, Hessians with respect to
    states and controls are regularised more. A local method: a gradient does not know
    of a contact that was never made, and the first guess has to.

    Controls that jump at knots make the cost kinked where an event is at a knot, and
    its optima tend to be there: then it ends near the optimum, but with a gradient that
    is not small, by `RESULTS.no_descent` or `max_iterations_reached`. With
    `hj.control.with_rates` there is no kink.

    All of it is one program; under `jax.vmap`, over problems at once.

    **Main arguments:**

    - `system`, `ts`, `x0`, `mode0`: as in `hj.control.linearize`.
    - `us`: first guess, of shape `(N, m)`.
    - `running`, `terminal`: $\ell$, a function `(t, x, u) -> cost`, and $\ell_f$, `(t,
        x) -> cost`, which return scalars, twice differentiable. As written above, the
        running cost is summed over intervals, and not multiplied by their length.
    - `args_of`: a function that makes the `args` of the system from a control, of shape
        `(m,)`. `None` where they are the control.
    - `lower`, `upper`: bounds on the controls, scalars or arrays that can be broadcast
        to `(N, m)`. Held exactly.

    **Other arguments:**

    - `final_time`: bounds `(least, largest)` between which the final time is free, and
        `None` where it is `ts[-1]`. All intervals become longer or shorter by the same
        factor. What a running cost charges for an interval does not change by itself:
        let it depend on the time, or use `hj.with_cost` for the integral.
    - `xs`: first guess of the states, `N + 1` in front, for multiple shooting: it need
        not fit the controls. Gaps between intervals close as steps are taken, and cost
        as much as makes that worth it. `None` is single shooting.
    - `exact_hessians`: whether the second derivatives of the dynamics take part, of
        flow and events: Newton's method, quadratic convergence, at the cost of a second
        derivative of the simulation. If not, Gauss-Newton.
    - `max_iterations`: bound on the number of iterations, also of those without a step.
    - `rtol`, `atol`: it ends when the norm of the gradient is at most `atol`, or `rtol`
        times that of the first guess; and so the sum of gaps.
    - `regularization`: the first; relative to the largest entries of Hessians.
    - `num_steps`: how many step sizes are tried at once: 1, 1/2, 1/4, ...
    - `progress_meter`: a diffrax progress meter, of the share of `max_iterations`.
    - `options`: as in `hj.control.linearize`.

    **Returns:**

    A `hj.control.ILQRSolution`. Derivatives with respect to what was given do not go
    through it.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.

    ??? cite "Reference"

        Kong, Council, Johnson, *iLQR for piecewise-smooth hybrid dynamical systems*
        (2021). Tassa, Mansard, Todorov, *Control-limited differential dynamic
        programming* (2014). Gaps: Mastalli et al., *Crocoddyl* (2020). With
        `exact_hessians`, costates stand in the place of the gradient of the value:
        Pantoja (1988); so all intervals are differentiated at once.
    """
    check_grid(ts, us)
    _check_bounds(lower, upper, us)
    _check_final_time(final_time, ts)
    for name, value in (("max_iterations", max_iterations), ("num_steps", num_steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"Argument `{name}` must be a positive integer, but it is {value!r}."
            )
    given = (system, ts, x0, mode0, us, running, terminal, args_of)
    numbers = (lower, upper, final_time, xs, rtol, atol, regularization)
    numbers = jtu.tree_map(jnp.asarray, numbers)
    static = (bool(exact_hessians), max_iterations, num_steps, progress_meter, options)
    return in_one_program(_ilqr, given, numbers, static)


def _ilqr(given, numbers, static):
    system, ts, x0, mode0, us, running, terminal, args_of = given
    lower, upper, final_time, xs, rtol, atol, mu = numbers
    exact, max_iterations, num_steps, meter, options = static
    stages, x0, mode0, us = make_stages(
        system, ts, x0, mode0, us, args_of, options, final_time is not None
    )
    if lower is not None or upper is not None:
        wide = lambda b, value: jnp.broadcast_to(
            jnp.asarray(value if b is None else b, us.dtype), us.shape
        )
        lower, upper = wide(lower, -jnp.inf), wide(upper, jnp.inf)
        us = jnp.clip(us, lower, upper)
    iteration = Iteration(
        stages=stages,
        costs=Costs(running, terminal),
        lower=lower,
        upper=upper,
        final_time=final_time,
        x0=x0,
        mode0=mode0,
        exact=exact,
        num_steps=num_steps,
        gaps=xs is not None,
    )
    guess = None if xs is None else _guess(stages, x0, xs)

    def optimal(state: State):
        norm, gap = state.initial_norm, state.initial_gap
        small = state.point.gradient_norm <= jnp.maximum(rtol * norm, atol)
        closed = state.point.gap <= jnp.maximum(rtol * gap, atol)
        return (state.i >= 0) & small & closed

    def go_on(state: State):
        return state.running & (state.i < max_iterations) & ~optimal(state)

    def body(state: State):
        state = iteration.iterate(state)
        share = (state.i / max_iterations).astype(x0.dtype)
        return eqx.tree_at(
            lambda s: s.meter, state, meter.step(state.meter, share), is_leaf=_is_none
        )

    state = iteration.start(us, guess, mu, max_iterations, meter)
    state = lax.while_loop(go_on, body, state)
    meter.close(state.meter)
    ended = RESULTS.where(state.running, RESULTS.max_iterations_reached, state.result)
    result = success_if((state.result == SUCCESS) & optimal(state), ended)
    path = state.point.path
    times = jax.vmap(lambda k: stages.time(k, path.xs[0]))
    return ILQRSolution(
        ts=times(jnp.arange(stages.number + 1)),
        xs=jax.vmap(stages.state)(path.xs),
        modes=path.modes,
        us=path.us,
        K=state.K[:, :, :-1] if stages.free else state.K,
        cost=state.point.cost,
        gradient_norm=state.point.gradient_norm,
        initial_gradient_norm=state.initial_norm,
        event=path.ends.event,
        kinked=path.ends.kinked,
        log=state.log,
        result=result,
    )


def _is_none(x):
    return x is None


def _guess(stages: Stages, x0, xs):
    """Raveled states, from the given one."""
    _check_guess(xs, stages.state(x0), stages.number)
    rest = jax.vmap(lambda x: ravel_pytree(x)[0].astype(x0.dtype))(xs)[1:]
    if stages.free:
        rest = jnp.pad(rest, ((0, 0), (0, 1)), constant_values=1)
    return jnp.concatenate([x0[None], rest])


#
# What was given
#


def _check_guess(xs, x, N):
    got = jtu.tree_map(jnp.shape, xs)
    wanted = jtu.tree_map(lambda a: (N + 1, *a.shape), x)
    if got != wanted:
        raise ValueError(
            f"Argument `xs` must have the states at N + 1 = {N + 1} knots in front, "
            f"shapes {wanted}, but they are {got}."
        )


def _check_bounds(lower, upper, us):
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound is None:
            continue
        try:
            shape = jnp.broadcast_shapes(jnp.shape(bound), jnp.shape(us))
        except ValueError:
            shape = None
        if shape != jnp.shape(us):
            raise ValueError(
                f"Argument `{name}` must have a shape that can be broadcast to that of "
                f"`us`, {jnp.shape(us)}, but its shape is {jnp.shape(bound)}."
            )
    known = not is_traced((lower, upper))
    both = lower is not None and upper is not None
    if both and known and not np.all(np.asarray(lower) <= np.asarray(upper)):
        raise ValueError(
            "Argument `lower` must not be greater than `upper`, but it is somewhere."
        )


def _check_final_time(final_time, ts):
    if final_time is None:
        return
    if not isinstance(final_time, tuple) or len(final_time) != 2:
        raise ValueError(
            "Argument `final_time` must be a pair `(least, largest)` of times, but it "
            f"is {final_time!r}."
        )
    if is_traced((final_time, ts)):
        return
    least, largest = final_time
    ts = np.asarray(ts)
    if not ts[0] < least <= ts[-1] <= largest:
        raise ValueError(
            "Argument `final_time` must be bounds of a time after `ts[0]` = "
            f"{ts[0]}, with the first guess `ts[-1]` = {ts[-1]} between them, but it "
            f"is {final_time}."
        )
