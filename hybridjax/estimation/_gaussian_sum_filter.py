from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PyTree, Real

from .._jax.branch import where
from .._jax.compiler_options import in_one_program
from .._jax.errors import certify
from .._loop.results import choose, first_failure
from .._solution.path import nan_unless
from .._systems.system import AbstractHybridSystem
from ..analysis._square_root import compress
from ._kalman_filter import filter_step, Step
from ._messages import last_of, messages, verdict_of
from ._mixture import merge, parts_of_normal
from ._problem import check_number, Given, given, Problem
from ._results import RESULTS, SUCCESS


# An event that is as many standard deviations away has happened, or has not: beyond are
# three in a hundred thousand.
_NEAR = 4.0


class GaussianSumSolution(eqx.Module):
    """What `hj.estimation.gaussian_sum_filter` returns. All arrays but `log_likelihood`
    have the times in front, and those of components their number as the second axis.

    **Attributes:**

    - `ts`: the times of the measurements, of shape `(times,)`.
    - `xs`, `modes`, `roots`: of the components, given the measurements up to that time:
        mean states as a pytree, modes, and square roots of covariances, in the order of
        the raveled state, of shape `(times, components, n, n)`.
    - `log_weights`: the logarithms of their weights, of which the sum is one, of shape
        `(times, components)`; minus infinity for a component that is not used.
    - `best`: the number of the component with the greatest weight, of shape `(times,)`.
    - `means`, `covariances`: of the mixture: states as pytrees; and of the raveled
        state, of shape `(times, n, n)`. Where modes differ, of little meaning.
    - `log_likelihood`: of all measurements, by the mixture; and `log_likelihoods`, of
        each given those before it, of shape `(times,)`.
    - `result`: a `hj.estimation.RESULTS`. After a failure all floats are NaN, from the
        time on at which that happened.
    """

    ts: Float[Array, " times"]
    xs: PyTree
    modes: PyTree
    roots: Float[Array, "times components n n"]
    log_weights: Float[Array, "times components"]
    best: Int[Array, " times"]
    means: PyTree
    covariances: Float[Array, "times n n"]
    log_likelihood: Float[Array, ""]
    log_likelihoods: Float[Array, " times"]
    result: RESULTS  # pyright: ignore

    def probability(self, of: Callable) -> Float[Array, " times"]:
        """How probable it is that `of(mode)` is true, at each time."""
        for _ in range(self.log_weights.ndim):
            of = jax.vmap(of)
        share = jnp.exp(self.log_weights)
        return jnp.sum(jnp.where(of(self.modes), share, 0), axis=-1)


def gaussian_sum_filter(
    system: AbstractHybridSystem,
    t0: Real[Any, ""],
    ts: Real[Any, " times"],
    ys: Real[Any, "times m"],
    x0: PyTree,
    root0: Real[Any, "n k"],
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    num_components: int,
    measurement: Any,
    measurement_root: Any,
    process_root: Any = None,
    diffusion: Any = None,
    solver: dfx.AbstractSolver = dfx.Tsit5(),
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    max_steps: int = 256,
    max_events: int = 16,
    throw: bool = True,
) -> GaussianSumSolution:
    r"""A bank of salted Kalman filters, each with a hypothesis about the events so far.

    One Gaussian in one mode is wrong at a measurement while it is uncertain whether an
    event has happened. So each component is split where, at the next measurement, an
    event is nearer than four standard deviations, of its time if it has happened, and
    of its guard if it has not: at the start of the interval, in the direction that
    decides between the two, into as many parts as there are components, narrower in
    that direction only. Each part is then filtered by itself, as by
    `hj.estimation.kalman_filter`: some have met the event, others have not. What was
    measured weighs them, and those that are nearest to each other are merged until
    `num_components` are left. Splits and merges preserve mean and covariance of the
    mixture; but if there are more modes than components, some are dropped.

    It is as good as parts are narrow. What cannot be split is the noise on the way,
    `diffusion`; and of several events that are uncertain at one time, only the one that
    is most so is seen. With one component, this is `hj.estimation.kalman_filter`.

    An interval takes two simulations, each of `num_components` squared parts in a
    batch. Differentiable, in forward and in reverse mode, once, where no component
    fails; which are split and which are merged is not differentiated.

    **Arguments:**

    - `num_components`: how many components.
    - All others: as in `hj.estimation.kalman_filter`.

    **Returns:**

    A `hj.estimation.GaussianSumSolution`. A component that fails has the weight zero;
    only if all of them fail, the filter does.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.
    - `hj.SimulationError` if `throw` and the filter failed.

    ??? cite "Reference"

        Alspach, Sorenson, *Nonlinear Bayesian estimation using Gaussian sum
        approximations*, IEEE Transactions on Automatic Control 17, 1972; Salmond,
        *Mixture reduction algorithms for target tracking in clutter*, 1990.
    """
    check_number("num_components", num_components)
    inputs = given(
        system,
        t0,
        ts,
        ys,
        x0,
        root0,
        mode0,
        args,
        measurement=measurement,
        measurement_root=measurement_root,
        process_root=process_root,
        diffusion=diffusion,
        solver=solver,
        stepsize_controller=stepsize_controller,
        max_steps=max_steps,
        max_events=max_events,
        saltation=True,
        linearised=True,
    )
    solution, verdict = in_one_program(_filter, inputs, num_components)
    return certify(solution, verdict, messages(inputs)) if throw else solution


def _filter(given: Given, number):
    problem = given.problem()
    begin = problem.x0, compress(problem.root0), problem.mode0
    copies = lambda a: jnp.broadcast_to(a, (number, *a.shape))
    zero = jnp.zeros((), problem.x0.dtype)
    weights = jnp.where(jnp.arange(number) == 0, zero, -jnp.inf)

    def step(carry, inputs):
        return _step(problem, number, carry, inputs)

    init = (jtu.tree_map(copies, begin), weights, SUCCESS)
    _, (here, weights, likelihoods, results) = lax.scan(step, init, problem.steps())
    solution = _solution(problem, here, weights, likelihoods, results)
    return solution, verdict_of(problem, results)


def _step(problem: Problem, number, carry, inputs):
    bank, weights, result = carry
    means, log_weights, width = parts_of_normal(number)
    tile = lambda a: jnp.tile(jnp.asarray(a, weights.dtype), number)
    is_first = jnp.arange(number**2) % number == 0
    places = tile(means), tile(log_weights), is_first

    # Through the interval to see what is near at its end; then in parts.
    def through(parts, looks_ahead):
        part = lambda *args: _part(problem, width, inputs, looks_ahead, *args)
        return jax.vmap(part)(*parts, *places)

    parts = jtu.tree_map(lambda a: jnp.repeat(a, number, axis=0), (bank, weights))
    passes = jnp.array([True, False])
    (parts, updated), (here, before, ended) = lax.scan(through, parts, passes)
    here = jtu.tree_map(lambda a: a[0, ::number], here)
    likelihood = logsumexp(updated)
    some = jnp.isfinite(likelihood)
    # If all have failed, then as the one that was the most probable.
    likely = jnp.argmax(before[1])
    failure = jtu.tree_map(lambda a: a[1, likely], ended)
    result = first_failure(result, choose(some, SUCCESS, failure))
    out = nan_unless(result == SUCCESS, (here, weights, likelihood))
    updated = updated - likelihood
    # What has no weight may be no number.
    exists, best = updated > -jnp.inf, jnp.argmax(updated)
    wide = lambda a: exists.reshape(exists.shape + (1,) * (a.ndim - 1))
    parts = jtu.tree_map(lambda a: jnp.where(wide(a), a, a[best][None]), parts)
    weights, bank = merge(updated, *parts, number)
    return (bank, weights, result), (*out, result)


def _part(
    problem: Problem,
    width,
    inputs,
    looks_ahead,
    component,
    weight,
    mean,
    log_weight,
    is_first,
):
    """One of the parts of a component: before it is split, it is split, if need be; and
    after that filtered."""
    begin = (*component, SUCCESS)
    (*after, ended), out = filter_step(problem, begin, inputs, looks_ahead)
    okay = ended == SUCCESS
    (x, mode, root), begun = out.here, out.begun
    # What will fail is left as it is, and fails again.
    here = where(okay, (x, root, mode), component)
    is_near, direction = _nearest_event(problem, inputs[1], out)
    # Of one part the width is that of all.
    is_split = okay & is_near & (width < 1)
    along = begun @ direction
    narrow = begun + (width - 1) * along[:, None] * direction[None]
    root = compress(jnp.where(is_split, narrow, begun))
    split = x + jnp.where(is_split, mean, 0) * along, root, mode
    alone = jnp.where(is_first, weight, -jnp.inf)
    split_weight = jnp.where(is_split, weight + log_weight, alone)
    likelihood = jnp.where(okay, out.updated.log_likelihood, -jnp.inf)
    ahead = where(okay, split, component), split_weight
    updated = tuple(after), weight + likelihood
    return where(looks_ahead, ahead, updated), (here, weight, ended)


def _nearest_event(problem: Problem, t, out: Step):
    """Whether an event is so near at the end of a step, at the time `t`, that it is
    uncertain if it has happened; and the direction, in the noise at the start of the
    step, in which that is uncertain."""
    x, mode, _ = out.there
    guards = lambda x: problem.flow.system.guards(t, x, mode)
    normals = jnp.matmul(jax.jacfwd(guards)(x), out.factors.transition)
    since, event_time = out.last_event
    away = jnp.append(jnp.abs(guards(x)), since)
    rows = jnp.concatenate([normals, event_time[None]])
    rows = jnp.matmul(rows, out.begun)
    square = jnp.sum(rows**2, axis=1)
    deviation = jnp.sqrt(jnp.where(square > 0, square, 1))
    ratio = jnp.where(square > 0, away / deviation, jnp.inf)
    nearest = jnp.argmin(ratio)
    return ratio[nearest] < _NEAR, rows[nearest] / deviation[nearest]


def _solution(problem: Problem, bank, weights, likelihoods, results):
    # What an update has led to is known in the step after it.
    xs, roots, modes = jtu.tree_map(lambda a: a[1:], bank)
    weights = weights[1:]
    share = jnp.exp(weights)
    means = jnp.einsum("ti,tix->tx", share, xs)
    apart = xs - means[:, None]
    squares = jnp.matmul(roots, jnp.moveaxis(roots, 2, 3))
    squares = squares + apart[:, :, :, None] * apart[:, :, None, :]
    unravel = jax.vmap(problem.unravel)
    return GaussianSumSolution(
        ts=problem.ts,
        xs=jax.vmap(unravel)(xs),
        modes=modes,
        roots=roots,
        log_weights=weights,
        best=jnp.argmax(weights, axis=1),
        means=unravel(means),
        covariances=jnp.einsum("ti,tixy->txy", share, squares),
        log_likelihood=jnp.sum(likelihoods),
        log_likelihoods=likelihoods[:-1],
        result=last_of(results),
    )
