"""Eigenvalues of a product of matrices that is never formed."""

import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float


# So many times through the product: afterwards, what is below a block is of the order
# of the ratio of multipliers to this power.
_SWEEPS = 64


def floquet_multipliers(factors: Float[Array, "k n n"]) -> Complex[Array, " n"]:
    r"""The eigenvalues of a product of matrices, small ones included.

    The product of the factors of a period has multipliers of very different size, and
    in the product itself those below rounding of the largest are lost. Here a basis is
    taken through the factors, one by one, and made orthogonal after each, as often as
    it takes for its directions to be those of the multipliers by size (subspace
    iteration on the factors, the unshifted periodic QR algorithm). The product is then
    block triangular, with multipliers of similar size in each block, and blocks are
    products of small matrices of similar size.

    **Arguments:**

    - `factors`: of the product $F_k \cdots F_2 F_1$, in the order in which they act,
        for example `hj.analysis.monodromy(...).factors`.

    **Returns:**

    The $n$ eigenvalues, the largest first, with an error relative to each.
    Differentiable in forward mode where they are distinct.

    **Raises:**

    - `ValueError` if `factors` is not a stack of square matrices.

    ??? cite "Reference"

        Bojanczyk, Golub, Van Dooren, *The periodic Schur decomposition: algorithms and
        applications* (1992), for what is done without shifts here.
    """
    if factors.ndim != 3 or factors.shape[1] != factors.shape[2]:
        raise ValueError(
            "Argument `factors` must be a stack of square matrices, of shape "
            f"(k, n, n), but its shape is {factors.shape}. Of one matrix, pass "
            "`matrix[None]`."
        )
    n = factors.shape[-1]
    identity = jnp.eye(n, dtype=factors.dtype)
    basis = _settled(lax.stop_gradient(factors), identity)

    def step(carry, factor):
        q, upper = carry
        # Any bases that do not move would do, so that none has a derivative, and a
        # factor may be singular.
        q_next = lax.stop_gradient(_basis(factor @ q))
        r = q_next.T @ factor @ q
        rest = jnp.tril(r, -1)
        # Not normalised: rows keep their own size.
        return (q_next, (r - lax.stop_gradient(rest)) @ upper), None

    (end, upper), _ = lax.scan(step, (basis, identity), factors)
    turn = basis.T @ end
    # What is below the blocks is rounding, and would be multiplied by the largest.
    below = jnp.tril(jnp.ones((n, n), bool), -1)
    eps = jnp.finfo(factors.dtype).eps
    turn = jnp.where(below & (jnp.abs(turn) < 100 * n * eps), 0, turn)
    multipliers = eigenvalues(turn @ upper)
    return multipliers[jnp.argsort(-jnp.abs(multipliers))]


def eigenvalues(a: Float[Array, "n n"]) -> Complex[Array, " n"]:
    """NaN where `a` is not finite: `jnp.linalg.eigvals` of a GPU fails there, with all
    the batch."""
    finite = jnp.all(jnp.isfinite(a))
    values = jnp.linalg.eigvals(jnp.where(finite, a, 0))
    return values * jnp.where(finite, 1, jnp.nan)


def _settled(factors, basis):
    def sweep(_, q):
        through = lambda q, factor: (_basis(factor @ q), None)
        return lax.scan(through, q, factors)[0]

    return lax.fori_loop(0, _SWEEPS, sweep, basis)


def _basis(a):
    q, r = jnp.linalg.qr(a)
    # With positive diagonals, it settles, and does not go on changing sign.
    return jnp.where(jnp.diagonal(r)[None] < 0, -q, q)
