"""Solutions made comparable: by segments, and over the lanes of a batch. In losses,
what does not exist must be replaced before anything is computed from it: `jnp.where`
after the fact has the derivative 0 * NaN."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._events.firing import same_time
from .._jax.branch import where
from .._jax.tracing import is_traced


def segment_times(sol) -> Float[Array, " n"]:
    end = jnp.where(sol.successful, sol.t1, sol.stats["t_end"])
    # Several simulations have all of this along their last axis.
    happened = jnp.arange(sol.events.t.shape[-1]) < sol.events.count[..., None]
    times = jnp.where(happened, sol.events.t, end[..., None])
    return jnp.concatenate([sol.t0[..., None], times, end[..., None]], axis=-1)


def check_shares(index: Any, share: Any):
    if not jnp.issubdtype(jnp.result_type(index), jnp.integer):
        raise ValueError(
            "Argument `index` must be integers, the numbers of segments, but its dtype "
            f"is {jnp.result_type(index)}."
        )
    for name, value, most in (("index", index, np.inf), ("share", share, 1)):
        if is_traced(value):
            continue
        value = np.ravel(value)
        outside = value[~((value >= 0) & (value <= most))]
        if outside.size > 0:
            wanted = "from 0 to 1" if name == "share" else "at least 0"
            raise ValueError(
                f"Argument `{name}` must be {wanted}, but it has {outside[0]}."
            )


def evaluate_segment(sol, index: Array, share: Array) -> PyTree:
    times, tol = segment_times(sol), same_time(sol.t0, sol.t1)
    log, last = sol.events, sol.events.t.shape[0] - 1

    def pick(tree, k):
        return jtu.tree_map(lambda a: a[jnp.clip(k, 0, last)], tree)

    def one(k, share):
        # Those beyond the last one are empty.
        k = jnp.minimum(k, last + 1)
        begin, end = times[k], times[k + 1]
        t = begin + share * (end - begin)
        x0 = where(k > log.count, sol.x1, pick(log.x_after, k - 1))
        x0 = where(k == 0, sol.x0, x0)
        x1 = where(k < log.count, pick(log.x_before, k), sol.x1)
        x = where(t <= begin + tol, x0, sol.evaluate(t))
        return where(t >= end - tol, x1, x)

    for _ in range(index.ndim):
        one = jax.vmap(one)
    return one(index, share)


def mean_over_successful(
    loss: Callable[..., Float[Array, ""]],
    sols: Any,
    *args: PyTree,
    least_share: ArrayLike = 0.5,
) -> Float[Array, ""]:
    """The mean of a loss over the simulations of a batch that did not fail.

    Failed lanes have no part in it, nor in its derivatives, in forward or reverse mode,
    whatever the loss makes of NaN: `loss` is given another lane in their place, with
    weight zero. If too few were successful there is no mean: it is NaN, and so are its
    derivatives, so that a total failure is no minimum. (`optax.apply_if_finite` leaves
    such a step out.)

    !!! example

        ```python
        def batch_loss(params, x0s, measured):
            run = lambda x0: hj.simulate(params, 0.0, 1.0, x0, 0, throw=False)
            error = lambda sol, measured: jnp.sum((sol.x1 - measured) ** 2)
            return hj.mean_over_successful(error, jax.vmap(run)(x0s), measured)
        ```

    **Arguments:**

    - `loss`: callable `(sol, *args) -> scalar`, of one lane.
    - `sols`: a batch of `hj.Solution`, simulated under `jax.vmap` with `throw=False`.
    - `args`: pytrees of arrays, with an axis of lanes in front: data of each lane.
    - `least_share`: the share of lanes that must be successful, from 0 to 1. At least
        one must be in any case.

    **Returns:**

    A scalar.

    **Raises:**

    - `ValueError` if `sols` is not a batch with one axis, or `loss` does not return a
        scalar.
    """
    successful = sols.successful
    if successful.ndim != 1:
        raise ValueError(
            "Argument `sols` must be a batch of solutions with one axis of lanes, as "
            "`jax.vmap` makes it of one simulation, but its shape is "
            f"{successful.shape}."
        )
    instead = jnp.argmax(successful)

    def replace(a):
        shape = (-1,) + (1,) * (a.ndim - 1)
        return jnp.where(successful.reshape(shape), a, a[instead])

    lanes = jtu.tree_map(replace, eqx.filter((sols, args), eqx.is_array_like))
    sols, args = eqx.combine(lanes, (sols, args))
    losses = eqx.filter_vmap(loss)(sols, *args)
    if jnp.shape(losses) != successful.shape:
        raise ValueError(
            "Argument `loss` must return a scalar, but for all lanes it returned "
            f"{losses}."
        )
    enough = successful.any() & (jnp.mean(successful) >= least_share)
    weights = successful / jnp.maximum(jnp.sum(successful), 1)
    # A factor, not a choice: the derivative has it too.
    return jnp.sum(losses * jnp.where(enough, weights, jnp.nan).astype(losses.dtype))
