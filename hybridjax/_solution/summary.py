"""A solution in one line."""

import jax
import jax.tree_util as jtu
import numpy as np

from .._jax.tracing import is_traced
from .._loop.results import result_name


def summary(sol) -> str:
    stats, count = sol.stats, sol.events.count
    if is_traced(_shown(sol)):
        return "Solution(traced)"
    if not has_values(sol):
        return "Solution(without values)"
    results, steps = np.asarray(sol.result._value), np.asarray(stats["num_steps"])
    count = np.asarray(count)
    if count.ndim > 0:
        numbers = dict(zip(*np.unique(results, return_counts=True), strict=True))
        parts = [f"{number} {result_name(which)}" for which, number in numbers.items()]
        spans = f"events={_range(count)}, steps={_range(steps)}"
        return f"Solution(batch of shape {count.shape}: {', '.join(parts)}; {spans})"
    result, t_end = result_name(results), float(stats["t_end"])
    times = f"t={float(sol.t0):.6g} to {t_end:.6g}"
    if t_end != float(sol.t1):
        times += f" of {float(sol.t1):.6g}"
    mode = sol._names.mode(sol.mode1, show=repr)
    return f"Solution({result}, {times}, mode={mode}, events={count}, steps={steps})"


def has_values(sol) -> bool:
    """Also of what is no solution any more, but has the structure of one."""
    leaves = jtu.tree_leaves(_shown(sol), is_leaf=lambda leaf: leaf is None)
    return not is_traced(leaves) and all(map(_is_known, leaves))


def _shown(sol):
    return sol.t0, sol.t1, sol.mode1, sol.events.count, sol.stats, sol.result


def _range(numbers) -> str:
    if numbers.size == 0:
        return "none"
    least, most = numbers.min(), numbers.max()
    return str(least) if least == most else f"{least} to {most}"


def _is_known(leaf) -> bool:
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable and not leaf.is_deleted()
    return isinstance(leaf, np.ndarray | np.generic | int | float)
