from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree, Real

from .._events.firing import same_time
from .._jax.compiler_options import in_one_program
from .._loop.results import success_if
from .._simulate import simulate
from .._solution.event_matrices import event_matrices
from .._solution.solution import Solution
from .._systems.inner import start_of
from .._systems.names import Names
from .._systems.start import start
from .._systems.system import (
    AbstractHybridSystem,
    AbstractTimedSystem,
    names_of,
    next_time,
)
from ._results import RESULTS
from ._riccati import check_definite, check_square


class DifferentialRiccati(eqx.Module):
    """What `hj.control.differential_riccati` returns. Segments are the flow from one
    event to the next, as in `hj.Solution.segment_times`; those beyond the last are
    empty.

    **Attributes:**

    - `solution`: the trajectory, a `hj.Solution`.
    - `ts`: when segments begin and end, of shape `(segments + 1,)`.
    - `P_begin`, `P_end`: at both ends of each, of shape `(segments, n, n)`: `P_end[i]`
        is the limit before event `i`, and `P_begin[i + 1]` that after it.
    - `costate_begin`, `costate_end`: the same of the derivative of the cost, of shape
        `(segments, n)`; zero without costs, NaN before a corner.
    - `result`: a `hj.control.RESULTS`.
    """

    solution: Solution
    ts: Float[Array, " segments+1"]
    P_begin: Float[Array, "segments n n"]
    P_end: Float[Array, "segments n n"]
    costate_begin: Float[Array, "segments n"]
    costate_end: Float[Array, "segments n"]
    result: RESULTS  # pyright: ignore
    _between: Any
    # In two parts, so that it can be in what `jax.vmap` and `jax.jit` return.
    _arrays: Any
    _rest: Any = eqx.field(static=True)

    def evaluate(self, t: ArrayLike) -> Float[Array, "n n"]:
        """`P` at a time; at that of an event, after it."""
        return self._at(t)[1]

    def gain(self, t: ArrayLike) -> Float[Array, "m n"]:
        """`K` at a time: the best control of a deviation `dx` is `-K @ dx`."""
        i, P, x = self._at(t)
        mode = _mode_of(self.solution, i)
        problem = eqx.combine(self._arrays, self._rest)
        _, B = problem.matrices(jnp.asarray(t, self.ts.dtype), x, mode)
        return jnp.linalg.solve(problem.R, B.T @ P)

    def _at(self, t):
        t = jnp.asarray(t, self.ts.dtype)
        i = jnp.searchsorted(self.ts[1:-1], t, side="right")
        i = jnp.minimum(i, self.solution.events.count)
        t0, t1 = self.ts[i], self.ts[i + 1]
        share = jnp.clip((t - t0) / jnp.where(t1 > t0, t1 - t0, 1), 0, 1)
        between = jtu.tree_map(lambda a: a[i], self._between)
        P, _ = between.evaluate(1 - share)
        x = self.solution.evaluate_segment(i, share)
        return i, P, ravel_pytree(x)[0]


def differential_riccati(
    system: AbstractHybridSystem,
    t0: Real[Any, ""],
    t1: Real[Any, ""],
    x0: PyTree,
    mode0: PyTree,
    control: Callable,
    Q: Float[Array, "n n"],
    R: Float[Array, "m m"],
    terminal: Float[Array, "n n"],
    *,
    args_of: Callable | None = None,
    running: Callable | None = None,
    final: Callable | None = None,
    **options: Any,
) -> DifferentialRiccati:
    r"""The linear quadratic regulator along a trajectory, in continuous time, across
    its events.

    $$-\dot P = A^T P + P A - P B R^{-1} B^T P + Q, \qquad P^- = \Xi^T P^+ \Xi, \qquad
    P(t_1) = Q_f$$

    with $A$ and $B$ the derivatives of the vector field, and $\Xi$ the matrix of an
    event. Several events in an instant have that of the order that was simulated.

    With costs also the costate, the derivative of $\int \ell\, \mathrm dt + \ell_f$
    with respect to the state, as it is without feedback:

    $$-\dot p = A^T p + D_x \ell, \qquad p^- = \Xi^T p^+ + (\ell^- - \ell^+) D_x \tau,
    \qquad D_x \tau = -\frac{D_x g}{D_t g + D_x g\, F^-}.$$

    The last term is there as $\tau$, the time of the event, moves: for a little longer
    $\ell^-$ is paid, and not yet $\ell^+$.

    **Arguments:**

    - `system`, `t0`, `t1`, `x0`, `mode0`: as in `hj.simulate`.
    - `control`: a function of time: the controls on the trajectory, of shape `(m,)`.
        (Where it has a kink, let a step end there.)
    - `Q`, `R`: of shapes `(n, n)` and `(m, m)`, costs per unit of time of deviations of
        the raveled state and of the controls.
    - `terminal`: $Q_f$, of shape `(n, n)`.
    - `args_of`: a function that makes the `args` of the system from a control. `None`
        where they are the control.
    - `running`, `final`: $\ell$, a function `(t, x, u) -> cost`, and $\ell_f$, `(t, x)
        -> cost`, which return scalars.
    - `options`: passed to `hj.simulate`.

    **Returns:**

    A `hj.control.DifferentialRiccati`.

    **Raises:**

    - `ValueError` for arguments that cannot be used; it names the argument.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (41), (42). The time of the event:
        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (29).
    """
    if not callable(control):
        raise ValueError(
            "Argument `control` must be a function of time that returns controls of "
            f"shape (m,), but it is a {type(control).__name__}. A constant one is "
            "`lambda t: u`."
        )
    driven = Driven(system, control, args_of)
    begin = start(driven, t0, x0, mode0, None)
    n = ravel_pytree(begin.x)[0].size
    u = jax.eval_shape(control, begin.t)
    if len(u.shape) != 1:
        raise ValueError(
            "Argument `control` must return controls of shape (m,), but their shape is "
            f"{u.shape}."
        )
    check_square("Q", Q, n)
    check_square("R", R, u.shape[0])
    check_square("terminal", terminal, n)
    check_definite(R)
    weights = (Q, R, terminal)
    costs = (running, final)
    return in_one_program(_solve, driven, t0, t1, x0, mode0, weights, costs, options)


class Driven(AbstractTimedSystem):
    """A system whose controls are a function of time."""

    system: AbstractHybridSystem
    control: Callable
    args_of: Callable | None

    def args(self, u):
        return u if self.args_of is None else self.args_of(u)

    def flow(self, t, x, mode, args):
        return self.system.flow(t, x, mode, self.args(self.control(t)))

    def guards(self, t, x, mode, args):
        return self.system.guards(t, x, mode, self.args(self.control(t)))

    def jump(self, t, x, mode, event, args):
        return self.system.jump(t, x, mode, event, self.args(self.control(t)))

    def next_time(self, t, x, mode, args):
        return next_time(self.system, t, x, mode, self.args(self.control(t)))

    def start(self, t, x, mode, args):
        return start_of(self.system, t, x, mode, self.args(self.control(t)))

    @property
    def naming(self) -> Names:
        return names_of(self.system)


class _Problem(eqx.Module):
    driven: Driven
    running: Callable | None
    Q: Float[Array, "n n"]
    R: Float[Array, "m m"]
    unravel: Callable

    def matrices(self, t, x, mode):
        def field(x, u):
            args = self.driven.args(u)
            dx = self.driven.system.flow(t, self.unravel(x), mode, args)
            return ravel_pytree(dx)[0].astype(x.dtype)

        return jax.jacfwd(field, argnums=(0, 1))(x, self.driven.control(t))

    def cost(self, t, x):
        if self.running is None:
            return jnp.zeros_like(t)
        return self.running(t, self.unravel(x), self.driven.control(t))

    def rates(self, t, x, mode, P, p):
        """Backward in time."""
        A, B = self.matrices(t, x, mode)
        PB = P @ B
        dP = A.T @ P + P @ A - PB @ jnp.linalg.solve(self.R, PB.T) + self.Q
        return dP, A.T @ p + jax.grad(self.cost, argnums=1)(t, x)


def _mode_of(sol: Solution, i):
    """That of segment `i`."""
    before = jtu.tree_map(lambda m: m[i - 1], sol.events.mode_after)
    return jtu.tree_map(lambda a, b: jnp.where(i > 0, a, b), before, sol.mode0)


def _solve(driven, t0, t1, x0, mode0, weights, costs, options):
    sol = simulate(driven, t0, t1, x0, mode0, throw=False, **options)
    x1, unravel = ravel_pytree(sol.x1)
    Q, R, terminal = (jnp.asarray(weight, x1.dtype) for weight in weights)
    running, final = costs
    problem = _Problem(driven, running, Q, R, unravel)
    times = sol.segment_times()
    # The error of what is integrated along a trajectory is as that of the trajectory.
    tol = 1e-5 if x1.dtype == jnp.float32 else 1e-9
    controller = dfx.PIDController(rtol=tol, atol=tol)

    def field(s, y, i):
        begin, end = times[i], times[i + 1]
        x = ravel_pytree(sol.evaluate_segment(i, 1 - s))[0]
        rates = problem.rates(end - s * (end - begin), x, _mode_of(sol, i), *y)
        return jtu.tree_map(lambda rate: (end - begin) * rate, rates)

    def one(after, here):
        i, matrix = here
        P, p = after
        # From the segment after the event to the one before it.
        p_jump = _time_term(problem, sol, i)
        exists = i < sol.events.count
        P = jnp.where(exists, matrix.T @ P @ matrix, P)
        p = jnp.where(exists, matrix.T @ p + p_jump, p)
        back = dfx.diffeqsolve(
            dfx.ODETerm(field),
            dfx.Tsit5(),
            0.0,
            1.0,
            None,
            (P, p),
            i,
            saveat=dfx.SaveAt(t1=True, dense=True),
            stepsize_controller=controller,
            max_steps=256,
            throw=False,
        )
        assert back.ys is not None
        begin = jtu.tree_map(lambda a: a[0], back.ys)
        return begin, ((P, p), begin, back.interpolation, back.result == _DONE)

    zero = jnp.zeros_like(x1)
    p1 = zero if final is None else jax.grad(lambda x: final(t1, unravel(x)))(x1)
    matrices = jnp.concatenate([event_matrices(sol), jnp.eye(x1.size)[None]])
    rows = (jnp.arange(matrices.shape[0]), matrices)
    _, parts = lax.scan(one, (terminal, p1), rows, reverse=True)
    (P_end, p_end), (P_begin, p_begin), between, done = parts
    result = success_if(sol.successful, RESULTS.promote(sol.result))
    failed = sol.successful & ~jnp.all(done)
    result = RESULTS.where(failed, RESULTS.not_converged, result)
    arrays, rest = eqx.partition(problem, eqx.is_array)
    return DifferentialRiccati(
        solution=sol,
        ts=times,
        P_begin=P_begin,
        P_end=P_end,
        costate_begin=p_begin,
        costate_end=p_end,
        result=result,
        _between=between,
        _arrays=arrays,
        _rest=rest,
    )


_DONE: Any = dfx.RESULTS.successful


def _time_term(problem: _Problem, sol: Solution, i):
    """What is paid longer at event `i`: `(l- - l+) dtau/dx`."""
    log = sol.events
    i = jnp.minimum(i, log.t.size - 1)
    at = lambda tree: jtu.tree_map(lambda a: a[i], tree)
    t = log.t[i]
    x_before, x_after = (ravel_pytree(at(x))[0] for x in (log.x_before, log.x_after))
    mode, event = at(log.mode_before), jnp.maximum(log.event[i], 0)

    def guard(x):
        return problem.driven.guards(t, problem.unravel(x), mode, None)[event]

    slope = -jax.grad(guard)(x_before) / log.normal_speed[i]
    jump = problem.cost(t, x_before) - problem.cost(t, x_after)
    if problem.running is None:
        return jnp.zeros_like(slope)
    # In a corner other events have times of their own.
    near = same_time(sol.t0, sol.t1)
    times = jnp.append(log.t, jnp.inf)
    shared = (times[i + 1] <= t + near) | ((i > 0) & (times[i - 1] >= t - near))
    return jnp.where(shared, jnp.nan, jump * slope)
