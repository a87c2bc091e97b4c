"""Products of small matrices, in full precision.

For few lanes they are sums, which XLA fuses with what is around them: on CPUs every
product of matrices is a kernel of its own. For many they are what XLA has for that.
"""

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir


# The number of terms, beyond which a kernel of its own is the faster one.
_SMALL = 2048


# The number of lanes up to which sums are.
_FEW = 16


def dot(a, b):
    """`a @ b`, for a vector or a matrix each."""
    dtype = jnp.result_type(a, b)
    matrix = a.reshape(1, -1, a.shape[-1]).astype(dtype)
    columns = b.reshape(1, b.shape[0], -1).astype(dtype)
    return _dot_p.bind(matrix, columns).reshape(a.shape[:-1] + b.shape[1:])


def _product(a, b):
    """Of matrices, shapes `(lanes, m, k)` and `(lanes, k, n)`."""
    if a.size // a.shape[0] * b.shape[2] > _SMALL or a.shape[0] > _FEW:
        # A default-precision product has ten bits on some accelerators.
        return jnp.matmul(a, b, precision="highest")
    return jnp.sum(a[:, :, :, None] * b[:, None], axis=2)


def _batch(args, dims):
    """More lanes."""
    (size,) = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
    merged = []
    for a, d in zip(args, dims, strict=True):
        a = batching.bdim_at_front(a, d, size)
        merged.append(a.reshape(-1, *a.shape[2:]))
    out = _dot_p.bind(*merged)
    return out.reshape(size, -1, *out.shape[1:]), 0


_dot_p = jax.extend.core.Primitive("hybridjax_dot")
_dot_p.def_impl(_product)
_dot_p.def_abstract_eval(
    lambda a, b: jax.core.ShapedArray((*a.shape[:2], b.shape[2]), a.dtype)
)
ad.defbilinear(
    _dot_p,
    lambda ct, a, b: _dot_p.bind(ct, b.transpose(0, 2, 1)),
    lambda ct, a, b: _dot_p.bind(a.transpose(0, 2, 1), ct),
)
batching.primitive_batchers[_dot_p] = _batch
mlir.register_lowering(_dot_p, mlir.lower_fun(_product, multiple_results=False))
