"""`python -m tests.fuzz --systems 100000 [--family NAME] [--seed N]`"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from ..flags import fast_to_compile


# See `tests/conftest.py`.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
fast_to_compile()

import jax
import numpy as np


jax.config.update("jax_enable_x64", True)

from .core import (
    axes,
    draw,
    join,
    judge,
    program,
    REFUSED,
    VERDICTS,
    WRONG_DERIVATIVE,
    WRONG_VALUE,
)
from .failures import write
from .families import FAMILIES
from .settings import DEFAULT, settings


# Of the systems of a family, this share has the default setting. The other settings
# share the rest, where each then has at least so many.
_DEFAULT_SHARE, _AT_LEAST = 0.5, 60
_BATCH = 1000
_REPORTED = (WRONG_VALUE, WRONG_DERIVATIVE, REFUSED)


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--systems", type=int, default=10_000)
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append")
    parser.add_argument("--setting", action="append", help="only these, by name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, help="a folder for scripts")
    return parser.parse_args()


def _plan(family, systems: int, names) -> list:
    """Settings, and how many systems each has."""
    chosen = [s for s in settings(family) if names is None or s.name in names]
    others = [s for s in chosen if s != DEFAULT]
    each = int(systems * (1 - _DEFAULT_SHARE)) // max(len(others), 1)
    if names is not None:
        return [(s, systems // len(chosen)) for s in chosen]
    if each < _AT_LEAST:
        return [(DEFAULT, systems)]
    return [(DEFAULT, systems - each * len(others)), *((s, each) for s in others)]


def _run(family, setting, systems, seed, folder):
    counts = np.zeros(len(VERDICTS) + 1, int)
    size = min(systems, _BATCH)
    for batch in range(-(-systems // size)):
        rng = np.random.default_rng([seed, batch])
        kinds = axes(family, setting)
        shares = [len(part) for part in np.array_split(np.arange(size), len(kinds))]
        parts = [
            draw(family, setting, axis, rng, n)
            for axis, n in zip(kinds, shares, strict=True)
            if n > 0
        ]
        lanes = join(parts)
        found = judge(family, setting, lanes, rng)
        counts[:-1] += np.bincount(found.verdict, minlength=len(VERDICTS))
        counts[-1] += np.sum(found.successful)
        for verdict in _REPORTED:
            # The first few tell what it is.
            for i in np.nonzero(found.verdict == verdict)[0][:5]:
                lane = lanes.take(i)
                write(folder, family, setting, lane, verdict, found.ratio[i])
    return counts


def main():
    options = _arguments()
    folder = options.failures or Path(tempfile.mkdtemp(prefix="hybridjax-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Scripts of failures: {folder}")
    names = ("successful", *(VERDICTS[k] for k in _REPORTED), VERDICTS[-1])
    head = f"{'family':12} {'setting':12} {'systems':>8}"
    print(head + "".join(f" {name:>20}" for name in names) + "  seconds", flush=True)
    total = np.zeros(len(VERDICTS) + 1, int)

    def row(family, setting, counts, seconds):
        numbers = [counts[-1], *(counts[k] for k in _REPORTED), counts[-2]]
        text = f"{family:12} {setting:12} {np.sum(counts[:-1]):8}"
        text += "".join(f" {number:20}" for number in numbers)
        print(f"{text} {seconds:8.0f}", flush=True)

    begin = time.perf_counter()
    chosen = options.family or list(FAMILIES)
    for name in chosen:
        family = FAMILIES[name]
        for setting, n in _plan(
            family, options.systems // len(chosen), options.setting
        ):
            start = time.perf_counter()
            counts = _run(family, setting, n, options.seed, folder)
            total += counts
            row(name, setting.name, counts, time.perf_counter() - start)
            # No more than one setting needs it: of hundreds of programs, a process runs
            # out of maps of its memory.
            program.cache_clear()
            jax.clear_caches()
    row("all", "", total, time.perf_counter() - begin)
    if total[WRONG_VALUE] + total[WRONG_DERIVATIVE] > 0:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
