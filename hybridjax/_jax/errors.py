"""Raising what a compiled program found: in Python where the values are known, and by
way of a callback only within a `jax.jit` of the user's own."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.extend.core
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.interpreters import batching, mlir
from jaxtyping import Array, Bool, PyTree

from .tracing import is_traced, stop_gradient


class SimulationError(RuntimeError):
    """A simulation failed, and `throw=True` asked for an error.

    Inside a `jax.jit` of the user's own, JAX wraps it into an error of its own type,
    whose text contains this one's.
    """


class Verdict(eqx.Module):
    """What there is to complain about, and what a message about it needs."""

    failed: Bool[Array, ""]
    values: PyTree[Array]
    # Whether derivatives exist, where the computation does not fail: the first, which
    # is set where one was computed; and the second. `None` where they always do.
    smooth: Bool[Array, ""] | None = None
    twice: Bool[Array, ""] | None = None


class Messages(eqx.Module):
    """`failure` gets the `values` of the verdict, of the first lane of a batch that
    failed."""

    failure: Callable[[Any], str]
    not_smooth: str = ""
    not_twice: str = ""


def certify(tree: PyTree, verdict: Verdict, messages: Messages) -> PyTree:
    """Returns `tree`, or raises a `SimulationError`: if the computation failed, or if
    it is being differentiated and has no derivative."""
    if not is_traced(verdict):
        _raise(verdict.failed, verdict.values, messages.failure)
        if verdict.smooth is not None:
            _raise(~np.asarray(verdict.smooth), (), lambda _: messages.not_smooth)
        if verdict.twice is None or verdict.twice:
            return tree
    return _certify(tree, stop_gradient(verdict), messages=messages)


@eqx.filter_custom_jvp
def _certify(tree, verdict: Verdict, *, messages: Messages):
    ok = _check(verdict.failed, verdict.values, messages.failure)
    if not is_traced(ok):
        return tree
    # Under `jit`, what is returned has to need the check, or XLA leaves it out.
    keep = lambda a: jnp.where(ok, a, jnp.zeros_like(a)) if eqx.is_array(a) else a
    return jtu.tree_map(keep, tree)


@_certify.def_jvp
def _certify_jvp(primals, tangents, *, messages: Messages):
    tree, verdict = primals
    # A program that returns derivatives only has no use for the primal values, and
    # would not raise. So derivatives need a check, too.
    one = _one(tree, verdict, messages=messages)
    t_tree = tangents[0]
    if is_traced(one):
        t_tree = jtu.tree_map(lambda t: t * one.astype(t.dtype), t_tree)
    return _certify(*primals, messages=messages), t_tree


@eqx.filter_custom_jvp
def _one(tree, verdict: Verdict, *, messages: Messages):
    """One, if there is a first derivative. Its own derivative, which is asked for where
    `tree` is differentiated once more, needs the second."""
    smooth = True if verdict.smooth is None else verdict.smooth
    first = lambda v: messages.failure(v[1]) if v[0] else messages.not_smooth
    values = (verdict.failed, verdict.values)
    lib = _library(verdict.failed, smooth)
    no = lib.logical_or(verdict.failed, lib.logical_not(smooth))
    ok = _check(no, values, first)
    return jnp.where(ok, 1.0, jnp.nan) if is_traced(ok) else np.ones(())


def _library(*flags):
    """What is known is looked at by NumPy: JAX would compile programs for it."""
    return jnp if is_traced(flags) else np


@_one.def_jvp
def _one_jvp(primals, tangents, *, messages: Messages):
    _, verdict = primals
    one = _one(*primals, messages=messages)
    if verdict.twice is None:
        return one, None
    no = _library(verdict.twice).logical_not(verdict.twice)
    ok = _check(no, (), lambda _: messages.not_twice)
    return one, jnp.where(ok, 0.0, jnp.nan).astype(one.dtype)


#
# The check as a primitive: evaluated, it raises; compiled, it calls back
#


def _check(failed, values: PyTree, message: Callable[[Any], str]):
    """True, or an error. A NumPy array where all is known."""
    leaves, structure = jtu.tree_flatten(values)
    raiser = lambda failed, *leaves: _raise(
        failed, jtu.tree_unflatten(structure, leaves), message
    )
    return _check_p.bind(failed, *leaves, raiser=raiser)


# What compiled programs report while `clean_errors` waits for them, instead of raising:
# an error that passes through XLA is long, and devices remember it.
_reports: list[str] | None = None


def _raise(failed, values, message):
    failed = np.asarray(failed)
    if not failed.any():
        return np.asarray(True)
    first = np.unravel_index(np.argmax(failed), failed.shape)
    raise SimulationError(
        message(jtu.tree_map(lambda value: np.asarray(value)[first], values))
    )


def _impl(*values, raiser):
    return raiser(*values)


def _in_a_program(failed, *leaves, raiser):
    def report(*values):
        try:
            return raiser(*values)
        except SimulationError as error:
            if _reports is None:
                raise
            _reports.append(str(error))
            return np.asarray(False)

    def call():
        true = jax.ShapeDtypeStruct((), jnp.dtype(bool))
        return jax.pure_callback(report, true, failed, *leaves)

    return lax.cond(jnp.any(failed), call, lambda: jnp.asarray(True))


def _batch(args, dims, *, raiser):
    # One check for all lanes.
    (size,) = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
    front = [
        batching.bdim_at_front(a, d, size) for a, d in zip(args, dims, strict=True)
    ]
    return _check_p.bind(*front, raiser=raiser), None


_check_p = jax.extend.core.Primitive("hybridjax_check")
_check_p.def_impl(_impl)
_check_p.def_abstract_eval(lambda *_, raiser: jax.core.ShapedArray((), jnp.dtype(bool)))
batching.primitive_batchers[_check_p] = _batch
mlir.register_lowering(_check_p, mlir.lower_fun(_in_a_program, multiple_results=False))


def clean_errors(fn: Callable) -> Any:
    """Calls `fn`, waits for what it returns, and raises a `SimulationError` of a
    compiled program as itself."""
    global _reports
    before, _reports = _reports, []
    try:
        out = fn()
        if not is_traced(out):
            jax.block_until_ready(out)
        reports = _reports
    finally:
        _reports = before
    if reports:
        raise SimulationError(reports[0])
    return out
