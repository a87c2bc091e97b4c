import jax.numpy as jnp


# Products of at most so many terms are sums that XLA fuses with what is around them;
# each larger one is a kernel of its own, on CPUs.
_SMALL = 2048


def dot(a, b):
    """`a @ b`, for a vector or a matrix each, in full precision."""
    if a.size * b.size // max(a.shape[-1], 1) > _SMALL:
        # A default-precision product has ten bits on some accelerators.
        return jnp.matmul(a, b, precision="highest")
    if b.ndim == 1:
        return jnp.sum(a * b.reshape((1,) * (a.ndim - 1) + b.shape), axis=-1)
    return jnp.sum(a[..., None] * b.reshape((1,) * (a.ndim - 1) + b.shape), axis=-2)
