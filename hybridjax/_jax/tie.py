import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree


def tie(tree: PyTree, to: PyTree) -> PyTree:
    """The same values, which `jax.vmap` takes to depend on all arrays of `to`.

    Where a tangent depends on what its primal does not depend on, a batch can have one
    of them and not the other, and JAX loses its way. XLA removes all this again.
    """
    true = jnp.asarray(True)
    for leaf in jtu.tree_leaves(to):
        # Keys of random numbers are not zero or anything else.
        if eqx.is_array(leaf) and leaf.size > 0 and _is_number(leaf.dtype):
            true = true | (leaf[(0,) * leaf.ndim] != 0)
    return jtu.tree_map(lambda x: jnp.where(true, x, jnp.zeros_like(x)), tree)


def _is_number(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
