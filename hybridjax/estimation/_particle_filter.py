from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._jax.errors import certify
from .._loop.results import choose, first_failure
from .._solution.path import nan_unless
from .._systems.system import AbstractHybridSystem
from ..analysis._square_root import triangle
from ._advance import advance
from ._messages import last_of, messages, verdict_of
from ._problem import check_number, Given, given, Problem
from ._results import RESULTS, SUCCESS
from ._update import innovation


class ParticleSolution(eqx.Module):
    """What `hj.estimation.particle_filter` returns. All arrays but `log_likelihood`
    have the times in front.

    **Attributes:**

    - `ts`: the times of the measurements, of shape `(times,)`.
    - `xs`, `modes`: the particles, given the measurements up to that time; the second
        axis is theirs.
    - `log_weights`: the logarithms of their weights, of which the sum is one, of shape
        `(times, num_particles)`; minus infinity for a particle that failed.
    - `means`, `covariances`: of the particles: states as pytrees; and of the raveled
        state, of shape `(times, n, n)`.
    - `effective`: the effective number of particles, of shape `(times,)`.
    - `log_likelihood`: of all measurements, an estimate; and `log_likelihoods`, of each
        given those before it, of shape `(times,)`.
    - `result`: a `hj.estimation.RESULTS`. After a failure all floats are NaN, from the
        time on at which that happened.
    """

    ts: Float[Array, " times"]
    xs: PyTree
    modes: PyTree
    log_weights: Float[Array, "times particles"]
    means: PyTree
    covariances: Float[Array, "times n n"]
    effective: Float[Array, " times"]
    log_likelihood: Float[Array, ""]
    log_likelihoods: Float[Array, " times"]
    result: RESULTS  # pyright: ignore


def particle_filter(
    system: AbstractHybridSystem,
    t0: Real[Any, ""],
    ts: Real[Any, " times"],
    ys: Real[Any, "times m"],
    x0: PyTree,
    root0: Real[Any, "n k"],
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    key: Array,
    num_particles: int,
    measurement: Any,
    measurement_root: Any,
    process_root: Any = None,
    solver: dfx.AbstractSolver = dfx.Tsit5(),
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    max_steps: int = 256,
    max_events: int = 16,
    throw: bool = True,
) -> ParticleSolution:
    r"""The bootstrap particle filter: a batch of simulations, weighted by what was
    measured.

    It knows nothing of derivatives: kinks, several modes at once and beliefs of any
    shape are right, in the limit of many particles. Slow, and the truth for tests.

    The model is that of `hj.estimation.kalman_filter`, without `diffusion`: particles
    begin with $x_0 + L z$, each interval begins with noise of its own, $x_{k+1} =
    \varphi(x_k + w_k)$, and one that noise has put beyond a guard flows back to it,
    jumps, and comes on again. Particles are drawn anew (systematic resampling) where
    fewer than half of them count. One whose simulation fails has the weight zero.

    It has no derivatives: where particles are drawn anew, they do not exist.

    **Arguments:**

    - `key`: a key of `jax.random`.
    - `num_particles`: how many.
    - All others: as in `hj.estimation.kalman_filter`.

    **Returns:**

    A `hj.estimation.ParticleSolution`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.
    - `hj.SimulationError` if `throw` and no particle was left.

    ??? cite "Reference"

        Gordon, Salmond, Smith, *Novel approach to nonlinear/non-Gaussian Bayesian state
        estimation*, 1993.
    """
    check_number("num_particles", num_particles)
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
        solver=solver,
        stepsize_controller=stepsize_controller,
        max_steps=max_steps,
        max_events=max_events,
        saltation=True,
        linearised=False,
    )
    solution, verdict = in_one_program(_filter, inputs, key, num_particles)
    return certify(solution, verdict, messages(inputs)) if throw else solution


def _filter(given: Given, key, number):
    problem = given.problem()
    key, first = jr.split(key)
    draw = jr.normal(first, (number, problem.root0.shape[1]), problem.x0.dtype)
    xs = problem.x0[None] + jnp.matmul(draw, problem.root0.T)
    modes = jtu.tree_map(
        lambda m: jnp.broadcast_to(m, (number, *m.shape)), problem.mode0
    )
    weights = jnp.full((number,), -jnp.log(number).astype(xs.dtype))

    def step(carry, inputs):
        return _step(problem, number, carry, inputs)

    init = (xs, modes, weights, SUCCESS)
    starts = jnp.concatenate([problem.t0[None], problem.ts[:-1]])
    keys = jr.split(key, problem.ts.shape[0])
    _, out = lax.scan(step, init, (starts, problem.ts, problem.ys, keys))
    out = eqxi.nondifferentiable(
        out,
        msg="A particle filter has no derivative, as particles are drawn anew. Use the "
        "`log_likelihood` of `hj.estimation.kalman_filter`.",
    )
    solution, results = _solution(problem, *out)
    return solution, verdict_of(problem, results)


def _step(problem: Problem, number, carry, inputs):
    xs, modes, weights, result = carry
    t, t_next, y, key = inputs
    key, *keys = jr.split(key, 3)

    def particle(x, mode, key):
        root = problem.noise_root(t, x, mode, t_next - t)
        x = x + root @ jr.normal(key, (root.shape[1],), x.dtype)
        moved = advance(problem.flow, t, t_next, x, mode)
        x, mode = moved.there.x, moved.there.mode
        lives = moved.result == SUCCESS
        seen = innovation(problem.measurement, t_next, x, mode, y)
        return x, mode, jnp.where(lives, _log_density(seen), -jnp.inf)

    xs, modes, likelihoods = jax.vmap(particle)(xs, modes, jr.split(keys[0], number))
    weights = weights + jnp.where(jnp.isnan(likelihoods), -jnp.inf, likelihoods)
    likelihood = logsumexp(weights)
    some = jnp.isfinite(likelihood)
    result = first_failure(
        result, choose(some, RESULTS.successful, RESULTS.no_particles)
    )
    weights = jnp.where(some, weights - likelihood, weights)
    # What has no weight may be no number.
    xs = jnp.where((weights > -jnp.inf)[:, None], xs, 0)
    share = jnp.exp(weights)
    mean = share @ xs
    apart = xs - mean[None]
    covariance = jnp.matmul(apart.T * share[None], apart)
    effective = 1 / jnp.sum(share**2)
    out = (xs, weights, mean, covariance, effective, likelihood)
    out = nan_unless(result == SUCCESS, out), modes, result
    chosen = jnp.where(
        effective < number / 2, _systematic(keys[1], share), jnp.arange(number)
    )
    even = jnp.full_like(weights, -jnp.log(number))
    weights = jnp.where(effective < number / 2, even, weights)
    xs, modes = jtu.tree_map(lambda a: a[chosen], (xs, modes))
    return (xs, modes, weights, result), out


def _log_density(seen) -> Float[Array, ""]:
    lower = triangle(seen.noise_root)
    white = solve_triangular(lower, seen.value, lower=True)
    constant = seen.count * jnp.log(2 * jnp.pi)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(lower))))
    return -(jnp.sum(white**2) + constant) / 2 - log_det


def _systematic(key, share):
    """Numbers of particles, each as often as its share says, to the next integer."""
    number = share.shape[0]
    points = (jr.uniform(key, dtype=share.dtype) + jnp.arange(number)) / number
    chosen = jnp.searchsorted(jnp.cumsum(share), points)
    # The sum of all shares is one to rounding.
    return jnp.minimum(chosen, jnp.max(jnp.where(share > 0, jnp.arange(number), 0)))


def _solution(problem: Problem, out, modes, results):
    xs, weights, means, covariances, effective, likelihoods = out
    unravel = jax.vmap(problem.unravel)
    solution = ParticleSolution(
        ts=problem.ts,
        xs=jax.vmap(unravel)(xs),
        modes=modes,
        log_weights=weights,
        means=unravel(means),
        covariances=covariances,
        effective=effective,
        log_likelihood=jnp.sum(likelihoods),
        log_likelihoods=likelihoods,
        result=last_of(results),
    )
    return solution, results
