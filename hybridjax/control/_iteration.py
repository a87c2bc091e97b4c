"""One iteration of `hj.control.ilqr`: a sweep, a batch of rollouts, and if one of them
is better, its linearisation."""

from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._jax.branch import where
from ._costs import Costs, curvature, gradient_of, Model, model_of
from ._results import RESULTS, SUCCESS
from ._stages import first_failure, no_rollout, Rollout, rollout, Stages
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


class Point(eqx.Module):
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
    """A step, by a quadratic model; `dx0` is that of the first state."""

    model: Model
    swept: Sweep
    dx0: Float[Array, " n"]


class State(eqx.Module):
    # -1 is the first guess: a step of length zero, so that what is around it is not
    # compiled twice.
    i: Int[Array, ""]
    point: Point
    initial_norm: Float[Array, ""]
    initial_gap: Float[Array, ""]
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
# How many of the step sizes are tried with states compared by the clock, too.
_BY_CLOCK = 2
# What a cost is known to, relative: the default tolerances of simulations.
_KNOWN = {"float32": 1e-5, "float64": 1e-8}


class Iteration(eqx.Module):
    stages: Stages
    costs: Costs
    lower: Any
    upper: Any
    final_time: Any
    x0: Float[Array, " n"]
    mode0: PyTree
    exact: bool
    num_steps: int
    # Are there gaps in the first guess?
    gaps: bool

    #
    # A trajectory
    #

    def point(self, path: Rollout) -> Point:
        model = model_of(self.stages, self.costs, path)
        gradient, costates = gradient_of(model)
        more = curvature(self.stages, path, costates) if self.exact else None
        norm = self._norm(path, gradient, costates[0])
        gap = jnp.sum(jnp.abs(model.gap))
        return Point(path, self.cost(path), signature(path), model, more, norm, gap)

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

    def propose(self, point: Point, mu) -> "_Step":
        """With exact Hessians, where these are not positive definite, Gauss-Newton."""
        step = self.step(point, point.model, mu)
        if point.curvature is None:
            return step
        hessian = point.model.hessian + point.curvature
        exact = self.step(point, _with(point.model, hessian), mu)
        return where(exact.swept.ok, exact, step)

    def step(self, point: Point, model: Model, mu) -> "_Step":
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
        return _Step(model, swept, dx0)

    def foresee(self, point: Point, step: "_Step", share):
        """What the model makes of a share of the step: deviations at knots, and the
        change of the cost."""

        def one(dx, row):
            A, B, gap, l, H, k, K, us, bounds = row
            du = share * k + K @ dx
            if bounds is not None:
                du = jnp.clip(us + du, *bounds) - us
            dw = jnp.concatenate([dx, du])
            after = A @ dx + B @ du + share * gap
            return after, (dx, l @ dw + dw @ (H @ dw) / 2)

        m, swept = step.model, step.swept
        rows = (m.A, m.B, m.gap, m.gradient, m.hessian, swept.k, swept.K)
        rows = (*rows, point.path.us, self.bounds)
        dx, (dxs, changes) = lax.scan(one, share * step.dx0, rows)
        end = m.end_gradient @ dx + dx @ (m.end_hessian @ dx) / 2
        return dxs, jnp.sum(changes) + end

    def tried(
        self, point: Point, step: "_Step", dxs, share, by_clock, first
    ) -> Rollout:
        """A share of the step. Between the events of this trajectory and those of the
        one before, the two are as far apart as events jump. So states are compared if
        as many events came before, and else the model's deviation stands in for them;
        or they are compared all the same, `by_clock`: what that does is coarse, and
        finds its way to trajectories with other events."""

        def control(row, x, count):
            u, reference, expected, count_before, k, K, _, bounds, _ = row
            same = by_clock | (count == count_before)
            dx = jnp.where(same, x - reference, expected)
            u = u + share * k + K @ dx
            return u if bounds is None else jnp.clip(u, *bounds)

        # Gaps are what is left of them.
        def follow(row, end):
            left = end - (1 - share) * row[6]
            return jnp.where(first, row[8], left) if self.gaps else left

        path, swept = point.path, step.swept
        rows = (path.us, path.xs[:-1], dxs, path.counts, swept.k, swept.K)
        rows = (*rows, point.model.gap, self.bounds, path.xs[1:])
        x0 = path.xs[0] + share * step.dx0
        return rollout(self.stages, x0, self.mode0, rows, control, follow)

    @property
    def bounds(self):
        return None if self.lower is None else (self.lower, self.upper)

    def iterate(self, state: State) -> State:
        """One sweep, one batch of rollouts; and if one is better, its linearisation."""
        point, first = state.point, state.i < 0
        step = self.propose(point, state.mu)
        step = jtu.tree_map(lambda a: jnp.where(first, jnp.zeros_like(a), a), step)
        swept, dtype = step.swept, point.cost.dtype
        shares = 0.5 ** jnp.arange(self.num_steps, dtype=dtype)
        dxs, changes = jax.vmap(lambda share: self.foresee(point, step, share))(shares)
        # Half of the gaps are worth more than what closing them costs.
        needed = 2 * changes[0] / jnp.maximum(point.gap, jnp.finfo(dtype).tiny)
        price = jnp.where(point.gap > 0, jnp.maximum(state.price, needed), state.price)

        # Only long steps find their way to trajectories with other events.
        number = min(_BY_CLOCK, self.num_steps)
        more = lambda a: jnp.concatenate([a, a[:number]])
        dxs, changes, shares = jtu.tree_map(more, (dxs, changes, shares))
        by_clock = jnp.arange(shares.size) >= self.num_steps
        run = lambda dxs, share, by: self.tried(point, step, dxs, share, by, first)
        paths = jax.vmap(run)(dxs, shares, by_clock)
        costs = jax.vmap(self.cost)(paths)
        closed = price * shares * point.gap
        gains, expected = point.cost - costs + closed, closed - changes
        # The longest step that does what was expected of it, or else the best.
        gains = jnp.where(jnp.isfinite(costs), gains, -jnp.inf)
        worth = jnp.where(gains > _MOST * expected, shares, 0)
        longest = (worth == jnp.max(worth)) | (jnp.max(worth) == 0)
        best = jnp.argmax(jnp.where(longest, gains, -jnp.inf))
        most = jnp.max(expected)
        gain, expected, share = gains[best], expected[best], shares[best]
        path = jtu.tree_map(lambda a: a[best], paths)

        # Costs that cannot be told apart leave the choice to the gradient.
        noise = _KNOWN[dtype.name] * jnp.abs(point.cost)
        less, same = gain > _SHARE * expected, gain > -noise
        able = (expected > 0) & swept.ok
        maybe = first | (able & (less | same))
        new = lax.cond(maybe, lambda: self.point(path), lambda: point)
        smaller = new.gradient_norm < point.gradient_norm
        better = first | (able & (less | (same & smaller)))
        new = where(better, new, point)
        mu, factor = _regularize(state.mu, state.factor, better)
        mu, factor = where(first, (state.mu, state.factor), (mu, factor))
        rounding = jnp.finfo(dtype).eps * jnp.abs(point.cost)
        stuck = ~better & ((mu > _LARGEST) | (swept.ok & (most < rounding)))
        row = dict(
            cost=new.cost,
            expected=expected,
            gradient_norm=new.gradient_norm,
            gap=new.gap,
            step=jnp.where(better, share, 0),
            regularization=state.mu,
            sequence_changed=jnp.any(new.signature != point.signature),
        )
        failed = first_failure(path.ends.result)
        result = RESULTS.where(stuck, RESULTS.no_descent, state.result)
        return State(
            i=state.i + 1,
            point=new,
            initial_norm=jnp.where(first, new.gradient_norm, state.initial_norm),
            initial_gap=jnp.where(first, new.gap, state.initial_gap),
            K=jnp.where(swept.ok & ~first, swept.K, state.K),
            mu=mu,
            factor=factor,
            price=jnp.where(first, state.price, price),
            log=_write(state.log, state.i, row),
            running=~stuck & (~first | (failed == SUCCESS)),
            result=RESULTS.where(first, failed, result),
            meter=state.meter,
        )

    def start(self, us, xs, mu, max_iterations: int, meter) -> State:
        """Before the first guess, which is the next iteration."""
        n, m = self.x0.size, us.shape[1]
        dtype = self.x0.dtype
        zeros = lambda *shape: jnp.zeros(shape, dtype)
        path = no_rollout(self.stages, self.x0, self.mode0, us)
        path = path if xs is None else eqx.tree_at(lambda p: p.xs, path, xs)
        N = self.stages.number
        square = zeros(N, n + m, n + m)
        model = Model(
            A=zeros(N, n, n),
            B=zeros(N, n, m),
            gap=zeros(N, n),
            gradient=zeros(N, n + m),
            hessian=square,
            end_gradient=zeros(n),
            end_hessian=zeros(n, n),
        )
        nothing = jnp.full((), jnp.inf, dtype)
        point = Point(
            path=path,
            cost=nothing,
            signature=signature(path),
            model=model,
            curvature=square if self.exact else None,
            gradient_norm=nothing,
            gap=zeros(),
        )
        return State(
            i=jnp.array(-1, jnp.int32),
            point=point,
            initial_norm=zeros(),
            initial_gap=zeros(),
            K=jnp.full((N, m, n), jnp.nan, dtype),
            mu=jnp.asarray(mu, dtype),
            factor=jnp.ones((), dtype),
            price=zeros(),
            log=_empty_log(max_iterations, dtype),
            running=jnp.asarray(True),
            result=SUCCESS,
            meter=meter.init(),
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


def signature(path: Rollout) -> Int[Array, " N*max_events"]:
    events = path.ends.event.ravel()
    return events[jnp.argsort(events < 0, stable=True)]


def _empty_log(max_iterations, dtype) -> ILQRLog:
    nan = jnp.full(max_iterations, jnp.nan, dtype)
    nothing = jnp.zeros(max_iterations, bool)
    return ILQRLog(nan, nan, nan, nan, nan, nan, nothing, jnp.array(0, jnp.int32))


def _write(log: ILQRLog, i, row: dict) -> ILQRLog:
    """Not that of the first guess."""
    i = jnp.where(i < 0, log.cost.size, i)
    columns = {
        name: getattr(log, name).at[i].set(value, mode="drop")
        for name, value in row.items()
    }
    return ILQRLog(**columns, count=jnp.where(i < log.cost.size, i + 1, 0))
