"""Products of small matrices, in full precision.

For few lanes they are sums, which XLA fuses with what is around them: on CPUs every
product of matrices is a kernel of its own. For many they are what XLA has for that.
"""

import math
import string

import jax
import jax.core
import jax.extend.core
import jax.lax as lax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir


# The number of terms, beyond which a kernel of its own is the faster one.
_SMALL = 2048


# The number of lanes up to which sums are.
_FEW = 16


# Each axis has a number, and the axes of each array are in the order of these numbers:
# rows, what is summed over, columns; and lanes, below them.
_ROW, _SUM, _COLUMN = 0, 1, 2


def dot(a, b):
    """`a @ b`, for a vector or a matrix each."""
    dtype = jnp.result_type(a, b)
    of_a, of_b = (_ROW, _SUM)[-a.ndim :], (_SUM, _COLUMN)[: b.ndim]
    out = of_a[:-1] + of_b[1:]
    return _dot_p.bind(a.astype(dtype), b.astype(dtype), of=(of_a, of_b, out))


def _sizes(a, b, of):
    return dict(zip(of[0] + of[1], a.shape + b.shape, strict=True))


def _product(a, b, *, of):
    sizes = _sizes(a, b, of)
    axes = sorted(sizes)
    lanes = math.prod(sizes[i] for i in axes if i < _ROW)
    terms = math.prod(sizes[i] for i in axes if i >= _ROW)
    if terms > _SMALL or lanes > _FEW:
        letter = dict(zip(axes, string.ascii_letters, strict=False))
        names = ["".join(letter[i] for i in some) for some in of]
        # A default-precision product has ten bits on some accelerators.
        form = f"{names[0]},{names[1]}->{names[2]}"
        return jnp.einsum(form, a, b, precision="highest")
    shape = [sizes[i] for i in axes]
    wide = lambda a, of_a: lax.broadcast_in_dim(a, shape, [axes.index(i) for i in of_a])
    summed = [k for k, i in enumerate(axes) if i not in of[2]]
    return jnp.sum(wide(a, of[0]) * wide(b, of[1]), axis=summed)


def _batch(args, dims, *, of):
    """More lanes."""
    lane = min(min(some, default=_ROW) for some in of[:2]) - 1
    with_lane = lambda of_a, d: of_a if d is None else (lane, *of_a)
    of = tuple(with_lane(some, d) for some, d in zip(of, (*dims, 0), strict=True))
    moved = [
        a if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(args, dims, strict=True)
    ]
    return _dot_p.bind(*moved, of=of), 0


def _abstract(a, b, *, of):
    sizes = _sizes(a, b, of)
    return jax.core.ShapedArray(tuple(sizes[i] for i in of[2]), a.dtype)


_dot_p = jax.extend.core.Primitive("hybridjax_dot")
_dot_p.def_impl(_product)
_dot_p.def_abstract_eval(_abstract)
ad.defbilinear(
    _dot_p,
    lambda ct, a, b, *, of: _dot_p.bind(ct, b, of=(of[2], of[1], of[0])),
    lambda ct, a, b, *, of: _dot_p.bind(a, ct, of=(of[0], of[2], of[1])),
)
batching.primitive_batchers[_dot_p] = _batch
mlir.register_lowering(_dot_p, mlir.lower_fun(_product, multiple_results=False))
