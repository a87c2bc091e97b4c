"""Functions that are traced once, however often they are called."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.extend.core
import jax.tree_util as jtu

from .common import computed_once
from .tracing import is_traced


class Converted(eqx.Module):
    """A function of arrays, whose closed-over arrays are leaves, if they are traced.

    As `eqx.filter_closure_convert`, which also compares the shardings of its arguments
    with those of the example. Within a `jax.shard_map` these depend on when JAX asks.
    """

    closed: Any  # jax.extend.core.ClosedJaxpr
    consts: list  # with `None` for those that are not traced
    structure: Any = eqx.field(static=True)
    size: int = eqx.field(static=True)  # how many operations it has
    # Of the leaves of its arguments: which of them it looks at.
    reads: tuple[bool, ...] = eqx.field(static=True)

    def __call__(self, *args):
        leaves = jtu.tree_leaves((self.consts, args))
        out = jax.core.eval_jaxpr(self.closed.jaxpr, self.closed.consts, *leaves)
        return jtu.tree_unflatten(self.structure, out)

    @property
    def out_avals(self):
        return self.closed.out_avals


def convert(fn: Callable, *args) -> Converted:
    """`fn`, for arguments such as these."""
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    jaxpr, consts = computed_once(closed.jaxpr, closed.consts)
    traced, known = eqx.partition(consts, is_traced)

    @jax.jit
    def run(traced, leaves):
        return jax.core.eval_jaxpr(jaxpr, eqx.combine(traced, known), *leaves)

    # What is evaluated is a call, so that JAX lowers the function once for all of its
    # uses, and a call that is traced already: the cache of `jax.jit` also looks at the
    # context, which is another one when JAX differentiates. XLA inlines it.
    call = jax.make_jaxpr(run)(traced, jtu.tree_leaves(args))
    structure = jtu.tree_structure(out)
    return Converted(call, traced, structure, _size(jaxpr), _reads(jaxpr))


def _reads(jaxpr) -> tuple[bool, ...]:
    """Which arguments are passed to an operation, or are results."""
    used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
    used |= {id(v) for v in jaxpr.outvars}
    return tuple(id(v) in used for v in jaxpr.invars)


def _size(jaxpr) -> int:
    inner = lambda eqn: [
        _size(sub) for sub in jax.extend.core.jaxprs_in_params(eqn.params)
    ]
    return sum(sum(inner(eqn)) or 1 for eqn in jaxpr.eqns)
