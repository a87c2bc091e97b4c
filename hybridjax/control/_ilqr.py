from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._systems.system import AbstractHybridSystem
from ._costs import Costs, curvature, gradient_of, Model, model_of
from ._results import RESULTS, SUCCESS, success_if
from ._stages import (
    check_grid,
    first_failure,
    make_stages,
    Rollout,
    rollout,
    Stages,
)
from ._sweep import Bounds, Regularization, Sweep, sweep


class ILQRLog(eqx.Module):
    """What happened in each iteration of `hj.control.ilqr`: arrays of length
    `max_iterations`, NaN or `False` beyond `count`.

    **Attributes:**

    - `cost`: the cost after the iteration.
    - `expected`: the reduction that the quadratic model expected of the step that was
        tried last, of the cost and of what gaps between intervals are charged.
    - `gradient_norm`: of the cost with respect to all controls (and the final time,
        if it is free), after the iteration. Entries that point out of bounds do not
        count.
    - `gap`: the sum of all gaps between intervals, absolute values, after it.
    - `step`: the share of the step that was taken; zero if none was.
    - `regularization`: as in the iteration.
    - `sequence_changed`: whether other guards fired, or in another order, than before.
    - `count`: how many there were.
    """

    cost: Float[Array, " max_iterations"]
    expected: Float[Array, " max_iterations"]
    gradient_norm: Float[Array, " max_iterations"]
    gap: Float[Array, " max_iterations"]
    step: Float[Array, " max_iterations"]
    regularization: Float[Array, " max_iterations"]
    sequence_changed: Bool[Array, " max_iterations"]
    count: Int[Array, ""]


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
    num_steps: int = 8,
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


class _Point(eqx.Module):
    """A trajectory, and what is known of it."""

    path: Rollout
    cost: Float[Array, ""]
    # The guards that fired in all, in order.
    signature: Int[Array, " N*max_events"]
    model: Model
    # Of the dynamics, which may take part in the Hessians of the model.
    curvature: Float[Array, "N n+m n+m"] | None
    gradient_norm: Float[Array, ""]
    gap: Float[Array, ""]


class _Step(eqx.Module):
    """A step, the deviations that the model expects of it at knots, and the first and
    second derivative of the model's cost along it."""

    swept: Sweep
    dxs: Float[Array, "N n"]
    slope: Float[Array, ""]
    bend: Float[Array, ""]


class _State(eqx.Module):
    i: Int[Array, ""]
    point: _Point
    K: Float[Array, "N m n"]
    # The regularisation, and by what it was multiplied last.
    mu: Float[Array, ""]
    factor: Float[Array, ""]
    # What gaps cost, at least.
    price: Float[Array, ""]
    log: ILQRLog
    running: Bool[Array, ""]
    result: RESULTS  # pyright: ignore
    meter: Any


# The least regularisation that is not zero, the one at which to give up, and the least
# factor between two: Tassa, Erez, Todorov (2012), Section II-F, for numbers that are
# relative to the Hessians.
_LEAST, _LARGEST, _FACTOR = 1e-8, 1e8, 2.0
# The least share of the expected reduction that there has to be.
_SHARE = 1e-4
# And of a long step, which is taken before one that is better: events that have to go
# are left behind by long steps.
_MOST = 0.25
# Rounding errors of a sum over a trajectory.
_ROUNDING = 64


class _Problem(eqx.Module):
    stages: Stages
    costs: Costs
    lower: Any
    upper: Any
    final_time: Any
    x0: Float[Array, " n"]
    mode0: PyTree
    exact: bool
    num_steps: int

    #
    # A trajectory
    #

    def point(self, path: Rollout) -> _Point:
        model = model_of(self.stages, self.costs, path)
        gradient, costates = gradient_of(model)
        more = curvature(self.stages, path, costates) if self.exact else None
        norm = self._norm(path, gradient, costates[0])
        gap = jnp.sum(jnp.abs(model.gap))
        return _Point(path, self.cost(path), signature(path), model, more, norm, gap)

    def cost(self, path: Rollout):
        """Infinite where a simulation fails."""
        cost = self.costs.total(self.stages, path)
        fine = jnp.all(path.ends.result == SUCCESS) & jnp.isfinite(cost)
        return jnp.where(fine, cost, jnp.inf)

    def _norm(self, path: Rollout, gradient, costate):
        """Without what bounds hold."""
        if self.lower is not None:
            low, high = path.us <= self.lower, path.us >= self.upper
            held = (low & (gradient > 0)) | (high & (gradient < 0))
            gradient = jnp.where(held, 0, gradient)
        if self.final_time is not None:
            least, largest = self.factors
            factor, slope = path.xs[0, -1], costate[-1]
            held = (factor <= least) & (slope > 0) | (factor >= largest) & (slope < 0)
            gradient = jnp.append(gradient, jnp.where(held, 0, slope))
        return jnp.sqrt(jnp.sum(gradient**2))

    @property
    def factors(self):
        """Bounds of the factor by which intervals are longer."""
        ts = self.stages.ts
        return [(t - ts[0]) / (ts[-1] - ts[0]) for t in self.final_time]

    #
    # A step
    #

    def propose(self, point: _Point, mu) -> "_Step":
        """With exact Hessians, where these are not positive definite, Gauss-Newton."""
        step = self.step(point, point.model, mu)
        if point.curvature is None:
            return step
        hessian = point.model.hessian + point.curvature
        exact = self.step(point, _with(point.model, hessian), mu)
        return _choose(exact.swept.ok, exact, step)

    def step(self, point: _Point, model: Model, mu) -> "_Step":
        n = model.n
        largest = lambda M: jnp.max(jnp.abs(jnp.diagonal(M, axis1=-2, axis2=-1)))
        state = largest(model.hessian[:, :n, :n])
        state = jnp.maximum(state, largest(model.end_hessian))
        reach = jnp.sum(jnp.abs(model.B), axis=(1, 2)) ** 2
        control = largest(model.hessian[:, n:, n:]) + state * jnp.max(reach)
        bounds = None
        if self.lower is not None:
            bounds = Bounds(self.lower - point.path.us, self.upper - point.path.us)
        swept = sweep(model, Regularization(mu * state, mu * control), bounds)
        dx0 = jnp.zeros_like(self.x0)
        if self.final_time is not None:
            least, most = self.factors
            factor, slope = point.path.xs[0, -1], swept.p[0, -1]
            bend = swept.P[0, -1, -1] * (1 + mu) + mu * state
            change = jnp.clip(factor - slope / bend, least, most) - factor
            dx0 = dx0.at[-1].set(change)
            swept = eqx.tree_at(lambda s: s.ok, swept, swept.ok & (bend > 0))
        return self.foresee(point, model, swept, dx0)

    def foresee(self, point: _Point, model: Model, swept: Sweep, dx0) -> "_Step":
        """What the model makes of the step."""

        def one(dx, row):
            A, B, gap, l, H, k, K, us, bounds = row
            du = k + K @ dx
            if bounds is not None:
                du = jnp.clip(us + du, *bounds) - us
            dw = jnp.concatenate([dx, du])
            return A @ dx + B @ du + gap, (dx, l @ dw, dw @ (H @ dw))

        m = model
        rows = (m.A, m.B, m.gap, m.gradient, m.hessian, swept.k, swept.K)
        rows = (*rows, point.path.us, self.bounds)
        dx, (dxs, slopes, bends) = lax.scan(one, dx0, rows)
        return _Step(
            swept=swept,
            dxs=dxs,
            slope=jnp.sum(slopes) + m.end_gradient @ dx,
            bend=jnp.sum(bends) + dx @ (m.end_hessian @ dx),
        )

    def tried(self, point: _Point, step: "_Step", share, by_clock) -> Rollout:
        """A share of the step. Between the events of this trajectory and those of the
        one before, the two are as far apart as events jump. So states are compared if
        as many events came before, and else the model's deviation stands in for them;
        or they are compared all the same, `by_clock`: what that does is coarse, and
        finds its way to trajectories with other events."""

        def control(row, x, count):
            u, reference, expected, count_before, k, K, _, bounds = row
            same = by_clock | (count == count_before)
            dx = jnp.where(same, x - reference, share * expected)
            u = u + share * k + K @ dx
            return u if bounds is None else jnp.clip(u, *bounds)

        # Gaps are what is left of them.
        follow = lambda row, end: end - (1 - share) * row[6]
        path, swept = point.path, step.swept
        rows = (path.us, path.xs[:-1], step.dxs, path.counts, swept.k, swept.K)
        rows = (*rows, point.model.gap, self.bounds)
        x0 = path.xs[0] + share * step.dxs[0]
        return rollout(self.stages, x0, self.mode0, rows, control, follow)

    @property
    def bounds(self):
        return None if self.lower is None else (self.lower, self.upper)

    def iterate(self, state: _State) -> _State:
        """One sweep, one batch of rollouts; and if one is better, its linearisation."""
        point = state.point
        step = self.propose(point, state.mu)
        swept, slope, bend = step.swept, step.slope, step.bend
        # Half of the gaps are worth more than what closing them costs.
        needed = 2 * (slope + jnp.maximum(bend, 0) / 2) / jnp.maximum(point.gap, 1e-30)
        price = jnp.where(point.gap > 0, jnp.maximum(state.price, needed), state.price)

        dtype = slope.dtype
        shares = jnp.tile(0.5 ** jnp.arange(self.num_steps, dtype=dtype), 2)
        by_clock = jnp.arange(shares.size) >= self.num_steps
        run = jax.vmap(lambda share, by: self.tried(point, step, share, by))
        paths = run(shares, by_clock)
        costs = jax.vmap(self.cost)(paths)
        gains = point.cost - costs + price * shares * point.gap
        expected = -(shares * slope + shares**2 * bend / 2) + price * shares * point.gap
        # The longest step that does most of what was expected of it, or else the best.
        gains = jnp.where(jnp.isfinite(gains), gains, -jnp.inf)
        worth = jnp.where(gains > _MOST * expected, shares, 0)
        longest = (worth == jnp.max(worth)) | (jnp.max(worth) == 0)
        best = jnp.argmax(jnp.where(longest, gains, -jnp.inf))
        gain, expected, share = gains[best], expected[best], shares[best]
        rounding = _ROUNDING * jnp.finfo(dtype).eps * jnp.abs(point.cost)
        better = (expected > 0) & (gain > _SHARE * expected - rounding) & swept.ok
        path = jtu.tree_map(lambda a: a[best], paths)

        new = lax.cond(better, lambda: self.point(path), lambda: point)
        # A step within rounding that makes the gradient no smaller is none.
        better = better & (
            (gain > rounding) | (new.gradient_norm < point.gradient_norm)
        )
        new = _choose(better, new, point)
        changed = jnp.any(new.signature != point.signature)
        mu, factor = _regularize(state.mu, state.factor, better)
        stuck = ~better & ((mu > _LARGEST) | (swept.ok & (expected < rounding)))
        row = dict(
            cost=new.cost,
            expected=expected,
            gradient_norm=new.gradient_norm,
            gap=new.gap,
            step=jnp.where(better, share, 0),
            regularization=state.mu,
            sequence_changed=changed,
        )
        return _State(
            i=state.i + 1,
            point=new,
            K=jnp.where(swept.ok, swept.K, state.K),
            mu=mu,
            factor=factor,
            price=price,
            log=_write(state.log, state.i, row),
            running=~stuck,
            result=RESULTS.where(stuck, RESULTS.no_descent, state.result),
            meter=state.meter,
        )


def _with(model: Model, hessian) -> Model:
    return eqx.tree_at(lambda m: m.hessian, model, hessian)


def _regularize(mu, factor, better):
    """Less after a step, and more after none, by factors that grow."""
    down = jnp.minimum(factor / _FACTOR, 1 / _FACTOR)
    less = jnp.where(mu * down < _LEAST, 0, mu * down)
    up = jnp.maximum(factor * _FACTOR, _FACTOR)
    more = jnp.maximum(mu * up, _LEAST)
    return jnp.where(better, less, more), jnp.where(better, down, up)


def _choose(pred, a, b):
    return jtu.tree_map(lambda a, b: jnp.where(pred, a, b), a, b)


def signature(path: Rollout) -> Int[Array, " N*max_events"]:
    events = path.ends.event.ravel()
    return events[jnp.argsort(events < 0, stable=True)]


def _empty_log(max_iterations, dtype) -> ILQRLog:
    nan = jnp.full(max_iterations, jnp.nan, dtype)
    nothing = jnp.zeros(max_iterations, bool)
    return ILQRLog(nan, nan, nan, nan, nan, nan, nothing, jnp.asarray(0))


def _write(log: ILQRLog, i, row: dict) -> ILQRLog:
    columns = {name: getattr(log, name).at[i].set(value) for name, value in row.items()}
    return ILQRLog(**columns, count=i + 1)


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
    problem = _Problem(
        stages=stages,
        costs=Costs(running, terminal),
        lower=lower,
        upper=upper,
        final_time=final_time,
        x0=x0,
        mode0=mode0,
        exact=exact,
        num_steps=num_steps,
    )
    first = _first_guess(problem, us, xs)
    dtype = x0.dtype
    n, m = x0.size, us.shape[1]
    failed = first_failure(first.path.ends.result)
    state = _State(
        i=jnp.asarray(0),
        point=first,
        K=jnp.full((stages.number, m, n), jnp.nan, dtype),
        mu=jnp.asarray(mu, dtype),
        factor=jnp.ones((), dtype),
        price=jnp.zeros((), dtype),
        log=_empty_log(max_iterations, dtype),
        running=failed == SUCCESS,
        result=failed,
        meter=meter.init(),
    )

    def optimal(point: _Point):
        small = point.gradient_norm <= jnp.maximum(rtol * first.gradient_norm, atol)
        return small & (point.gap <= jnp.maximum(rtol * first.gap, atol))

    def go_on(state):
        more = (state.i < max_iterations) & ~optimal(state.point)
        return state.running & more

    def body(state):
        state = problem.iterate(state)
        share = (state.i / max_iterations).astype(dtype)
        return eqx.tree_at(
            lambda s: s.meter, state, meter.step(state.meter, share), is_leaf=_is_none
        )

    state = lax.while_loop(go_on, body, state)
    meter.close(state.meter)
    ended = RESULTS.where(state.running, RESULTS.max_iterations_reached, state.result)
    best = (failed == SUCCESS) & optimal(state.point)
    result = success_if(best, ended)
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
        initial_gradient_norm=first.gradient_norm,
        event=path.ends.event,
        kinked=path.ends.kinked,
        log=state.log,
        result=result,
    )


def _is_none(x):
    return x is None


def _first_guess(problem: _Problem, us, xs) -> _Point:
    stages = problem.stages
    follow = lambda row, end: end
    rows = (us, None)
    if xs is not None:
        _check_guess(xs, stages.state(problem.x0), stages.number)
        guess = jax.vmap(lambda x: ravel_pytree(x)[0].astype(us.dtype))(xs)[1:]
        if stages.free:
            guess = jnp.pad(guess, ((0, 0), (0, 1)), constant_values=1)
        rows, follow = (us, guess), lambda row, end: row[1]
    path = rollout(
        stages, problem.x0, problem.mode0, rows, lambda row, *_: row[0], follow
    )
    return problem.point(path)


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
            fits = jnp.broadcast_shapes(jnp.shape(bound), jnp.shape(us)) == jnp.shape(
                us
            )
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"Argument `{name}` must have a shape that can be broadcast to that of "
                f"`us`, {jnp.shape(us)}, but its shape is {jnp.shape(bound)}."
            )
    known = not is_traced((lower, upper))
    both = lower is not None and upper is not None
    if both and known and not bool(jnp.all(jnp.asarray(lower) <= jnp.asarray(upper))):
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
    if not ts[0] < least <= ts[-1] <= largest:
        raise ValueError(
            "Argument `final_time` must be bounds of a time after `ts[0]` = "
            f"{ts[0]}, with the first guess `ts[-1]` = {ts[-1]} between them, but it "
            f"is {final_time}."
        )
