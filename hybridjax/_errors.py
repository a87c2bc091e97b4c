from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._start import is_traced


class SimulationError(RuntimeError):
    """A simulation failed, and `throw=True` asked for an error.

    Inside a `jax.jit` of the user's own, JAX wraps it into an error of its own type,
    whose text contains this one's.
    """


# The message of the error that was raised last inside a compiled program. JAX hides the
# exception itself within a long text of its own.
_last_message: list[str] = []


@eqx.filter_custom_jvp
def _raise_if(token, pred, values, *, message: Callable[[Any], str]):
    def raises(pred, values):
        text = message(_failed_lanes(np.asarray(pred), values))
        _last_message[:] = [text]
        raise SimulationError(text)

    struct = jax.eval_shape(lambda: token)

    def fail():
        return jax.pure_callback(
            raises, struct, pred, values, vmap_method="broadcast_all"
        )

    return lax.cond(eqxi.unvmap_any(pred), fail, lambda: token)


@_raise_if.def_jvp
def _raise_if_jvp(primals, tangents, *, message):
    _, pred, values = primals
    t_token, _, _ = tangents
    # A program that returns derivatives only has no use for the primal token, and would
    # not raise. So they depend on one, too.
    one = _raise_if(jnp.ones(()), pred, values, message=message)
    t_token = jtu.tree_map(lambda t: t * one.astype(t.dtype), t_token)
    return _raise_if(*primals, message=message), t_token


def raise_if(token: PyTree, pred, values: PyTree, message: Callable[[Any], str]):
    """Returns `token`, or raises a `SimulationError` where `pred`, at run time.

    `message` gets the `values` of the first lane of a batch that failed.
    """
    return _raise_if(token, pred, values, message=message)


def _failed_lanes(pred: np.ndarray, values: PyTree):
    first = np.unravel_index(np.argmax(pred), pred.shape)

    def pick(value):
        value = np.asarray(value)
        return value[first] if value.shape[: pred.ndim] == pred.shape else value

    return jtu.tree_map(pick, values)


def clean_errors(fn: Callable) -> Any:
    """Calls `fn`, waits for what it returns, and raises a `SimulationError` from a
    compiled program as itself."""
    _last_message.clear()
    try:
        out = fn()
        return out if is_traced(out) else jax.block_until_ready(out)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if _last_message and _last_message[0] in str(error):
            text = _last_message[0]
        else:
            raise
    raise SimulationError(text)
