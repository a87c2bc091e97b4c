"""Branches of periodic orbits, by pseudo-arclength continuation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Complex, Float, Int, PyTree

from .._jax.branch import where
from .._jax.compiler_options import in_one_program
from .._loop.results import choose, first_failure, success_if
from .._systems.start import as_time, Start
from .._systems.system import AbstractHybridSystem
from ._bifurcations import Bifurcation, bifurcations_of, doubled_from
from ._floquet import eigenvalues
from ._results import certified, RESULTS, SUCCESS
from ._return_map import Period, returned, Section, started
from ._signature import Signature


# Of Newton's method.
_ITERATIONS = 10
# What a step may turn by, and how steps shrink and grow.
_TURN, _SHRINK, _GROW = 0.9, 0.4, 1.3
# A branch ends where steps would have to be this part of the first.
_SHORTEST = 1e-4
# A branch that ends at a normal speed of this part of its greatest ends in grazing.
_GRAZES = 0.1


class Branch(eqx.Module):
    """What `hj.analysis.continue_orbit` returns: orbits along a branch. All arrays have
    `num_attempts + 1` rows, of which the first `count` exist; the rest is NaN.

    **Attributes:**

    - `parameter`: of each orbit.
    - `x`: where it starts, a state with rows.
    - `period`: in the system's unit of time.
    - `multipliers`: eigenvalues of the derivative of the return map, complex, shape
        `(rows, n)`. For a section, there is a 0 in place of the trivial 1.
    - `jacobian`: that derivative, shape `(rows, n, n)`.
    - `normal_speed`: the least rate at which a guard is passed.
    - `tangent`: of the branch, in the direction in which it was followed: the state,
        the period if that is unknown, the parameter; shape `(rows, ...)`.
    - `arclength`: from the first orbit on.
    - `count`: how many there are.
    - `signature`: what happens in all of them.
    - `result`: a `hj.analysis.RESULTS`: `successful`; or what it ended by.
    """

    parameter: Float[Array, " rows"]
    x: PyTree
    period: Float[Array, " rows"]
    multipliers: Complex[Array, "rows n"]
    jacobian: Float[Array, "rows n n"]
    normal_speed: Float[Array, " rows"]
    tangent: Float[Array, "rows m"]
    arclength: Float[Array, " rows"]
    count: Int[Array, ""]
    signature: Signature
    result: RESULTS
    is_autonomous: bool = eqx.field(static=True)
    _unravel: Callable = eqx.field(static=True)

    @property
    def is_stable(self) -> Bool[Array, " rows"]:
        """Whether all multipliers but a trivial one are within the unit circle."""
        size = jnp.abs(self.multipliers)
        if self.is_autonomous:
            nearest = jnp.argmin(jnp.abs(self.multipliers - 1), axis=-1)
            trivial = jax.nn.one_hot(nearest, size.shape[-1], dtype=bool)
            size = jnp.where(trivial, 0, size)
        return jnp.all(size < 1, axis=-1)

    def bifurcations(self) -> list[Bifurcation]:
        """Where orbits are born, vanish or lose their stability. Values are known:
        outside of `jax.jit`, and for one branch.

        **Returns:**

        A list of `hj.analysis.Bifurcation`, in the order of the branch, between orbits
        of which one is on either side. They are interpolated by cubics.
        """
        return bifurcations_of(self)

    def doubled(self, bifurcation: Bifurcation) -> tuple[PyTree, np.ndarray]:
        """Where to begin the branch of orbits with twice the period, at a period
        doubling: arguments `x0` and `tangent` of `hj.analysis.continue_orbit`, with
        `bifurcation.parameter` for `parameter0`, and an `until` of twice as much.

        **Raises:**

        - `ValueError` if it is no period doubling.
        """
        return doubled_from(self, bifurcation)


def continue_orbit(
    system_of: Callable[[Float[Array, ""]], AbstractHybridSystem],
    parameter0: Any,
    until: Section | Period,
    x0: PyTree,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    step: Any,
    num_attempts: int,
    bounds: tuple[Any, Any] = (-np.inf, np.inf),
    tangent: Any = None,
    t0: Any = 0.0,
    wrap: Callable[[PyTree], PyTree] | None = None,
    throw: bool = True,
    **options: Any,
) -> Branch:
    r"""Follows a periodic orbit as a parameter changes, around folds, whether it is
    stable or not.

    Orbits are points $(x, p)$ of a curve, on which steps of a given length are made:
    along the tangent, and then, by Newton's method, at a right angle to it. A step is
    taken again with a part of its length if it does not converge, turns by more than 25
    degrees, or leads to another sequence of events: so a branch that ends where a guard
    is grazed is followed up to there.

    **Arguments:**

    - `system_of`: the system as a function of the parameter, a scalar.
    - `parameter0`: where the branch begins.
    - `until`, `x0`, `mode0`, `args`, `t0`, `wrap`: as for `hj.analysis.periodic_orbit`:
        the guess of an orbit at `parameter0`.
    - `step`: length of the first step, in the norm of state and parameter. Negative:
        towards smaller parameters.
    - `num_attempts`: how many steps are tried.
    - `bounds`: of the parameter. The branch ends beyond them.
    - `tangent`: to begin with, in place of that of the branch: of the state and the
        parameter, see `Branch.doubled`. `x0` is then taken for an orbit.
    - `throw`: whether it raises if there is no orbit at `parameter0`.
    - `options`: passed to `hj.simulate`.

    **Returns:**

    A `hj.analysis.Branch`, whose `result` says how it ended: `successful` if all
    attempts were made, or the bounds were reached; `grazing`; or `not_converged`.

    **Raises:**

    - `ValueError` for arguments that cannot be used.
    - `hj.SimulationError` if `throw` and there is no orbit to begin with.

    ??? cite "Reference"

        Keller, *Numerical solution of bifurcation and nonlinear eigenvalue problems*
        (1977). Kuznetsov, *Elements of applied bifurcation theory*, Section 10.2.
    """
    probe = system_of(jnp.asarray(parameter0, float))
    begin = started(probe, until, t0, x0, mode0, args)
    if not isinstance(num_attempts, (int, np.integer)) or num_attempts < 1:
        raise ValueError(
            "Argument `num_attempts` must be a positive integer, but it is "
            f"{num_attempts!r}."
        )
    dtype = begin.t.dtype
    size = ravel_pytree(begin.x)[0].size
    unknown_period = isinstance(until, Period) and until.autonomous
    if tangent is not None and jnp.shape(tangent) != (size + 1,):
        raise ValueError(
            "Argument `tangent` must have an entry for each of the state, and one for "
            f"the parameter, shape {(size + 1,)}, but it has {jnp.shape(tangent)}."
        )
    follow = _Follow(
        system_of,
        until,
        args,
        wrap,
        options,
        unknown_period,
        begin.t,
        begin.mode,
        ravel_pytree(begin.x)[1],
    )
    given = as_time(parameter0, dtype, "parameter0"), begin.x, tangent
    low, high = (jnp.asarray(b, dtype) for b in bounds)
    limits = as_time(step, dtype, "step"), (low, high)
    out = in_one_program(_branch, follow, *given, *limits, int(num_attempts))
    started_well = success_if(out.count > 0, out.result)
    return certified(out, started_well) if throw else out


class _Follow(eqx.Module):
    """The equations of a branch: `points` are states, the period if that is unknown,
    and the parameter."""

    system_of: Callable
    until: Section | Period
    args: PyTree
    wrap: Callable | None
    options: dict[str, Any]
    unknown_period: bool = eqx.field(static=True)
    t0: Array
    mode: PyTree
    unravel: Callable = eqx.field(static=True)

    def returned(self, point):
        system, until = self.system_of(point[-1]), self.until
        x = self.unravel(point[: self._size(point)])
        if self.unknown_period:
            until = eqx.tree_at(lambda p: p.value, until, point[-2])
        begin = Start(system, self.t0, x, self.mode)
        return returned(begin, until, self.args, self.wrap, self.options)

    def _size(self, point) -> int:
        return point.size - 1 - self.unknown_period

    def gaps(self, point):
        """From the start to the return; and what else there is to know."""
        back = self.returned(point)
        gap = ravel_pytree(back.x)[0] - point[: self._size(point)]
        return gap, (gap, back.time, back.normal_speed, back.signature, back.result)

    def phase(self, point, at):
        """The equation of an unknown period: a row, and what it should be zero of."""
        if not self.unknown_period:
            nothing = jnp.zeros((0, point.size), point.dtype)
            return nothing, nothing[:, 0]
        n = self._size(point)
        system = self.system_of(at[-1])
        flow = system.flow(self.t0, self.unravel(at[:n]), self.mode, self.args)
        row = ravel_pytree(flow)[0]
        row = jnp.pad(row / jnp.linalg.norm(row), (0, 2))
        return row[None], jnp.dot(row, point - at)[None]


class _Point(eqx.Module):
    """An orbit on the branch."""

    point: Array
    jacobian: Array  # of the gaps
    time: Array
    normal_speed: Array
    signature: Signature
    result: RESULTS


def _corrected(follow: _Follow, guess, tangent, at, ended) -> tuple[_Point, Array]:
    """Newton's method, at a right angle to the tangent. By hand, as the derivative at
    the end is that of the branch: no second program for it. Nothing where the branch
    has `ended`."""
    tol = 1e-8 if jnp.finfo(guess.dtype).bits == 64 else 1e-4

    def look(point):
        jacobian, (gap, *more) = jax.jacrev(follow.gaps, has_aux=True)(point)
        return gap, _Point(point, jacobian, *more)

    def body(carry):
        k, point, *_ = carry
        gap, here = look(point)
        row, phase = follow.phase(point, at)
        matrix = jnp.concatenate([here.jacobian, row, tangent[None]])
        rest = jnp.dot(tangent, point - guess)
        change = jnp.linalg.solve(matrix, jnp.concatenate([gap, phase, rest[None]]))
        size = jnp.max(jnp.abs(change))
        converged = size < tol * (1 + jnp.max(jnp.abs(point)))
        new = jnp.where(converged, point, point - change)
        return k + 1, new, here, converged, ~jnp.isfinite(size)

    def goes_on(carry):
        k, _, _, converged, failed = carry
        return (k < _ITERATIONS) & ~converged & ~failed

    blank = jax.eval_shape(lambda point: look(point)[1], guess)
    blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), blank)
    no = jnp.asarray(False)
    init = jnp.asarray(0), guess, blank, no, ended
    _, _, here, converged, _ = lax.while_loop(goes_on, body, init)
    return here, converged


def _branch(follow: _Follow, p0, x0, tangent, step, bounds, num_attempts) -> Branch:
    x_flat = ravel_pytree(x0)[0]
    until: Any = follow.until
    period = [jnp.asarray(until.value)[None]] if follow.unknown_period else []
    p0 = p0[None].astype(x_flat.dtype)
    first = jnp.concatenate([x_flat, *period, p0])
    n, m = x_flat.size, first.size
    along_parameter = jnp.zeros_like(first).at[-1].set(1)
    switches = tangent is not None
    given = along_parameter
    if switches:
        tangent = jnp.asarray(tangent, first.dtype)
        given = jnp.concatenate([tangent[:n], 0 * first[n : m - 1], tangent[-1:]])
        given = given * jnp.sign(step)
    low, high = bounds

    def attempt(carry, _):
        at, tangent, length, reach, reference, count, ended, fastest = carry
        guess = at + length * tangent
        here, converged = _corrected(follow, guess, tangent, at, ended)
        begins = count == 0
        reference = where(begins, here.signature, reference)
        same = here.signature.equals(reference)
        row, _ = follow.phase(here.point, at)
        matrix = jnp.concatenate([here.jacobian, row, tangent[None]])
        new = jnp.linalg.solve(matrix, along_parameter)
        new = new / jnp.linalg.norm(new)
        turns = jnp.dot(new, tangent) < _TURN
        # The first one is at a given parameter: it is the branch that turns then.
        free = begins & ~jnp.asarray(switches)
        good = converged & same & (free | ~turns) & ~ended
        new = jnp.where(free, new * jnp.sign(step), new)
        p = here.point[-1]
        outside = good & ((p < low) | (p > high))
        grown = jnp.minimum(_GROW * jnp.abs(length), 4 * jnp.abs(step))
        length_after = jnp.where(good, grown, _SHRINK * length)
        length_after = jnp.where(good & free, jnp.abs(step), length_after)
        short = ~good & (length_after < _SHORTEST * jnp.abs(step))
        reach_after = jnp.where(good, reach + length, reach)
        fastest = jnp.where(good, jnp.maximum(fastest, here.normal_speed), fastest)
        derivative = here.jacobian[:, :n] + jnp.eye(n, dtype=first.dtype)
        out = (
            here.result,
            good,
            here.point,
            here.time,
            derivative,
            eigenvalues(derivative),
            here.normal_speed,
            new,
            reach_after,
        )
        carry = (
            jnp.where(good, here.point, at),
            jnp.where(good, new, tangent),
            length_after,
            reach_after,
            reference,
            count + good,
            ended | outside | short,
            fastest,
        )
        return carry, out

    shape = jax.eval_shape(lambda point: follow.returned(point).signature, first)
    blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
    zero = jnp.zeros_like(step)
    length = jnp.abs(step) if switches else zero
    init = first, given, length, zero, blank, jnp.asarray(0), jnp.asarray(False), zero
    carry, rows = lax.scan(attempt, init, None, length=num_attempts + 1)
    results, good, *columns = rows
    # Those that were taken, in front.
    order = jnp.argsort(~good, stable=True)
    count = jnp.sum(good)
    exists = jnp.arange(num_attempts + 1) < count

    def pick(a):
        wide = exists.reshape(exists.shape + (1,) * (a.ndim - 1))
        return jnp.where(wide, a[order], jnp.nan)

    point, time, jacobian, multipliers, speed, tangents, reach = (
        pick(a) for a in columns
    )
    last = speed[jnp.maximum(count - 1, 0)]
    inside = (point[:, -1] >= low) & (point[:, -1] <= high)
    went_through = jnp.any(exists & ~inside) | ~carry[-2]
    grazes = last < _GRAZES * carry[-1]
    ended_by = choose(grazes, RESULTS.grazing, RESULTS.not_converged)
    # Without any orbit, it may be the simulation that failed.
    first = jax.tree.map(lambda a: a[0], results)
    ended_by = choose(count > 0, ended_by, first_failure(first, ended_by))
    return Branch(
        parameter=point[:, -1],
        x=jax.vmap(follow.unravel)(point[:, :n]),
        period=time,
        multipliers=multipliers,
        jacobian=jacobian,
        normal_speed=speed,
        tangent=tangents,
        arclength=reach,
        count=count,
        signature=carry[4],
        result=choose(went_through & (count > 0), SUCCESS, ended_by),
        is_autonomous=follow.unknown_period,
        _unravel=follow.unravel,
    )
