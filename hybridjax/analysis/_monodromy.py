from typing import Any

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .._jax.compiler_options import in_one_program
from .._loop.results import first_failure, success_if
from .._simulate import simulate
from .._solution.solution import Solution
from .._systems.start import as_time, Start, start
from .._systems.system import AbstractHybridSystem
from ._pieces import flow_matrices, Pieces
from ._results import certified, result_of, RESULTS


class Monodromy(eqx.Module):
    """What `hj.analysis.monodromy` returns.

    **Attributes:**

    - `matrix`: the derivative of the state at `t1` with respect to that at `t0`, of
        shape `(n, n)`, in the raveled state.
    - `factors`: matrices whose product is `matrix`, in the order in which they act, of
        shape `(2 max_events + 1, n, n)`: of a smooth piece, of the event that ends it,
        and so on. Where several events share an instant, the last one has the matrix of
        all. The rest is filled up with the identity.
    - `count`: how many of them there are, twice the number of events and one.
    - `solution`: the `hj.Solution`.
    - `result`: a `hj.analysis.RESULTS`.
    """

    matrix: Float[Array, "n n"]
    factors: Float[Array, "factors n n"]
    count: Int[Array, ""]
    solution: Solution
    result: RESULTS


def monodromy(
    system: AbstractHybridSystem,
    t0: Any,
    t1: Any,
    x0: PyTree,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    throw: bool = True,
    **options: Any,
) -> Monodromy:
    r"""The derivative of the flow from `t0` to `t1`, and its factors: of smooth pieces,
    and the saltation matrices of events.

    $$\frac{\partial x(t_1)}{\partial x(t_0)} = \Phi_k \, \Xi_k \cdots \Phi_1 \, \Xi_1
    \, \Phi_0$$

    Over a period of an orbit its eigenvalues are the multipliers of that: see
    `hj.analysis.floquet_multipliers`. Perturbations are compared at equal times. Where
    events share an instant, it is the derivative of their recorded order.

    **Arguments:**

    - `system`, `t0`, `t1`, `x0`, `mode0`, `args`: as for `hj.simulate`. Within a batch,
        and within `jax.jit`, too.
    - `throw`: whether a failure raises. If not, see `result`.
    - `options`: passed to `hj.simulate`. Of `max_events`, no more than needed: each has
        a piece.

    **Returns:**

    A `hj.analysis.Monodromy`. In an automaton whose modes have states of their own, the
    raveled state is that of all modes.

    **Raises:**

    - As `hj.simulate`.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (36) and (37).
    """
    begin = start(
        system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
    )
    t1 = as_time(t1, begin.t.dtype, "t1")
    out = in_one_program(_monodromy, begin, t1, args, options)
    return certified(out, out.result) if throw else out


def _monodromy(begin: Start, t1, args, options):
    here = begin.system, begin.t, t1, begin.x, begin.mode, args
    sol = simulate(*here, throw=False, **options)
    factors, successful = factors_of(begin.system, sol, args, options)
    flows = success_if(successful, RESULTS.max_steps_reached)
    return Monodromy(
        matrix=product(factors),
        factors=factors,
        count=2 * sol.events.count + 1,
        solution=sol,
        result=first_failure(result_of(sol), flows),
    )


def factors_of(system, sol: Solution, args, options):
    """The factors of a solution; and whether the flow of each was successful."""
    pieces = Pieces.of(sol)
    flows, successful = flow_matrices(system, pieces, args, options)
    factors = jnp.stack([flows, pieces.events], axis=1)
    factors = jnp.reshape(factors, (-1, *flows.shape[1:]))[:-1]
    okay = successful & sol.successful
    return jnp.where(okay, factors, jnp.nan), successful


def product(factors: Float[Array, "k n n"]) -> Float[Array, "n n"]:
    identity = jnp.eye(factors.shape[-1], dtype=factors.dtype)
    return lax.fori_loop(0, factors.shape[0], lambda i, m: factors[i] @ m, identity)
