from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

from .._jax.compiler_options import in_one_program
from .._jax.errors import certify
from .._loop.results import choose, first_failure
from .._solution.path import nan_unless
from .._systems.system import AbstractHybridSystem
from ..analysis._square_root import compress, symmetric_root, triangle
from ._advance import advance
from ._messages import last_of, messages, verdict_of
from ._problem import Given, given, Problem
from ._results import RESULTS, SUCCESS
from ._update import innovation, update


class Factors(eqx.Module):
    """What a smoother needs of each step of a filter.

    - `passing`: the derivative of the filtered state by what the update made of it.
    - `transition`: that of the predicted state by the filtered one before.
    - `process_root`: of the noise of the interval before, at its end.
    - `shift`: by how much the update moved the state.
    - `whitened`: the measurement matrix, and the innovation, in units of the noise.
    """

    passing: Float[Array, "times n n"]
    transition: Float[Array, "times n n"]
    process_root: Float[Array, "times n k"]
    shift: Float[Array, "times n"]
    whitened: tuple[Float[Array, "times m n"], Float[Array, "times m"]]


class FilterSolution(eqx.Module):
    r"""What `hj.estimation.kalman_filter` returns. All arrays have the times in front;
    roots of covariances are matrices $L$ with $P = L L^\top$, in the order of the
    raveled state.

    **Attributes:**

    - `ts`: the times of the measurements, of shape `(times,)`.
    - `xs`, `modes`, `roots`: filtered: with the measurement of that time. The state as
        a pytree; roots of shape `(times, n, n)`.
    - `predicted_xs`, `predicted_modes`, `predicted_roots`: without it.
    - `innovations`: what was measured less what was predicted, of shape `(times, m)`;
        zero where nothing was measured.
    - `innovation_roots`: of their covariances, of shape `(times, m, m)`. An entry that
        was not measured has a variance of one, and no covariance.
    - `nis`: the normalised innovation squared, $\nu^\top V^{-1} \nu$, of shape
        `(times,)`: where the filter is consistent, a sample of $\chi^2$ with as many
        degrees of freedom as `measured` says.
    - `measured`: how many entries were measured, of shape `(times,)`.
    - `log_likelihood`: of all measurements, a scalar; and `log_likelihoods`, of each
        given those before it, of shape `(times,)`.
    - `rewound`: whether the measurement led beyond a guard, of shape `(times,)`.
    - `unreachable`: whether it led beyond one to which the flow does not lead back: the
        estimate has nothing to do with the trajectory any more.
    - `result`: a `hj.estimation.RESULTS`. After a failure all floats are NaN, from the
        time on at which that happened.
    """

    ts: Float[Array, " times"]
    xs: PyTree
    modes: PyTree
    roots: Float[Array, "times n n"]
    predicted_xs: PyTree
    predicted_modes: PyTree
    predicted_roots: Float[Array, "times n n"]
    innovations: Float[Array, "times m"]
    innovation_roots: Float[Array, "times m m"]
    nis: Float[Array, " times"]
    measured: Int[Array, " times"]
    log_likelihood: Float[Array, ""]
    log_likelihoods: Float[Array, " times"]
    rewound: Bool[Array, " times"]
    unreachable: Bool[Array, " times"]
    result: RESULTS  # pyright: ignore
    _factors: Factors


def kalman_filter(
    system: AbstractHybridSystem,
    t0: Real[Any, ""],
    ts: Real[Any, " times"],
    ys: Real[Any, "times m"],
    x0: PyTree,
    root0: Real[Any, "n k"],
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    measurement: Any,
    measurement_root: Any,
    process_root: Any = None,
    diffusion: Any = None,
    saltation: bool = True,
    solver: dfx.AbstractSolver = dfx.Tsit5(),
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    max_steps: int = 256,
    max_events: int = 16,
    throw: bool = True,
) -> FilterSolution:
    r"""The salted Kalman filter: an extended Kalman filter through events.

    From one measurement to the next the mean is simulated, and the covariance goes with
    the derivative of that, in which events are saltation matrices,

    $$P_{k+1}^- = \Phi (P_k + \Delta t\, G G^\top) \Phi^\top + Q_k, \qquad
    \Phi = A_2\, \Xi\, A_1.$$

    Covariances are carried as square roots, and none is inverted: they may be singular,
    as after a plastic impact. Process noise is of two kinds. One enters once in each
    interval, at its start: $x_{k+1} = \varphi(x_k + w_k)$ with $w_k$ of covariance
    $\Delta t\, G G^\top$, where $\varphi$ is the flow with its events. The other is
    white, all along the flow, $\mathrm dx = F\, \mathrm dt + L\, \mathrm dw$: it adds
    $\dot Q = A Q + Q A^\top + L L^\top$, with $Q^+ = \Xi Q^- \Xi^\top$ at events.

    **A measurement that leads beyond a guard** says that its event has happened
    before. The state flows back by the frozen field of its mode to the guard, jumps,
    and flows on to the time of the measurement; the covariance goes with it, by the
    saltation matrix. One that leads back before an event needs nothing: the state is
    then inside of the guard set and leaving it, on the same trajectory as if the event
    was still to come, extended backward. An estimate is of the trajectory *so
    extended*: near an event it may be as far from the state, at equal time, as that
    jumps.

    !!! warning

        The filter is of first order, and knows one mode at a time. It is wrong where
        that is too little: at a measurement while it is uncertain, by the covariance,
        whether an event has happened; and at events that are slow, as the saltation
        matrix grows like one over the speed at which the guard is met: of a ball that
        comes to rest it makes any estimate. `hj.estimation.gaussian_sum_filter` has
        several hypotheses, for the first; `hj.estimation.particle_filter` is right in
        both.

    The result is differentiable, in forward and in reverse mode, once: parameters of
    the system, `args`, and roots of noise can be learnt by `log_likelihood`. Roots are
    differentiated as what they are roots of: what is made of `roots` must depend on
    $L L^\top$ only.

    !!! example

        ```python
        filtered = hj.estimation.kalman_filter(
            ball, 0.0, ts, ys, x0, 0.3 * jnp.eye(2), 0,
            measurement=lambda t, x, mode, args: x[:1],
            measurement_root=0.1 * jnp.eye(1),
            process_root=0.05 * jnp.eye(2),
        )
        ```

    **Main arguments:**

    - `system`, `t0`, `x0`, `mode0`, `args`: as in `hj.simulate`; `x0` is the mean at
        `t0`.
    - `ts`: times of the measurements, of shape `(times,)`, in ascending order, none
        before `t0`.
    - `ys`: what was measured, of shape `(times, m)`. NaN where an entry was not.
    - `root0`: a square root $L$ of the covariance of the state at `t0`, $P = L L^\top$,
        with a row for each entry of the raveled state (of an automaton whose modes have
        states of different structure, those of all modes). Any rank.
    - `measurement`: callable `(t, x, mode, args) -> y`, of shape `(m,)`; or, for a
        `hj.HybridAutomaton`, a mapping from the names of all its modes to callables
        `(t, x, args) -> y`, where `x` is the state of that mode.
    - `measurement_root`: a square root of the covariance of the noise of a measurement,
        of shape `(m, k)`, with linearly independent rows; or a callable
        `(t, x, mode, args)` that returns it.
    - `process_root`: a square root $G$ of the covariance by which process noise grows
        per unit of time, of shape `(n, k)`; or a callable `(t, x, mode, args)` that
        returns it. `None` is no noise.
    - `diffusion`: $L$, of white noise, of shape `(n, k)`, any rank; or a callable
        `(t, x, mode, args)` that returns it. As in `hj.analysis.propagate_covariance`.

    **Other arguments:**

    - `saltation`: without it, events move the covariance by the Jacobian of the reset,
        as if all trajectories met the guard at one time. That is wrong; it is there for
        comparison.
    - `solver`, `stepsize_controller`, `max_steps`, `max_events`: as in `hj.simulate`,
        for each interval between measurements. The derivative is part of the state
        whose error is controlled.
    - `throw`: whether a failure raises. If not, see `result`.

    **Returns:**

    A `hj.estimation.FilterSolution`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.
    - `hj.SimulationError` if `throw` and the filter failed.
    - `NotImplementedError` for second derivatives.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (39), (40); Kong, Payne, Council,
        Johnson, *The salted Kalman filter*, Automatica 131, 2021.
    """
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
        saltation=saltation,
        linearised=True,
    )
    filtered, verdict = in_one_program(_filter, inputs)
    return certify(filtered, verdict, messages(inputs)) if throw else filtered


class Step(eqx.Module):
    """What comes of one step, from a measurement to the next: `here` at its start,
    `begun` with the noise there, `there` at its end."""

    here: Any
    begun: Float[Array, "n k"]
    there: Any
    last_event: Any
    innovation: Any
    updated: Any
    factors: Factors
    rewound: Bool[Array, ""]
    unreachable: Bool[Array, ""]
    result: RESULTS  # pyright: ignore


def _filter(given: Given):
    problem = given.problem()

    def step(carry, inputs):
        return filter_step(problem, carry, inputs)

    init = (problem.x0, problem.root0, problem.mode0, SUCCESS)
    _, out = lax.scan(step, init, problem.steps())
    return _solution(problem, out), verdict_of(problem, out.result)


def filter_step(problem: Problem, carry, inputs, has_noise=True):
    """`has_noise`: or whether the root has that of the start already."""
    x, root, mode, result = carry
    t, t_next, y = inputs
    moved = advance(problem.flow, t, t_next, x, mode)
    here, there = moved.here, moved.there
    here_root = jnp.matmul(here.matrix, root)
    duration = jnp.where(has_noise, t_next - t, 0)
    shift = problem.noise_root(t, here.x, here.mode, duration)
    begun = jnp.concatenate([here_root, shift], axis=1)
    moved_root = jnp.matmul(there.matrix, begun)
    if there.noise is not None:
        white = symmetric_root(there.noise)
        moved_root = jnp.concatenate([moved_root, white], axis=1)
    there_root, noise = compress(moved_root), moved_root[:, here_root.shape[1] :]
    seen = innovation(problem.measurement, t_next, there.x, there.mode, y)
    updated = update(there_root, seen)
    result = first_failure(result, moved.result)
    singular = choose(updated.regular, SUCCESS, RESULTS.singular_innovation)
    result = first_failure(result, singular)
    white = triangle(seen.noise_root)
    whitened = lambda b: solve_triangular(white, b, lower=True)
    factors = Factors(
        passing=here.matrix,
        transition=there.matrix,
        process_root=noise,
        shift=updated.shift,
        whitened=(whitened(seen.matrix), whitened(seen.value)),
    )
    out = Step(
        here=(here.x, here.mode, here_root),
        begun=begun,
        there=(there.x, there.mode, there_root),
        last_event=(there.since, there.event_time),
        innovation=(seen.value, seen.count),
        updated=updated,
        factors=factors,
        rewound=moved.rewound,
        unreachable=moved.unreachable,
        result=result,
    )
    out = nan_unless(result == SUCCESS, out)
    x, root = nan_unless(result == SUCCESS, (there.x + updated.shift, updated.root))
    return (x, root, there.mode, result), out


def _solution(problem: Problem, out: Step) -> FilterSolution:
    # What an update has led to is known in the step after it.
    last = lambda tree: jtu.tree_map(lambda a: a[:-1], tree)
    after = lambda tree: jtu.tree_map(lambda a: a[1:], tree)
    xs, modes, roots = after(out.here)
    predicted_xs, predicted_modes, predicted_roots = last(out.there)
    innovations, measured = last(out.innovation)
    likelihoods = out.updated.log_likelihood
    unravel = jax.vmap(problem.unravel)
    passing = after(out.factors.passing)
    return FilterSolution(
        ts=problem.ts,
        xs=unravel(xs),
        modes=modes,
        roots=roots,
        predicted_xs=unravel(predicted_xs),
        predicted_modes=predicted_modes,
        predicted_roots=predicted_roots,
        innovations=innovations,
        innovation_roots=last(out.updated.innovation_root),
        nis=last(out.updated.nis),
        measured=measured,
        # With that of the last step, which measures nothing, but may have failed.
        log_likelihood=jnp.sum(likelihoods),
        log_likelihoods=last(likelihoods),
        rewound=after(out.rewound),
        unreachable=after(out.unreachable),
        result=last_of(out.result),
        _factors=eqx.tree_at(lambda f: f.passing, last(out.factors), passing),
    )
