import jax.extend.core
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.interpreters import ad, batching, mlir
from jaxtyping import PyTree

from .tracing import is_traced


def tie(tree: PyTree, to: PyTree) -> PyTree:
    """The same values, which `jax.vmap` takes to depend on all arrays of `to`.

    Where a tangent depends on what its primal does not depend on, a batch can have one
    of them and not the other, and JAX loses its way.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    others = [leaf for leaf in jtu.tree_leaves(to) if is_traced(leaf)]
    if others:
        leaves = _tie_p.bind(*leaves, *others, n=len(leaves))
    return treedef.unflatten(leaves)


def _batch(args, dims, *, n):
    sizes = [a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None]
    tied = any(d is not None for d in dims[n:])
    leaves, dims = list(args[:n]), list(dims)
    for i, leaf in enumerate(leaves):
        if tied and dims[i] is None:
            leaves[i], dims[i] = jnp.broadcast_to(leaf, (sizes[0], *leaf.shape)), 0
    return _tie_p.bind(*leaves, *args[n:], n=n), dims[:n]


def _jvp(primals, tangents, *, n):
    out = _tie_p.bind(*primals, n=n)
    is_zero = lambda t: isinstance(t, ad.Zero)
    moves = [t for t in tangents[:n] if not is_zero(t)]
    tied = iter(_tie_p.bind(*moves, *primals[n:], n=len(moves)))
    return out, [t if is_zero(t) else next(tied) for t in tangents[:n]]


def _transpose(cts, *args, n):
    return [*cts, *[None] * (len(args) - n)]


_tie_p = jax.extend.core.Primitive("hybridjax_tie")
_tie_p.multiple_results = True
_tie_p.def_impl(lambda *args, n: list(args[:n]))
_tie_p.def_abstract_eval(lambda *args, n: list(args[:n]))
batching.primitive_batchers[_tie_p] = _batch
ad.primitive_jvps[_tie_p] = _jvp
ad.primitive_transposes[_tie_p] = _transpose
mlir.register_lowering(_tie_p, lambda context, *args, n: list(args[:n]))
