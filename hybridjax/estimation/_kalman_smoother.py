import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from .._jax.compiler_options import in_one_program
from ..analysis._square_root import compress, triangle
from ._kalman_filter import FilterSolution
from ._results import RESULTS


class SmootherSolution(eqx.Module):
    """What `hj.estimation.kalman_smoother` returns.

    **Attributes:**

    - `ts`: the times of the measurements, of shape `(times,)`.
    - `xs`, `modes`, `roots`: the state at each of them, given all measurements: as a
        pytree; its mode, that of the filter; and a square root of its covariance, of
        shape `(times, n, n)`.
    - `result`: that of the filter. After a failure all floats are NaN.
    """

    ts: Float[Array, " times"]
    xs: PyTree
    modes: PyTree
    roots: Float[Array, "times n n"]
    result: RESULTS  # pyright: ignore


def kalman_smoother(filtered: FilterSolution) -> SmootherSolution:
    r"""States given all measurements, before and after.

    What the measurements after a time say of a deviation $d$ from the filtered state
    there, to first order, is a likelihood $\exp(\eta^\top d - \tfrac12 d^\top U
    U^\top d)$. It goes back through the derivatives that the filter has taken,
    saltation matrices and all; with the root $S$ of the filtered covariance, the
    smoothed deviation and covariance are

    $$S W^{-1} S^\top \eta, \qquad S W^{-1} S^\top, \qquad
    W = 1 + S^\top U U^\top S.$$

    No covariance is inverted, neither of a state nor of process noise: they may be
    singular.

    !!! example

        ```python
        filtered = hj.estimation.kalman_filter(...)
        smoothed = hj.estimation.kalman_smoother(filtered)
        ```

    The sequence of events is that of the filter: an event that the filter has missed
    until it was measured is missing here, too. Differentiable as the filter is.

    **Arguments:**

    - `filtered`: what `hj.estimation.kalman_filter` returned.

    **Returns:**

    A `hj.estimation.SmootherSolution`.

    **Raises:**

    - `ValueError` if `filtered` is something else.

    ??? cite "Reference"

        Fraser, Potter, *The optimum linear smoother as a combination of two optimum
        linear filters*, 1969; in square roots, as Bierman's of the modified
        Bryson-Frazier form.
    """
    if not isinstance(filtered, FilterSolution):
        raise ValueError(
            "Argument `filtered` must be what `hj.estimation.kalman_filter` returned, "
            f"but it is a {type(filtered).__name__}."
        )
    return in_one_program(_smoother, filtered)


def _smoother(filtered: FilterSolution) -> SmootherSolution:
    first = jax.tree.map(lambda a: a[0], filtered.xs)
    unravel = ravel_pytree(first)[1]
    means = jax.vmap(lambda x: ravel_pytree(x)[0])(filtered.xs)
    n, dtype = means.shape[1], means.dtype
    identity = jnp.eye(n, dtype=dtype)
    # What is known of the future at the end: nothing.
    later = jnp.zeros((n, n), dtype), jnp.zeros((n,), dtype)

    def step(later, here):
        mean, root, factors = here
        (U, eta), f = later, factors
        # The smoothed deviation and root.
        seen = jnp.matmul(root.T, U)
        lower = triangle(jnp.concatenate([identity, seen], axis=1))
        half = solve_triangular(lower, root.T, lower=True).T
        out = mean + half @ (half.T @ eta), half
        # Before the guards beyond which the update has led, and before the update.
        U, eta = jnp.matmul(f.passing.T, U), f.passing.T @ eta
        eta = eta + U @ (U.T @ f.shift)
        # With the measurement.
        matrix, value = f.whitened
        U = compress(jnp.concatenate([U, matrix.T], axis=1))
        eta = eta + matrix.T @ value
        # Before the noise, and the flow.
        G = f.process_root
        noisy = jnp.matmul(U.T, G)
        within = triangle(
            jnp.concatenate([jnp.eye(G.shape[1], dtype=dtype), noisy.T], 1)
        )
        across = solve_triangular(within, G.T @ eta, lower=True)
        across = solve_triangular(within, across, lower=True, trans=1)
        eta = eta - U @ (noisy @ across)
        lower = triangle(jnp.concatenate([identity, noisy], axis=1))
        U = solve_triangular(lower, U.T, lower=True).T
        U, eta = jnp.matmul(f.transition.T, U), f.transition.T @ eta
        return (U, eta), out

    inputs = means, filtered.roots, filtered._factors
    _, (xs, roots) = lax.scan(step, later, inputs, reverse=True)
    return SmootherSolution(
        ts=filtered.ts,
        xs=jax.vmap(unravel)(xs),
        modes=filtered.modes,
        roots=roots,
        result=filtered.result,
    )
