"""Solves one problem with one peer, step by step as the driver says.

    python worker.py PEER PROBLEM

Reads commands from standard input, and answers each by one line of JSON:

- `build value`, or whatever else the peer's `build` knows: prepares the program, runs
    it once, and answers with the seconds that it took (compilation), what came out, and
    the peak memory in bytes up to here.
- `time value 0.1`: repeats it for about so many seconds, and
    answers with the seconds of one run.

What a peer raises is the answer, too.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback

import numpy as np
from _process import memory_bytes
from problems import PROBLEMS


def _seconds(run, number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


def main() -> None:
    peer, name = sys.argv[1:]
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    # The answers have standard output for themselves: C libraries print there, too.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module = importlib.import_module(f"peer_{peer}")
    runs = {}

    def build(what):
        start = time.perf_counter()
        run = module.build(problem, what)
        out = run()
        seconds = time.perf_counter() - start
        runs[what] = run
        parts = out if isinstance(out, tuple) else (out,)
        parts = [np.asarray(part, float).tolist() for part in parts]
        return {"seconds": seconds, "out": parts, "peak_memory": memory_bytes("VmHWM")}

    def measure(what, sample_seconds):
        run = runs[what]
        once = _seconds(run, 1)
        number = round(float(sample_seconds) / once)
        return {"seconds": _seconds(run, number) if number > 1 else once}

    versions = {name: importlib.metadata.version(name) for name in module.PACKAGES}
    print(json.dumps({"versions": versions}), file=answers)
    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            answer = {"build": build, "time": measure}[command](*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
