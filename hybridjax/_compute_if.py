import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, PyTree


def compute_if(pred: Bool[Array, ""], fn):
    """`fn()`, or zeros."""
    struct = jax.eval_shape(fn)
    zeros = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), struct)
    return compute_over(zeros, lambda _: fn(), pred)


def compute_over(out: PyTree, fn, pred: Bool[Array, ""] | None = None) -> PyTree:
    """`fn(out)`, of the same structure as `out`; or `out` itself if `pred` is false.

    Also without a `pred` it is a branch, for XLA's executor on CPUs: it runs the small
    kernels of a computation one after the other only if there are eight at most or none
    of them touches a large array, and gives them to threads otherwise, which takes
    several times as long. A branch is a computation of its own. As a loop, of one
    iteration at most, it may even become a single kernel (docs/performance.md).
    """
    if pred is None:
        # Not a constant, or XLA would see that there is no choice.
        pred = lax.optimization_barrier(jnp.asarray(True))
    once = lambda carry: (jnp.zeros((), bool), fn(carry[1]))
    return lax.while_loop(lambda carry: carry[0], once, (pred, out))[1]
