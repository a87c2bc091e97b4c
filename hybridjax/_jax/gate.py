import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .tie import tie


@jax.custom_jvp
def _gate(leaves, keep):
    return tie(leaves, keep)


@_gate.defjvp
def _gate_jvp(primals, tangents):
    leaves, keep = primals
    t_leaves, _ = tangents
    kept = [jnp.where(keep, t, jnp.zeros_like(t)) for t in t_leaves]
    return _gate(leaves, keep), kept


def gate(tree: PyTree, keep) -> PyTree:
    """The identity, whose derivative is the identity where `keep`, and zero elsewhere.

    A function that is evaluated in lanes where its value is thrown away may have a NaN
    derivative there, and `jnp.where` on its output alone turns the pull-back of those
    lanes into 0 * NaN. Gating its inputs drops the NaN, by a select.
    """
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jtu.tree_flatten(arrays)
    # All of them at once: each call of a function with its own derivative costs time
    # when it is traced.
    return eqx.combine(jtu.tree_unflatten(structure, _gate(leaves, keep)), rest)
