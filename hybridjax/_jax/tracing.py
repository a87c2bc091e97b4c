import equinox as eqx
import jax.core
import jax.lax as lax
import jax.tree_util as jtu
from jaxtyping import PyTree


def is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jtu.tree_leaves(tree))


def stop_gradient(tree):
    return jtu.tree_map(
        lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree
    )
