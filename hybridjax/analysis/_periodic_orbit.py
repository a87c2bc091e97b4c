"""Periodic orbits, by shooting."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Complex, Float, Int, PyTree

from .._jax.branch import where
from .._jax.compiler_options import in_one_program
from .._loop.results import first_failure, RESULTS as SIMULATION, success_if
from .._simulate import simulate
from .._solution.solution import Solution
from .._systems.start import as_time, Start
from .._systems.system import AbstractHybridSystem
from ._floquet import floquet_multipliers
from ._monodromy import factors_of
from ._results import certified, RESULTS
from ._return_map import Period, returned, Section, started
from ._signature import Signature


class PeriodicOrbit(eqx.Module):
    """What `hj.analysis.periodic_orbit` returns.

    **Attributes:**

    - `x`, `mode`: where the orbit starts, and closes.
    - `period`: in the system's unit of time.
    - `signature`: its events, a `hj.analysis.Signature`.
    - `multipliers`: the Floquet multipliers, complex, of shape `(n,)`, the largest
        first: eigenvalues of the derivative of the flow over one period (of that map
        which `until` names: of one step, or of a stride), then of `wrap`.
    - `trivial`: which of them is the 1 that belongs to a shift in time; none, if the
        period is given. Shape `(n,)`.
    - `factors`: the matrices whose product has these eigenvalues, see
        `hj.analysis.Monodromy`.
    - `normal_speed`: the least rate $|\\mathrm dg/\\mathrm dt|$ at which a guard is
        passed.
    - `residual`: the largest distance, in any component, from the end to the start (and
        between the segments of multiple shooting).
    - `num_iterations`: of the solver.
    - `solution`: the `hj.Solution` over one period.
    - `result`: a `hj.analysis.RESULTS`.
    """

    x: PyTree
    mode: PyTree
    period: Float[Array, ""]
    signature: Signature
    multipliers: Complex[Array, " n"]
    trivial: Bool[Array, " n"]
    factors: Float[Array, "factors n n"]
    normal_speed: Float[Array, ""]
    residual: Float[Array, ""]
    num_iterations: Int[Array, ""]
    solution: Solution
    result: RESULTS

    @property
    def is_stable(self) -> Bool[Array, ""]:
        """Whether all multipliers but the trivial one are within the unit circle."""
        return jnp.all((jnp.abs(self.multipliers) < 1) | self.trivial, axis=-1)


def periodic_orbit(
    system: AbstractHybridSystem,
    until: Section | Period,
    x0: PyTree,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    t0: Any = 0.0,
    wrap: Callable[[PyTree], PyTree] | None = None,
    num_segments: int = 1,
    solver: Any = None,
    max_iterations: int = 32,
    throw: bool = True,
    **options: Any,
) -> PeriodicOrbit:
    r"""Finds a periodic orbit near a guess: stable or not, by shooting.

    Solves $P(x) = x$ for the return map $P$ of `until`. With a section nothing else is
    needed, as $P$ does not change along the flow; an autonomous system with an unknown
    period $T$ has the equation $F(\bar x)^\top (x - \bar x) = 0$ in addition, with the
    guess $\bar x$.

    The state, the period and the multipliers are differentiable with respect to `args`
    and the arrays of `system`, by the implicit function theorem: the first two in both
    modes, the multipliers in forward mode, as that takes second derivatives.

    **Arguments:**

    - `system`, `args`: as for `hj.simulate`.
    - `until`: what makes a period: a `hj.analysis.Section`, or a `hj.analysis.Period`.
    - `x0`, `mode0`: the guess. For a section, right after its event. The mode stays.
    - `t0`: when the orbit starts.
    - `wrap`: as for `hj.analysis.return_map`.
    - `num_segments`: of multiple shooting: the guess's trajectory is cut into so many,
        equally long (the last one ends at the section), whose states are all unknown.
        Very unstable orbits need it.
    - `solver`: an `optimistix.Newton` (`None` is one with tolerances ten times those of
        the simulation's default), an `optimistix.LevenbergMarquardt`, or another root
        finder or least squares solver.
    - `max_iterations`: of the solver.
    - `throw`: whether a failure raises. If not, see `result`.
    - `options`: passed to `hj.simulate`. Of `max_events`, no more than needed.

    **Returns:**

    A `hj.analysis.PeriodicOrbit`. If its events are not those of the guess, its
    `result` is `signature_changed`, and it is an orbit all the same.

    **Raises:**

    - `ValueError` for arguments that cannot be used.
    - `hj.SimulationError` if `throw` and there is no such orbit near the guess.
    """
    begin = started(system, until, t0, x0, mode0, args)
    if not isinstance(num_segments, (int, np.integer)) or num_segments < 1:
        raise ValueError(
            f"Argument `num_segments` must be a positive integer, not {num_segments!r}."
        )
    if solver is None:
        dtype = begin.t.dtype
        tol = 1e-7 if jnp.finfo(dtype).bits == 64 else 1e-4
        solver = optx.Newton(rtol=tol, atol=tol)
    search = _Search(
        until, args, wrap, int(num_segments), solver, int(max_iterations), options
    )
    out = in_one_program(orbit_near, begin, search)
    return certified(out, out.result) if throw else out


class _Search(eqx.Module):
    until: Section | Period
    args: PyTree
    wrap: Callable | None
    num_segments: int = eqx.field(static=True)
    solver: Any
    max_iterations: int = eqx.field(static=True)
    options: dict[str, Any]


class _Segments(eqx.Module):
    """The guess, cut into segments."""

    durations: Float[Array, " segments"]  # from the start to theirs
    x: Float[Array, "segments n"]
    mode: PyTree
    counts: Int[Array, " segments"]  # firings of the section's guard that end each


# More often than any guard fires.
_NEVER = 2**30


def orbit_near(begin: Start, search: _Search) -> PeriodicOrbit:
    """Without checks."""
    until = search.until
    x_guess, unravel = ravel_pytree(begin.x)
    guess = returned(begin, until, search.args, search.wrap, search.options)
    segments = jax.lax.stop_gradient(_cut(begin, search, guess))
    unknown_period = isinstance(until, Period) and until.autonomous

    def residual(unknown, given):
        begin, search, segments = given
        xs, period = unknown
        gaps = _gaps(begin, search, segments, xs, period, unravel)
        distance = jnp.max(jnp.abs(gaps))
        if not unknown_period:
            return gaps, distance
        x_bar = segments.x[0]
        flow = begin.system.flow(begin.t, unravel(x_bar), begin.mode, search.args)
        direction = jax.lax.stop_gradient(ravel_pytree(flow)[0])
        direction = direction / jnp.linalg.norm(direction)
        return (gaps, jnp.dot(direction, xs[0] - x_bar)), distance

    period = jnp.asarray(guess.time) if unknown_period else None
    root = optx.root_find(
        residual,
        search.solver,
        (segments.x, period),
        (begin, search, segments),
        has_aux=True,
        # Of simultaneous events, the order that is recorded.
        options=dict(jac="bwd"),
        max_steps=search.max_iterations,
        throw=False,
    )
    xs, period = root.value
    begin = dataclasses.replace(begin, x=unravel(xs[0]))
    if unknown_period:
        until = eqx.tree_at(lambda p: p.value, until, period)
    orbit = returned(begin, until, search.args, search.wrap, search.options)
    factors, flows = factors_of(
        begin.system, orbit.solution, search.args, search.options
    )
    wrap = search.wrap
    if wrap is not None:
        wrapped = lambda x: ravel_pytree(wrap(unravel(x)))[0]
        x1 = ravel_pytree(orbit.solution.x1)[0]
        factors = jnp.concatenate([factors, jax.jacfwd(wrapped)(x1)[None]])
    multipliers = floquet_multipliers(factors)
    nearest = jnp.argmin(jnp.abs(multipliers - 1))
    trivial = jnp.arange(x_guess.shape[0]) == nearest
    if not isinstance(until, Section) and not until.autonomous:
        trivial = jnp.zeros_like(trivial)
    converged = root.result == optx.RESULTS.successful
    same = guess.signature.equals(orbit.signature)
    return PeriodicOrbit(
        x=begin.x,
        mode=begin.mode,
        period=orbit.time,
        signature=orbit.signature,
        multipliers=multipliers,
        trivial=trivial,
        factors=factors,
        normal_speed=orbit.normal_speed,
        residual=root.aux,
        num_iterations=root.stats["num_steps"],
        solution=orbit.solution,
        result=first_failure(
            guess.result,
            success_if(converged, RESULTS.not_converged),
            orbit.result,
            success_if(flows, RESULTS.max_steps_reached),
            success_if(same, RESULTS.signature_changed),
        ),
    )


def _cut(begin: Start, search: _Search, guess) -> _Segments:
    sol, until, n = guess.solution, search.until, search.num_segments
    durations = guess.time * jnp.arange(n) / n
    one_row = lambda tree: jtu.tree_map(lambda a: a[None], tree)
    # The start itself, whatever fires there.
    x, mode = one_row(begin.x), one_row(begin.mode)
    if n > 1:
        more = sol.evaluate_with_mode(begin.t + durations[1:])
        join = lambda a, b: jnp.concatenate([a, b])
        x, mode = jtu.tree_map(join, (x, mode), more)
    counts = jnp.zeros((n,), jnp.int32)
    if isinstance(until, Section):
        guards = until.terminal.guards(begin.system, _number_of_guards(begin, search))
        counted = jnp.asarray(guards)[sol.events.event] & (sol.events.event >= 0)
        before = jnp.sum(counted & (sol.events.t <= begin.t + durations[-1]))
        last = until.terminal.count - before
        counts = jnp.where(jnp.arange(n) == n - 1, last, _NEVER).astype(jnp.int32)
    return _Segments(durations, jax.vmap(lambda x: ravel_pytree(x)[0])(x), mode, counts)


def _number_of_guards(begin: Start, search: _Search) -> int:
    guards = lambda: begin.system.guards(begin.t, begin.x, begin.mode, search.args)
    return jax.eval_shape(guards).shape[0]


def _gaps(begin: Start, search: _Search, segments: _Segments, xs, period, unravel):
    """From the end of each segment to the start of the next."""
    until, n, dtype = search.until, search.num_segments, begin.t.dtype
    is_last = jnp.arange(n) == n - 1
    if isinstance(until, Section):
        starts = begin.t + segments.durations
        last = begin.t + as_time(until.max_time, dtype, "max_time")
        ends = jnp.where(is_last, last, jnp.roll(starts, -1))
    else:
        whole = as_time(until.value, dtype, "value") if period is None else period
        starts = begin.t + whole * jnp.arange(n) / n
        ends = starts + whole / n

    def end(is_last, t0, t1, x, mode, count):
        here, options = (begin.system, t0, t1, unravel(x), mode), dict(search.options)
        crossed = True
        if isinstance(until, Section):
            options["terminal_event"] = eqx.tree_at(
                lambda e: e.count, until.terminal, count
            )
        sol = simulate(*here, search.args, throw=False, **options)
        x1 = sol.x1
        if search.wrap is not None:
            x1 = where(is_last, search.wrap(x1), x1)
        if isinstance(until, Section):
            crossed = (sol.result == SIMULATION.event_occurred) | ~is_last
        return jnp.where(sol.successful & crossed, ravel_pytree(x1)[0], jnp.nan)

    gaps = jax.vmap(end)(is_last, starts, ends, xs, segments.mode, segments.counts)
    return gaps - jnp.roll(xs, -1, axis=0)
