"""Choices that stay branches, and choices between pytrees."""

from collections.abc import Callable, Sequence

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.custom_batching
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Int, PyTree


def compute_if(pred: Bool[Array, ""] | None, fn, otherwise: PyTree) -> PyTree:
    """`fn()` or `otherwise`, of the same structure; without a `pred` always `fn()`.

    It is a branch also where there is no choice, for XLA's executor on CPUs: that runs
    the small kernels of a computation one after the other only if there are eight at
    most or none of them touches a large array, and gives them to threads otherwise,
    which takes several times as long. A branch is a computation of its own. As a loop,
    of one iteration at most, it may even become a single kernel (docs/performance.md).
    On GPUs each iteration of a loop waits for its condition, and kernels beside a
    branch are launched together.
    """
    if jax.default_backend() != "cpu":
        return fn() if pred is None else lax.cond(pred, fn, lambda: otherwise)
    if pred is None:
        # Not a constant, or XLA would see that there is no choice.
        pred = lax.optimization_barrier(jnp.asarray(True))
    once = lambda _: (jnp.zeros((), bool), fn())
    return lax.while_loop(lambda carry: carry[0], once, (pred, otherwise))[1]


def computed_once(fn: Callable, otherwise: PyTree, *args: PyTree) -> PyTree:
    """`fn(*args)`, for `otherwise` of the same structure: computed here, where XLA
    would do it again in each kernel that reads it, entry by entry. In a batch, whose
    memory is what counts, it may. Cannot be differentiated."""
    arrays, static = eqx.partition(args, eqx.is_array)
    compute = lambda arrays: fn(*eqx.combine(arrays, static))

    @jax.custom_batching.custom_vmap
    def run(otherwise, arrays):
        return compute_if(None, lambda: compute(arrays), otherwise)

    @run.def_vmap
    def batch(axis_size, in_batched, otherwise, arrays):
        axes = jtu.tree_map(lambda batched: 0 if batched else None, in_batched[1])
        out = jax.vmap(compute, (axes,), axis_size=axis_size)(arrays)
        return out, jtu.tree_map(lambda _: True, out)

    return run(otherwise, arrays)


def settled(tree: PyTree) -> PyTree:
    """`tree`, computed here, and once: XLA would compute what many kernels read in each
    of them, with all that leads to it."""
    return compute_if(None, lambda: tree, jtu.tree_map(jnp.zeros_like, tree))


def of_a_lane_that(pred: Bool[Array, ""], tree: PyTree) -> PyTree:
    """`tree`; in a batch, where not `pred`, that of another lane where it is so.

    What is thrown away there is then no harder to compute than what is not: a search
    for the contacts after an event that did not happen may take a hundred times as
    long, and all lanes wait for it. Cannot be differentiated.
    """
    arrays, static = eqx.partition(tree, eqx.is_array)

    @jax.custom_batching.custom_vmap
    def run(pred, arrays):
        return arrays

    @run.def_vmap
    def batch(axis_size, in_batched, pred, arrays):
        pred_batched, batched = in_batched
        if not pred_batched:
            return run(pred, arrays), batched
        lane = jnp.argmax(pred)
        pick = lambda batched, a: a[lane] if batched else a
        # Of a batch of batches: there may be one in another batch only.
        other = run(jnp.any(pred), jtu.tree_map(pick, batched, arrays))

        def of_lanes(batched, a, other):
            choose = lambda p, own: jnp.where(p, own, other)
            return jax.vmap(choose, (0, 0 if batched else None))(pred, a)

        out = jtu.tree_map(of_lanes, batched, arrays, other)
        return out, jtu.tree_map(lambda _: True, out)

    return eqx.combine(run(pred, arrays), static)


def later_zero(after: Array) -> Int[Array, ""]:
    """Zero, when `after` (an integer, never negative) is known. XLA's executor on CPUs
    hands kernels to another thread, which takes 20 µs, if more than eight of them are
    ready: what is needed later should not be ready at once."""
    return jnp.minimum(after, 0)


def cond_any(pred, true_fn, false_fn, *operands):
    """`lax.cond` on whether any lane of a batch needs it: stays a branch under vmap."""
    return lax.cond(eqxi.unvmap_any(pred), true_fn, false_fn, *operands)


def switch(index: Int[Array, ""], branches: Sequence[Callable], *operands):
    """`lax.switch`, where there may be one branch only."""
    if len(branches) == 1:
        return branches[0](*operands)
    return lax.switch(index, branches, *operands)


def where(pred, a: PyTree, b: PyTree) -> PyTree:
    """`jnp.where`, leaf by leaf."""
    return jtu.tree_map(lambda p, q: jnp.where(pred, p, q), a, b)


def add_where(pred: Bool[Array, ""], total: PyTree, more: PyTree) -> PyTree:
    """Adds in the lanes where `pred`; what the others computed may be NaN."""
    keep = lambda a, b: a + jnp.where(pred, b, jnp.zeros_like(b))
    return jtu.tree_map(keep, total, more)
