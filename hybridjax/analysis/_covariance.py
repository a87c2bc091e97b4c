from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._jax.compiler_options import in_one_program
from .._loop.results import first_failure, success_if
from .._simulate import simulate
from .._solution.solution import Solution
from .._systems.start import as_time, Start, start
from .._systems.system import AbstractHybridSystem
from ._noise import NoiseRoot
from ._pieces import end_of_piece, flow_matrices, flow_options, Pieces
from ._results import certified, result_of, RESULTS
from ._square_root import compress, symmetric_root


class Uncertain(eqx.Module):
    """What `hj.analysis.propagate_covariance` returns.

    **Attributes:**

    - `x`, `mode`: the mean at `t1`, and its mode.
    - `root`: a lower triangular square root of the covariance there, in the raveled
        state, of shape `(n, n)`.
    - `before`, `after`: square roots before and after each event, at fixed time, of
        shape `(max_events, n, n)`; those at `t1` beyond the last event.
    - `solution`: the `hj.Solution` of the mean.
    - `result`: a `hj.analysis.RESULTS`.
    """

    x: PyTree
    mode: PyTree
    root: Float[Array, "n n"]
    before: Float[Array, "max_events n n"]
    after: Float[Array, "max_events n n"]
    solution: Solution
    result: RESULTS

    @property
    def covariance(self) -> Float[Array, "n n"]:
        return self.root @ self.root.T


def propagate_covariance(
    system: AbstractHybridSystem,
    t0: Any,
    t1: Any,
    x0: PyTree,
    root0: ArrayLike,
    mode0: PyTree = None,
    args: PyTree = None,
    *,
    diffusion: ArrayLike | Callable | None = None,
    throw: bool = True,
    **options: Any,
) -> Uncertain:
    r"""Mean and covariance of a state, through flow and events, to first order.

    The mean is simulated. The covariance $S$ obeys the Lyapunov equation along the
    flow, and is mapped by the saltation matrix at events:

    $$\mathrm dx = F \,\mathrm dt + L \,\mathrm dw \;\Rightarrow\;
    \dot S = A S + S A^\top + L L^\top, \quad A = D_x F; \qquad
    S^+ = \Xi S^- \Xi^\top.$$

    Its square root is what is carried: events that lose rank, as plastic impacts do,
    leave a covariance that is singular, and no other.

    First order means: uncertainty is small against the distance to the next corner, and
    to where a guard is grazed. Where events share an instant, the flow has a kink, and
    what comes out of a Gaussian is none: it is the one of the recorded order.

    **Arguments:**

    - `system`, `t0`, `t1`, `x0`, `mode0`, `args`: as for `hj.simulate`, with the mean
        `x0`.
    - `root0`: a square root of the covariance at `t0`, of shape `(n, k)`, in the
        raveled state.
    - `diffusion`: $L$, a matrix of shape `(n, w)` in the raveled state, or a callable
        of `(t, x, mode, args)` that returns one: of white noise, per square root of
        time. `None` is none.
    - `throw`: whether a failure raises. If not, see `result`.
    - `options`: passed to `hj.simulate`. Of `max_events`, no more than needed.

    **Returns:**

    A `hj.analysis.Uncertain`.

    **Raises:**

    - `ValueError` for arguments that cannot be used.
    - As `hj.simulate`.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (38) to (40), where process noise is left
        out.
    """
    begin = start(
        system, t0, x0, mode0, args, t_name="t0", x_name="x0", mode_name="mode0"
    )
    n, dtype = ravel_pytree(begin.x)[0].size, begin.t.dtype
    root = checked_root("root0", root0, n, dtype)
    if diffusion is not None and not callable(diffusion):
        diffusion = checked_root("diffusion", diffusion, n, dtype)
    t1 = as_time(t1, dtype, "t1")
    out = in_one_program(propagated, begin, t1, root, diffusion, args, options)
    return certified(out, out.result) if throw else out


def checked_root(name: str, root: Any, n: int, dtype) -> Array:
    root = jnp.asarray(root, dtype)
    if root.ndim != 2 or root.shape[0] != n:
        raise ValueError(
            f"Argument `{name}` must be a matrix with as many rows as the raveled "
            f"state has entries, ({n}, ...), but its shape is {root.shape}."
        )
    return root


def propagated(begin: Start, t1, root, diffusion, args, options) -> Uncertain:
    """Without checks."""
    here = begin.system, begin.t, t1, begin.x, begin.mode, args
    sol = simulate(*here, throw=False, **options)
    pieces = Pieces.of(sol)
    flows, okay = flow_matrices(begin.system, pieces, args, options)
    noise = jnp.zeros_like(flows)
    if diffusion is not None:
        noise, known = _noise(begin.system, pieces, diffusion, args, options)
        okay &= known
    root = compress(root)

    def through(root, piece):
        flow, noise, event = piece
        before = compress(jnp.concatenate([flow @ root, noise], axis=1))
        after = compress(event @ before)
        return after, (before, after)

    root, (before, after) = lax.scan(through, root, (flows, noise, pieces.events))
    failed = jnp.where(okay & sol.successful, 0, jnp.nan)
    return Uncertain(
        x=sol.x1,
        mode=sol.mode1,
        root=root + failed,
        before=before[:-1] + failed,
        after=after[:-1] + failed,
        solution=sol,
        result=first_failure(
            result_of(sol), success_if(okay, RESULTS.max_steps_reached)
        ),
    )


def _noise(system, pieces: Pieces, diffusion, args, options):
    """Square roots of the covariances that noise adds in each piece."""

    def one(t0, t1, x0, mode):
        noise = NoiseRoot(diffusion, pieces.unravel, args)
        lyapunov = _Lyapunov(system, noise, pieces.unravel)
        nothing = jnp.zeros((x0.size, x0.size), x0.dtype)
        sol = simulate(
            lyapunov,
            t0,
            end_of_piece(t0, t1),
            (x0, nothing),
            mode,
            args,
            throw=False,
            **flow_options(options),
        )
        return symmetric_root(sol.x1[1]), sol.successful

    roots, okay = jax.vmap(one)(pieces.t0, pieces.t1, pieces.x0, pieces.mode)
    return roots, jnp.all(okay)


class _Lyapunov(AbstractHybridSystem):
    """The flow of one mode, and the covariance that noise adds on the way."""

    system: AbstractHybridSystem
    noise: NoiseRoot
    unravel: Any

    def flow(self, t, x, mode, args):
        x, covariance = x
        ravel = lambda tree: ravel_pytree(tree)[0]
        flow = lambda x: ravel(self.system.flow(t, self.unravel(x), mode, args))
        root = self.noise(t, x, mode)
        # The columns of a product with the Jacobian, which is not formed.
        dx, push = jax.linearize(flow, x)
        half = jax.vmap(push, 1, 1)(covariance)
        return dx, half + half.T + root @ root.T

    def guards(self, t, x, mode, args):
        return jnp.zeros((0,))

    def jump(self, t, x, mode, event, args):
        return x, mode
