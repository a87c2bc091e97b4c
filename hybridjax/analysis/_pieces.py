"""A trajectory as a product of matrices: of smooth pieces, and of events."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .._loop.loop import LEAST_INTERVAL
from .._simulate import simulate
from .._solution.event_matrices import event_matrices
from .._solution.solution import Solution
from .._systems.system import AbstractHybridSystem
from ._frozen import Frozen


class Pieces(eqx.Module):
    """The segments of a solution, and the events that end them: one more than there may
    be events. Those that do not exist are empty, and their matrices the identity."""

    t0: Float[Array, " pieces"]
    t1: Float[Array, " pieces"]
    x0: Float[Array, "pieces n"]  # raveled
    mode: PyTree
    events: Float[Array, "pieces n n"]  # of the event after the piece
    unravel: Any = eqx.field(static=True)

    @classmethod
    def of(cls, sol: Solution) -> "Pieces":
        log = sol.events
        ravel = jax.vmap(lambda x: ravel_pytree(x)[0])
        x1, unravel = ravel_pytree(sol.x1)
        exists = jnp.arange(log.t.shape[0]) < log.count
        # Not NaN: what is computed from it has a derivative.
        one_row = lambda tree: jtu.tree_map(lambda a: a[None], tree)
        x_after = jnp.where(exists[:, None], ravel(log.x_after), x1)
        x0 = jnp.concatenate([ravel(one_row(sol.x0)), x_after])
        wide = lambda m: exists.reshape(exists.shape + (1,) * (m.ndim - 1))
        after = jtu.tree_map(
            lambda m, end: jnp.where(wide(m), m, end), log.mode_after, sol.mode1
        )
        join = lambda first, rest: jnp.concatenate([first[None], rest])
        times = sol.segment_times()
        matrices = event_matrices(sol)
        last = jnp.eye(x1.shape[0], dtype=x1.dtype)[None]
        return cls(
            t0=times[:-1],
            t1=times[1:],
            x0=x0,
            mode=jtu.tree_map(join, sol.mode0, after),
            events=jnp.concatenate([matrices, last]),
            unravel=unravel,
        )


def end_of_piece(t0, t1) -> Float[Array, ""]:
    """`t1`, or `t0` if the piece is too short to be simulated: it is empty then."""
    span, eps = t1 - t0, jnp.finfo(t0.dtype).eps
    short = span < LEAST_INTERVAL * eps * (jnp.abs(t0) + jnp.abs(span))
    return jnp.where(short, t0, t1)


def flow_matrix(
    system: AbstractHybridSystem, t0, t1, x0, mode, unravel, args, options
) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
    """The derivative of the flow in one mode, from `t0` to `t1`, and whether that was
    successful."""
    t1 = end_of_piece(t0, t1)

    def end(x):
        sol = simulate(
            Frozen(system), t0, t1, unravel(x), mode, args, throw=False, **options
        )
        return ravel_pytree(sol.x1)[0], sol.successful

    return jax.jacfwd(end, has_aux=True)(x0)


def flow_options(options: dict[str, Any]) -> dict[str, Any]:
    """Of the options of a simulation, those of the steps."""
    steps = ("solver", "stepsize_controller", "dt0", "max_steps", "tangent_rtol")
    return {name: options[name] for name in steps if name in options}


def flow_matrices(system, pieces: Pieces, args, options):
    """`flow_matrix` of all pieces, in one batch."""
    one = lambda t0, t1, x0, mode: flow_matrix(
        system, t0, t1, x0, mode, pieces.unravel, args, flow_options(options)
    )
    matrices, successful = jax.vmap(one)(pieces.t0, pieces.t1, pieces.x0, pieces.mode)
    return matrices, jnp.all(successful)
