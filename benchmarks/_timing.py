"""Time compiled programs against each other, in one process and in turns."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds per call, one entry per round."""

    rounds: np.ndarray

    @property
    def least(self) -> float:
        return float(np.min(self.rounds))

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))

    def over(self, other: "Timing") -> float:
        """How many times longer than `other` this took: the median over the rounds, so
        that what slows the machine down for a while slows down both sides of a ratio.
        """
        return float(np.median(self.rounds / other.rounds))


def compile_timed(fn: Callable, *args) -> tuple[Callable, float]:
    """Traces, lowers and compiles `fn` for `args`, by a first call.

    **Returns:**

    The compiled function, and the seconds that it took from empty caches. (What
    `.lower().compile()` returns is called by way of Python, some 100 µs slower.)
    """
    # What an earlier program left behind (traces of library functions, say) would be
    # credited to this one.
    jax.clear_caches()
    start = time.perf_counter()
    compiled = jax.jit(fn)
    jax.block_until_ready(compiled(*args))
    return compiled, time.perf_counter() - start


def _seconds(fn: Callable, args: tuple, number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        jax.block_until_ready(fn(*args))
    return (time.perf_counter() - start) / number


def time_in_turns(
    programs: Mapping[str, Callable],
    *args: Any,
    rounds: int = 15,
    sample_seconds: float = 0.02,
) -> dict[str, Timing]:
    """Times each of `programs` on the same `args`, in turns.

    **Arguments:**

    - `programs`: names and compiled functions.
    - `rounds`: how often each has its turn.
    - `sample_seconds`: a turn repeats a short program for about as long as this. The
        default is some ten thousand times the resolution of the clock.
    """
    number = {}
    for name, fn in programs.items():
        _seconds(fn, args, 2)  # Warm up.
        once = _seconds(fn, args, 2)
        number[name] = max(1, round(sample_seconds / once))
    samples = {name: [] for name in programs}
    for _ in range(rounds):
        for name, fn in programs.items():
            samples[name].append(_seconds(fn, args, number[name]))
    return {name: Timing(np.array(times)) for name, times in samples.items()}


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> str:
    """One line that says what the times were measured on."""
    line = (
        f"{platform.system()} {platform.machine()}, {cores()} cores, "
        f"{jax.devices()[0].device_kind}, "
        f"Python {platform.python_version()}, jax {jax.__version__}"
    )
    if hasattr(os, "getloadavg"):
        line += f", load average {os.getloadavg()[0]:.1f}"
    return line


def show_seconds(seconds: float) -> str:
    """Three digits, with a unit."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
