"""What our primitives, made with `equinox.internal.create_vprim`, have in common."""

from collections.abc import Callable

import equinox.internal as eqxi
import jax.core
import jax.tree_util as jtu
from jax.interpreters import ad
from jaxtyping import PyTree


def is_linear(leaf) -> bool:
    """In a transpose rule: is it what the function is linear in?"""
    return isinstance(leaf, ad.UndefinedPrimal)


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
