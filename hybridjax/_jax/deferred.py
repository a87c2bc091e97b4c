"""Functions whose derivatives are traced only where they are used.

JAX differentiates all that a function returns, and leaves out later what nobody reads.
The saved states and the event log call the user's functions, whose derivatives can take
longer to trace than all the rest. So these derivatives are primitives, which know the
shapes of what they return, and are traced when a program with them is lowered.
"""

from collections.abc import Callable

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .convert import convert
from .directional import directional
from .primitives import abstract_eval, linear_in, wanted_of
from .shared import Shared
from .tie import tie


def deferred(fn: Callable, *args: PyTree, known: Callable | None = None) -> PyTree:
    """`fn(*args)`, for a function that returns arrays. `known` returns the same, with
    less work, and without a derivative; then neither may close over arrays."""
    arrays, static = eqx.partition(Shared.of(args), eqx.is_array)
    on_arrays = lambda fn: lambda arrays: fn(*eqx.combine(arrays, static).tree())
    # One trace serves the function, and its derivative, which asks for it again.
    traced = convert(on_arrays(fn if known is None else known), arrays)
    if known is not None:
        return _call(arrays, fn=on_arrays(fn), value=traced)
    closed_over, run = eqx.partition(traced, eqx.is_array)
    given = lambda given: eqx.combine(given[0], run)(given[1])
    return _call((closed_over, arrays), fn=given, value=given)


@eqx.filter_custom_jvp
def _call(arrays, *, fn, value):
    return value(arrays)


@_call.def_jvp
def _call_jvp(primals, tangents, *, fn, value):
    (arrays,), (moves,) = primals, tangents
    out = _call(arrays, fn=fn, value=value)
    like = jtu.tree_map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), out)
    return out, push_through(fn, arrays, moves, _floats(like))


def _floats(tree):
    return eqx.filter(tree, lambda a: jnp.issubdtype(a.dtype, jnp.inexact))


def push_through(fn: Callable, arrays: PyTree, moves: PyTree, like: PyTree) -> PyTree:
    """The tangent of `fn(arrays)`, which is like `like`, for a tangent that is `None`
    where zero. Its transpose is that of `jax.vjp`: the function may have a derivative
    in reverse mode only."""
    return eqxi.filter_primitive_bind(_push_p, tie(moves, arrays), arrays, fn, like)


def _pull(cts, wanted, arrays, fn, like):
    """Its transpose, for cotangents that are `None` where zero. `wanted` has `True`
    where a cotangent is asked for, `None` elsewhere."""
    cts = tie(cts, arrays)
    return eqxi.filter_primitive_bind(_pull_p, cts, wanted, arrays, fn, like)


def _push_impl(moves, arrays, fn, like):
    return directional(lambda arrays: _floats(fn(arrays)), (arrays,), (moves,))[1]


def _pull_impl(cts, wanted, arrays, fn, like):
    is_none = lambda leaf: leaf is None
    mask = jtu.tree_map(lambda w: w is not None, wanted, is_leaf=is_none)
    moving, fixed = eqx.partition(arrays, mask)
    asked = jtu.tree_map(lambda ct: ct is not None, cts, is_leaf=is_none)

    def outputs(moving):
        # Those alone that are asked for: what a zero is pulled back through is not
        # left out by XLA.
        return eqx.filter(_floats(fn(eqx.combine(moving, fixed))), asked)

    _, vjp = jax.vjp(outputs, moving)
    return vjp(cts)[0]


@eqxi.filter_primitive_jvp
def _push_jvp(primals, tangents):
    moves, arrays, fn, like = primals
    t_moves, t_arrays, _, _ = tangents
    out = push_through(fn, arrays, moves, like)
    if not jtu.tree_leaves(t_arrays):
        return out, push_through(fn, arrays, t_moves, like)
    push = lambda moves, arrays: _push_impl(moves, arrays, fn, like)
    return out, directional(push, (moves, arrays), (t_moves, t_arrays))[1]


@eqxi.filter_primitive_jvp
def _pull_jvp(primals, tangents):
    cts, wanted, arrays, fn, like = primals
    t_cts, _, t_arrays, _, _ = tangents
    out = _pull(cts, wanted, arrays, fn, like)
    if not jtu.tree_leaves(t_arrays):
        return out, _pull(t_cts, wanted, arrays, fn, like)
    pull = lambda cts, arrays: _pull_impl(cts, wanted, arrays, fn, like)
    return out, directional(pull, (cts, arrays), (t_cts, t_arrays))[1]


@eqxi.filter_primitive_transpose
def _push_transpose(primals, cts):
    moves, arrays, fn, like = primals
    ct_moves = _pull(cts, linear_in(moves), arrays, fn, like)
    return ct_moves, *_no_cotangents(arrays, fn, like)


@eqxi.filter_primitive_transpose
def _pull_transpose(primals, ct_moves):
    cts, wanted, arrays, fn, like = primals
    out = wanted_of(linear_in(cts), push_through(fn, arrays, ct_moves, like))
    return out, *_no_cotangents(wanted, arrays, fn, like)


def _no_cotangents(*trees):
    return jtu.tree_map(lambda _: None, trees)


_push_p = eqxi.create_vprim(
    "hybridjax_deferred_push",
    eqxi.filter_primitive_def(_push_impl),
    abstract_eval(lambda moves, arrays, fn, like: like),
    _push_jvp,
    _push_transpose,
)
_pull_p = eqxi.create_vprim(
    "hybridjax_deferred_pull",
    eqxi.filter_primitive_def(_pull_impl),
    abstract_eval(lambda cts, wanted, arrays, fn, like: wanted_of(wanted, arrays)),
    _pull_jvp,
    _pull_transpose,
)
