"""What our primitives, made with `equinox.internal.create_vprim`, have in common."""

from collections.abc import Callable

import equinox.internal as eqxi
import jax.core
import jax.tree_util as jtu
from jax.interpreters import ad
from jaxtyping import PyTree


def _is_linear(leaf) -> bool:
    return isinstance(leaf, ad.UndefinedPrimal)


def linear_in(tree: PyTree) -> PyTree:
    """In a transpose rule: `True` where the function is linear in a leaf of `tree`,
    `None` elsewhere."""
    return jtu.tree_map(
        lambda leaf: True if _is_linear(leaf) else None, tree, is_leaf=_is_linear
    )


def wanted_of(wanted: PyTree, tree: PyTree) -> PyTree:
    """`tree`, with `None` where `wanted` has it."""
    return jtu.tree_map(
        lambda w, leaf: None if w is None else leaf,
        wanted,
        tree,
        is_leaf=lambda w: w is None,
    )


def abstract_eval(outputs: Callable):
    """The rule for shapes, from a function that returns something like the outputs: to
    trace the primitive for that would take longer than all the rest."""

    @eqxi.filter_primitive_def
    def rule(*args):
        like = lambda a: jax.core.ShapedArray(a.shape, a.dtype)
        return jtu.tree_map(like, outputs(*args))

    return rule
