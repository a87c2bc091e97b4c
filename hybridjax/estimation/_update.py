"""One measurement, in square roots."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from ..analysis._square_root import compress, triangle
from ._measurement import Measurement


class Innovation(eqx.Module):
    """What a measurement says, about the state at which it was predicted. Entries that
    were not measured are zero, with a noise of one."""

    value: Float[Array, " m"]
    matrix: Float[Array, "m n"]
    noise_root: Float[Array, "m k"]
    measured: Bool[Array, " m"]

    @property
    def count(self) -> Int[Array, ""]:
        return jnp.sum(self.measured)


def innovation(measurement: Measurement, t, x, mode, y) -> Innovation:
    measured = ~jnp.isnan(y)
    value = lambda x: measurement.value(t, x, mode)
    predicted, matrix = value(x), jax.jacfwd(value)(x)
    only = lambda a: jnp.where(measured[:, None], a, 0)
    noise = measurement.noise_root(t, x, mode)
    own = jnp.diag(jnp.where(measured, jnp.zeros((), x.dtype), 1))
    return Innovation(
        jnp.where(measured, jnp.where(measured, y, 0) - predicted, 0),
        only(matrix),
        jnp.concatenate([only(noise), own], axis=1),
        measured,
    )


class Updated(eqx.Module):
    shift: Float[Array, " n"]
    root: Float[Array, "n n"]
    innovation_root: Float[Array, "m m"]
    nis: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    regular: Bool[Array, ""]


def update(root: Float[Array, "n n"], seen: Innovation) -> Updated:
    r"""Joseph's form, in square roots: with $S$ the root of the predicted covariance,
    $L$ that of the noise and $H$ the measurement matrix,

    $$V = [L, HS] [L, HS]^\top, \quad K = S (HS)^\top V^{-1}, \quad
    P^+ = [(1 - K H) S, K L] [(1 - K H) S, K L]^\top.$$

    $V$ has full rank if the noise has; nothing else is inverted.
    """
    n, dtype = root.shape[0], root.dtype
    across = jnp.matmul(seen.matrix, root)
    lower = triangle(jnp.concatenate([seen.noise_root, across], axis=1))
    size = jnp.abs(jnp.diagonal(lower))
    # Relative to the row: what is left of it is rounding.
    least = jnp.finfo(dtype).eps * jnp.linalg.norm(lower, axis=1)
    regular = jnp.all(size > least) & jnp.all(jnp.isfinite(lower))
    lower_ = jnp.where(regular, lower, jnp.eye(*lower.shape, dtype=dtype))
    solve = lambda b, trans: solve_triangular(lower_, b, lower=True, trans=trans)
    gain = jnp.matmul(root, solve(solve(across, 0), 1).T)
    white = solve(seen.value, 0)
    nis = jnp.sum(white**2)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(lower_))))
    keep = jnp.eye(n, dtype=dtype) - jnp.matmul(gain, seen.matrix)
    parts = [jnp.matmul(keep, root), jnp.matmul(gain, seen.noise_root)]
    constant = seen.count * jnp.log(2 * jnp.pi).astype(dtype)
    return Updated(
        shift=gain @ seen.value,
        root=compress(jnp.concatenate(parts, axis=1)),
        innovation_root=lower,
        nis=nis,
        log_likelihood=-(nis + constant) / 2 - log_det,
        regular=regular,
    )
