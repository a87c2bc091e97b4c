"""The derivative of the flow along a recorded step, with an error control of its own.

A state may say nothing of its derivative: at rest, or on a parabola, steps grow without
an error, and may be too long for perturbations, which oscillate or decay faster. So a
tangent is taken through the recorded step first, and through shorter ones if its error
is too large: its embedded estimate, which is that of the state, differentiated.
Likewise for a cotangent, from the end of the step to its start.

How long the steps are is common to all lanes of a batch, so that they go on sharing
what they share; but a lane keeps what came of the recorded step, where that was good.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .._jax.branch import add_where, cond_any, where
from .._jax.directional import directional
from .._jax.reduce import greatest, largest, nonzero
from .._systems.flat import FlatSystem
from .adjoint_estimate import adjoint_estimate
from .method import TangentTolerance
from .stages import explicit_stages, explicit_tableau, pull_stages, weighted
from .step import flow_for


# No step is shorter than this part of the recorded one.
_SHORTEST = 2.0**-12

# A tangent that is this part of what is perturbed in all is rounding.
_NOTHING = 1e-8

# Components have units of their own, so each is measured by itself; but those that are
# smaller than this part of the largest one, as if they were not.
_FLOOR = 1e-3


def scale_of(
    tangents: PyTree, t_system: PyTree = None, system: PyTree = None
) -> Float[Array, ""]:
    """How large tangents or cotangents are; those of a system relative to it."""
    flat, treedef = jtu.tree_flatten(system)
    relative = [
        v / (1 + jnp.abs(a)).astype(v.dtype)
        for v, a in zip(treedef.flatten_up_to(t_system), flat, strict=True)
        if v is not None
    ]
    return lax.stop_gradient(largest((tangents, relative)))


class _Verdict(NamedTuple):
    take: Array  # does this lane move on by this attempt
    move: Array  # do all lanes
    open_: Array  # is this lane not through yet
    factor: Array  # by which the length of the attempt could be scaled


def _judge(error, before, after, tol, h, open_, scale) -> _Verdict:
    """What becomes of an attempt at a part `h` of a recorded step."""
    error, before, after = lax.stop_gradient((error, before, after))
    size = jnp.maximum(jnp.abs(before), jnp.abs(after))
    # What could meet the tolerance only with errors below rounding.
    rounding = 4 * jnp.finfo(size.dtype).eps / tol.aim
    nothing = jnp.maximum(_NOTHING, rounding) * scale.astype(size.dtype)
    least = jnp.maximum(_FLOOR * greatest(size), nothing)
    size = jnp.maximum(size, least)
    relative = greatest(jnp.abs(error) / jnp.where(size == 0, 1, size))
    whole, shortest = h == 1, h <= _SHORTEST
    # Nothing will mend a NaN.
    good = ~(relative > jnp.where(whole, tol.keep, tol.aim))
    still = open_ & ~(whole & good)
    counts = still & (relative > 0)
    worst = eqxi.unvmap_max(jnp.where(counts, relative / tol.aim, 0))
    move = (worst <= 1) | shortest
    return _Verdict(
        take=jnp.where(whole, open_ & good, still & move),
        move=move,
        open_=still,
        # As if the estimate were of order four: what it is matters little. (For the
        # reciprocal of a root, XLA optimises the program once more.)
        factor=jnp.clip(0.9 * jnp.sqrt(jnp.sqrt(1 / worst)), 0.1, 5),
    )


def _all_finite(tree: PyTree):
    """Of what is given to an implicit step: a NaN in its linear solves, which stands
    for a derivative that does not exist, would end the whole batch."""
    return ~nonzero(jtu.tree_map(lambda a: 0 * a, tree))


def push_flow(
    solver, system: FlatSystem, t_system, t, dt, x, mode, t_x, tol, scale
) -> Float[Array, " n"]:
    """The tangent after flowing for `dt` from `(t, x)`, for tangents of the system and
    of `x`; with a relative error of `tol`, or that of the recorded step if `None`. The
    `scale` is that of what is perturbed: see `scale_of`."""
    tableau: Any = explicit_tableau(solver)
    moves = dt > 0
    if tol is None:
        fn = lambda system, x: flow_for(solver, system, t, dt, x, mode)

        def there():
            given = t_system, t_x
            exists = moves & _all_finite(given)
            given = jtu.tree_map(lambda a: jnp.where(exists, a, 0), given)
            out = directional(fn, (system, x), given)[1]
            out = jnp.where(exists, out, jnp.nan)
            return jnp.where(moves, out, t_x)

        return cond_any(moves, there, lambda: t_x)

    def step(t, dt, x, t_x):
        def both(system, x):
            flow = system.flow(t, x, mode)
            ks, x1 = explicit_stages(tableau, system, t, dt, x, flow, mode)
            return x1, weighted(tableau.b_error, ks)

        (x1, _), tangents = directional(both, (system, x), (t_system, t_x))
        return x1, *tangents

    def body(carry):
        s, h, x, t_x, open_ = carry
        x1, t_x1, error = step(t + s * dt, h * dt, x, t_x)
        v = _judge(error, t_x, t_x1, tol, h, open_, scale)
        x, s = where(v.move, (x1, jnp.where(h < 1 - s, s + h, 1)), (x, s))
        h = jnp.minimum(jnp.maximum(h * v.factor, _SHORTEST), 1 - s)
        return s, h, x, jnp.where(v.take, t_x1, t_x), v.open_

    one = jnp.ones((), x.dtype)
    start = jnp.where(eqxi.unvmap_any(moves), 0, one)
    init = start, tol.first * one, x, t_x, moves
    return lax.while_loop(lambda carry: carry[0] < 1, body, init)[3]


def pull_flow(
    solver,
    system_of: Callable,
    moving,
    t,
    dt,
    x,
    mode,
    ct,
    ct_moving,
    tol,
    scale,
    twice: bool,
):
    """Back through `push_flow`: cotangents of `moving`, of which `system_of(moving)` is
    made, added to `ct_moving`; and of `x`. With `twice`, to be differentiated."""
    tableau: Any = explicit_tableau(solver)
    moves = dt > 0
    # What only guards and jumps depend on may be large: weights of a network.
    system = system_of(moving)
    moving, rest = system.split_by_flow(moving)
    ct_moving, ct_rest = system.split_by_flow(ct_moving)
    flows_of = lambda moving: system_of(eqx.combine(moving, rest))

    if tol is None:
        fn = lambda moving, x: flow_for(solver, flows_of(moving), t, dt, x, mode)

        def back():
            exists = moves & _all_finite(ct)
            d_moving, d_x = jax.vjp(fn, moving, x)[1](jnp.where(exists, ct, 0))
            d_moving, d_x = jtu.tree_map(
                lambda d: jnp.where(exists, d, jnp.nan), (d_moving, d_x)
            )
            return add_where(moves, ct_moving, d_moving), jnp.where(moves, d_x, ct)

        ct_moving, ct = cond_any(moves, back, lambda: (ct_moving, ct))
        return eqx.combine(ct_moving, ct_rest), ct

    # The estimate may be of another order than that of the state.
    _, power = adjoint_estimate(tableau)
    same_tol = TangentTolerance(tol.keep**power, tol.aim**power, tol.first)

    def body(carry):
        s, h, at, here, ct, ct_moving, open_ = carry
        # The attempt is at the part from `s - h` to `s`; but first, if the state at its
        # start is not known, one goes there: in one step, the record says that this is
        # good enough; or in such steps as are good for a derivative of the state.
        begin = s - h
        known = at == begin
        at, here = where(at > begin, (jnp.zeros_like(at), x), (at, here))
        way = jnp.minimum(h, begin - at) if twice else begin - at
        length = jnp.where(known, h, way)
        d_moving, d_x, error, there = pull_stages(
            tableau, flows_of, moving, t + at * dt, length * dt, here, mode, ct
        )
        v = _judge(error, ct, d_x, same_tol, h, open_, scale)
        take, move = v.take & known, v.move & known
        arrives = jnp.where(at + way < begin, at + way, begin)
        at, here = where(known, (at, here), (arrives, there))
        s = jnp.where(move, begin, s)
        next_h = jnp.minimum(jnp.maximum(h * v.factor, _SHORTEST), s)
        return (
            s,
            jnp.where(known, next_h, h),
            at,
            here,
            jnp.where(take, d_x, ct),
            add_where(take, ct_moving, d_moving),
            jnp.where(known, v.open_, open_),
        )

    one = jnp.ones((), x.dtype)
    start = jnp.where(eqxi.unvmap_any(moves), one, 0)
    init = start, tol.first * one, 0 * one, x, ct, ct_moving, moves
    *_, ct, ct_moving, _ = lax.while_loop(lambda carry: carry[0] > 0, body, init)
    return eqx.combine(ct_moving, ct_rest), ct
