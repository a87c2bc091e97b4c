"""What to tell XLA, so that programs compile sooner."""

import functools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from .tracing import nans_allowed


_DISABLE = "xla_disable_hlo_passes"
# Only for CPUs: there these take a third to a half of the time to compile. The passes
# look for work to move into loops and out of them, again and again. (Without another,
# `simplify-while-loops`, tapes that nobody reads would be written.)
_PASSES = "while-loop-invariant-code-motion,while-loop-constant-sinking"
_SAME_SPEED = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}
_SLOWER = _SAME_SPEED | {"xla_backend_optimization_level": 0}


def compiler_options(
    goal: Literal["fast_to_run", "fast_to_compile"] = "fast_to_run",
) -> dict[str, Any]:
    """Options for `jax.jit(f, compiler_options=...)` with which a simulation compiles
    sooner on CPUs. An empty dictionary on other devices.

    `hj.simulate` uses the first where nothing is around it, no `jax.jit`,
    `jax.grad` or `jax.vmap`.

    !!! example

        ```python
        @functools.partial(jax.jit, compiler_options=hj.compiler_options())
        def loss(parameters):
            ...
        ```

    **Arguments:**

    - `goal`: `"fast_to_run"` leaves out what takes time to compile and makes no program
        faster. `"fast_to_compile"` also leaves out what does: programs take about
        twice as long to run, and those of large batches four times.

    **Returns:**

    A dictionary of those options that the installed version of XLA knows. (They are no
    stable part of JAX.) Passes that `XLA_FLAGS` disables stay disabled. Results differ
    by rounding.

    **Raises:**

    - `ValueError` for another goal.
    """
    goals = {"fast_to_run": _SAME_SPEED, "fast_to_compile": _SLOWER}
    if goal not in goals:
        raise ValueError(
            f"Argument `goal` must be one of {sorted(goals)}, but it is {goal!r}."
        )
    if jax.default_backend() != "cpu":
        return {}
    options = goals[goal] | {_DISABLE: ",".join([*_disabled_passes(), _PASSES])}
    # All at once: most versions know all of them.
    if _are_known(*options.items()):
        return options
    return {name: v for name, v in options.items() if _are_known((name, v))}


def _disabled_passes() -> list[str]:
    """Those of the environment: an option of a program takes the place of a flag."""
    return re.findall(rf"--{_DISABLE}=(\S+)", os.environ.get("XLA_FLAGS", ""))


@functools.cache
def _are_known(*options: tuple[str, Any]) -> bool:
    """Whether this XLA has these options: it does not say otherwise."""
    nothing = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), jnp.float32))
    try:
        nothing.compile(dict(options))
    except jax.errors.JaxRuntimeError:
        return False
    return True


@functools.cache
def outermost_jit(fn: Callable) -> Callable:
    """A program of its own, for where nothing is around it: see `is_outermost`."""
    return eqx.filter_jit(compiler_options=compiler_options())(fn)  # pyright: ignore


def in_one_program(fn: Callable, *args: Any) -> Any:
    """`fn(*args)`, as a program of its own where nothing is around it."""
    run = outermost_jit(fn) if is_outermost() else fn
    with nans_allowed():
        return run(*args)


def is_outermost() -> bool:
    """Whether no transformation of JAX is at work: only then it takes options."""
    return get_opaque_trace_state() == _no_transformation()


@functools.cache
def _no_transformation():
    # As seen from where there certainly is none.
    with ThreadPoolExecutor(1) as another:
        return another.submit(get_opaque_trace_state).result()
