from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._jax.branch import where
from .._jax.compiler_options import in_one_program
from .._jax.tracing import is_traced
from .._loop.results import first_failure
from .._simulate import simulate
from .._systems.start import as_time, start
from .._systems.system import AbstractHybridSystem
from ._results import certified, result_of, RESULTS, SUCCESS


class LyapunovState(eqx.Module):
    """Where `hj.analysis.lyapunov_exponents` has come to, to go on from.

    **Attributes:**

    - `t`, `x`, `mode`: of the trajectory.
    - `basis`: orthonormal tangents, the columns of an array of shape `(n, k)`.
    - `growth`: the logarithms of how much they have grown, shape `(k,)`.
    - `time`: in which they have.
    """

    t: Float[Array, ""]
    x: PyTree
    mode: PyTree
    basis: Float[Array, "n k"]
    growth: Float[Array, " k"]
    time: Float[Array, ""]

    def restarted(self) -> "LyapunovState":
        """The same, but without what has grown: so what it took to come to an attractor
        has no part in exponents."""
        nothing = jnp.zeros_like(self.growth), jnp.zeros_like(self.time)
        return eqx.tree_at(lambda s: (s.growth, s.time), self, nothing)


class LyapunovExponents(eqx.Module):
    """What `hj.analysis.lyapunov_exponents` returns.

    **Attributes:**

    - `exponents`: the largest first, per unit of time, shape `(k,)`.
    - `history`: what they were after each interval, shape `(num_intervals, k)`.
    - `num_events`: how many events there were in each interval.
    - `state`: a `LyapunovState`, to go on with.
    - `result`: a `hj.analysis.RESULTS`.
    """

    exponents: Float[Array, " k"]
    history: Float[Array, "num_intervals k"]
    num_events: Array
    state: LyapunovState
    result: RESULTS


def lyapunov_exponents(
    system: AbstractHybridSystem,
    interval: Any,
    num_intervals: int,
    x0: PyTree = None,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    t0: Any = 0.0,
    num_exponents: int | None = None,
    state: LyapunovState | None = None,
    throw: bool = True,
    **options: Any,
) -> LyapunovExponents:
    r"""How fast perturbations of a trajectory grow, on average: with events, by their
    saltation matrices.

    Tangents go along with the trajectory, and are made orthonormal at the end of each
    interval (QR). What they grew by until then adds up. There is no exponent where a
    trajectory comes to rest by events that lose rank: one of $-\infty$ is returned as
    such.

    !!! example

        ```python
        settled = hj.analysis.lyapunov_exponents(system, 1.0, 100, x0)
        # Without what it took to come to the attractor:
        state = settled.state.restarted()
        result = hj.analysis.lyapunov_exponents(system, 1.0, 1000, state=state)
        ```

    **Arguments:**

    - `system`, `x0`, `mode0`, `args`: as for `hj.simulate`.
    - `interval`: how long perturbations grow before they are made orthonormal again: no
        longer than it takes the largest to outgrow the others by ten digits.
    - `num_intervals`: how many there are.
    - `t0`: when it starts.
    - `num_exponents`: how many, $k$, from 1 to $n$, which is the default.
    - `state`: to go on from, in place of `x0`, `mode0` and `t0`.
    - `throw`: whether a failure raises. If not, see `result`; what comes after the
        failure is NaN.
    - `options`: passed to `hj.simulate`, for each interval.

    **Returns:**

    A `hj.analysis.LyapunovExponents`.

    **Raises:**

    - `ValueError` for arguments that cannot be used.
    - As `hj.simulate`.

    ??? cite "Reference"

        Benettin, Galgani, Giorgilli, Strelcyn (1980), for smooth flows; Müller (1995),
        *Calculation of Lyapunov exponents for dynamic systems with discontinuities*.
    """
    if (x0 is None) == (state is None):
        raise ValueError(
            "Argument `x0` or argument `state` must be given, and not both: `state` is "
            "where an earlier call has come to."
        )
    if not isinstance(num_intervals, (int, np.integer)) or num_intervals < 1:
        raise ValueError(
            "Argument `num_intervals` must be a positive integer, but it is "
            f"{num_intervals!r}."
        )
    if not is_traced(interval) and not np.all(np.asarray(interval) > 0):
        raise ValueError(f"Argument `interval` must be positive, but it is {interval}.")
    if state is None:
        begin = start(
            system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
        )
        n = ravel_pytree(begin.x)[0].size
        k = n if num_exponents is None else num_exponents
        if not isinstance(k, (int, np.integer)) or not 1 <= k <= n:
            raise ValueError(
                f"Argument `num_exponents` must be an integer from 1 to {n}, the size "
                f"of the state, but it is {num_exponents!r}."
            )
        zero = jnp.zeros_like(begin.t)
        basis = jnp.eye(n, k, dtype=zero.dtype)
        growth = jnp.zeros((k,), zero.dtype)
        state = LyapunovState(begin.t, begin.x, begin.mode, basis, growth, zero)
    interval = as_time(interval, state.t.dtype, "interval")
    out = in_one_program(
        _exponents, system, interval, int(num_intervals), state, args, options
    )
    return certified(out, out.result) if throw else out


def _exponents(system, interval, num_intervals, state: LyapunovState, args, options):
    _, unravel = ravel_pytree(state.x)

    def body(carry, _):
        at, result = carry
        okay = result == SUCCESS

        def end(x):
            sol = simulate(
                system,
                at.t,
                at.t + interval,
                unravel(x),
                at.mode,
                args,
                throw=False,
                **options,
            )
            more = sol.mode1, sol.events.count, result_of(sol)
            return ravel_pytree(sol.x1)[0], more

        x, push, (mode, count, now) = jax.linearize(
            end, ravel_pytree(at.x)[0], has_aux=True
        )
        basis, upper = jnp.linalg.qr(jax.vmap(push, 1, 1)(at.basis))
        growth = at.growth + jnp.log(jnp.abs(jnp.diagonal(upper)))
        new = LyapunovState(
            at.t + interval, unravel(x), mode, basis, growth, at.time + interval
        )
        result = first_failure(result, now)
        # Where it failed, it stays.
        new = where(result == SUCCESS, new, at)
        rates = jnp.where(result == SUCCESS, new.growth / new.time, jnp.nan)
        return (new, result), (rates, jnp.where(okay, count, 0))

    (state, result), (history, counts) = lax.scan(
        body, (state, SUCCESS), None, length=num_intervals
    )
    return LyapunovExponents(history[-1], history, counts, state, result)
