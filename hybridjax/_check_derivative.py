from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ._steps.method import finer


# Of a hundred errors one is seen at less than a tenth of its size: it is nearly
# orthogonal to both. In batches each direction costs half of a gradient.
_DIRECTIONS = 2


def check_derivative(
    fn: Callable[[PyTree], Float[Array, ""]], x: PyTree, gradient: PyTree = None
) -> Float[Array, ""]:
    """Estimates the error of a gradient through simulations.

    The gradient is compared with derivatives of `fn` in a few random directions (the
    same in each call), taken in forward mode and with other steps: each step of the
    record is divided into two at least, and into as many as the error of the tangent
    needs. What is found is the error that solver steps make in the derivative. That the
    state itself is not exact is not seen: for that, make the tolerances smaller.

    It costs a third more than another gradient, and up to twice as much in batches: the
    steps are half as long.

    !!! example

        ```python
        loss = lambda x0: jnp.sum(hj.simulate(system, 0.0, 1.0, x0, 0).x1 ** 2)
        gradient = jax.grad(loss)(x0)
        assert hj.check_derivative(loss, x0, gradient) < 1e-6
        ```

    **Arguments:**

    - `fn`: a function that calls `hj.simulate` and returns a scalar.
    - `x`: where the gradient is taken, a pytree of floating-point arrays.
    - `gradient`: what `jax.grad(fn)(x)` returned. `None` computes it.

    **Returns:**

    An estimate of the Euclidean norm of the error of the gradient, all its entries
    taken together; a scalar. NaN where there is no derivative. At a corner forward mode
    takes the order of each direction, and reverse mode that of the record: where these
    differ, so do the derivatives, and what is returned is not small.

    **Raises:**

    - `ValueError` if `fn` does not return a scalar, or if `gradient` is not like `x`.
    """
    like = jax.eval_shape(fn, x)
    if getattr(like, "shape", None) != ():
        raise ValueError(
            f"Argument `fn` must return a scalar, but it returned {like}. Sum, or pick "
            "an entry."
        )
    if gradient is None:
        gradient = jax.grad(fn)(x)
    shapes = lambda tree: jtu.tree_map(jnp.shape, tree)
    if shapes(gradient) != shapes(x):
        raise ValueError(
            "Argument `gradient` must have the structure and the shapes of `x`, "
            f"{shapes(x)}, but they are {shapes(gradient)}. Pass what "
            "`jax.grad(fn)(x)` returned."
        )
    flat, unravel = ravel_pytree(x)
    directions = jax.random.normal(
        jax.random.key(0), (_DIRECTIONS, *flat.shape), flat.dtype
    )
    with finer(True):
        along = lambda v: jax.jvp(fn, (x,), (unravel(v),))[1]
        slopes = jax.vmap(along)(directions)
    given = directions @ ravel_pytree(gradient)[0]
    return jnp.sqrt(jnp.mean((slopes - given) ** 2))
