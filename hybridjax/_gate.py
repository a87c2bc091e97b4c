import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from ._tie import tie


@jax.custom_jvp
def _gate(x, keep):
    return tie(x, keep)


@_gate.defjvp
def _gate_jvp(primals, tangents):
    x, keep = primals
    tangent, _ = tangents
    return _gate(x, keep), jnp.where(keep, tangent, jnp.zeros_like(tangent))


def gate(tree: PyTree, keep) -> PyTree:
    """The identity, whose derivative is the identity where `keep`, and zero elsewhere.

    A function that is evaluated in lanes where its value is thrown away may have a NaN
    derivative there, and `jnp.where` on its output alone turns the pull-back of those
    lanes into 0 * NaN. Gating its inputs drops the NaN, by a select.
    """

    def one(x):
        return _gate(x, keep) if eqx.is_inexact_array(x) else x

    return jtu.tree_map(one, tree)
