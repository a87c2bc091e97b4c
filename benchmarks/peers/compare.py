"""Compares hybridjax with the tools that people use today, in one run.

    python compare.py --python hybridjax=PATH --python casadi=PATH ... --out FOLDER

Called by `benchmarks/run.sh`, which builds an environment for each peer. Every peer
solves every problem in a process of its own (`worker.py`); compilations come one after
the other, timings in turns, so that what slows the machine down for a while slows down
both sides of a ratio. Writes `results.md` and `results.png`.
"""

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib


matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from _timing import cores, show_seconds
from problems import Problem, PROBLEMS
from reference import objective, reference


OURS = "hybridjax"
# Peer: its name in the report.
PEERS = {
    OURS: "hybridjax",
    "diffrax": "diffrax loop",
    "jaxonomy": "jaxonomy",
    "torchdiffeq": "torchdiffeq",
    "casadi": "CasADi, C",
    "scipy": "SciPy",
}
WHATS = {"value": "forward", "gradient": "value and gradient"}
# Of single simulations, by those that use JAX.
JACOBIANS = {
    "jvp": "The final state, and one tangent of it.",
    "jacfwd": "The Jacobian of the final state in forward mode: as many tangents as "
    "there are parameters, 4, 2, 2, 6 and 10.",
    "jacrev": "The Jacobian in reverse mode: as many cotangents as there are states, "
    "2, 2, 2, 6 and 20.",
}
JAX_PEERS = (OURS, "diffrax", "jaxonomy")

# XLA compiles a loop on the CPU as one function if it touches no more bytes than this
# (1024 by default), and as a sequence of kernels otherwise. All peers that use JAX are
# several times as fast with it.
XLA_FLAGS = (
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000"
)

# For one answer. Peers without batches would take minutes for thousands of lanes.
_LIMIT_SECONDS = 25
_ROUNDS = 7
_SAMPLE_SECONDS = 0.05


class Worker:
    """A peer that solves one problem, in a process of its own."""

    def __init__(self, peer: str, python: str, problem: Problem):
        self._process = subprocess.Popen(
            [python, "worker.py", peer, problem.name],
            cwd=Path(__file__).parent,
            env={**os.environ, "XLA_FLAGS": XLA_FLAGS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._failed: dict | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(json.dumps({"error": "The process ended without an answer."}))

    def answer(self) -> dict:
        try:
            return json.loads(self._lines.get(timeout=_LIMIT_SECONDS))
        except queue.Empty:
            self._process.kill()
            self._failed = {"error": f"No answer within {_LIMIT_SECONDS} s."}
            return self._failed

    def ask(self, *command) -> dict:
        if self._failed is not None:
            return self._failed
        assert self._process.stdin is not None
        try:
            print(*command, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # The answer says it.
        return self.answer()

    def end(self):
        self._process.kill()
        self._process.wait()


class Cell(NamedTuple):
    """What one peer did in one problem; seconds, bytes."""

    error: str | None = None
    deviation: float = np.nan  # from the reference, the largest
    compile_seconds: float = np.nan
    seconds: np.ndarray = np.array([np.nan])  # one entry per round
    peak_memory: float = np.nan


def measure(problem: Problem, pythons: dict[str, str]):
    """Cells by peer and by what is computed, and the peers' versions."""
    state, gradient = reference(problem)
    truth = {
        "value": state,
        "gradient": gradient,
        "jvp": gradient.sum(),
        "jacfwd": gradient,
        "jacrev": gradient,
    }
    workers = {peer: Worker(peer, pythons[peer], problem) for peer in pythons}
    started = {peer: worker.answer() for peer, worker in workers.items()}
    versions = {peer: answer.get("versions", {}) for peer, answer in started.items()}
    cells, samples = {}, {}
    for peer, worker in workers.items():
        jacobians = peer in JAX_PEERS and not problem.batched
        for what in (*WHATS, *(JACOBIANS if jacobians else ())):
            built = started[peer]
            if "error" not in built:
                built = worker.ask("build", what)
            if "error" in built:
                cells[peer, what] = Cell(error=built["error"])
                continue
            # The gradient comes after the objective.
            out = np.array(built["out"][-1])
            out = objective(problem, out) if what in JACOBIANS else out
            deviation = np.max(np.abs(out - truth[what]))
            cells[peer, what] = Cell(
                deviation=float(deviation),
                compile_seconds=built["seconds"],
                peak_memory=built["peak_memory"],
            )
            samples[peer, what] = []
            if built["seconds"] > 10 * _SAMPLE_SECONDS:
                # What takes long has no turns: its gradient may take too long.
                answer = worker.ask("time", what, _SAMPLE_SECONDS)
                if answer.get("seconds", 0) > 10 * _SAMPLE_SECONDS:
                    samples[peer, what] = [answer["seconds"]]
    in_turns = {key: seconds for key, seconds in samples.items() if not seconds}
    for _ in range(_ROUNDS):
        for (peer, what), seconds in in_turns.items():
            answer = workers[peer].ask("time", what, _SAMPLE_SECONDS)
            seconds.append(answer.get("seconds", np.nan))
    for key, seconds in samples.items():
        cells[key] = cells[key]._replace(seconds=np.array(seconds))
    for worker in workers.values():
        worker.end()
    return cells, versions


#
# The report
#


def _ratio(theirs: Cell, ours: Cell) -> float:
    rounds = min(theirs.seconds.size, ours.seconds.size)
    return float(np.median(theirs.seconds[:rounds] / ours.seconds[:rounds]))


def _size(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size < 999.5e6 else f"{size / 1e9:.3g} GB"


class Report:
    def __init__(self, results: dict, versions: dict, minutes: float):
        self.results = results  # cells by problem, peer and what
        self.versions = versions
        self.minutes = minutes
        self.peers = [peer for peer in PEERS if peer in versions]
        self.errors = []  # footnotes

    def _failed(self, cell: Cell) -> str:
        if cell.error not in self.errors:
            self.errors.append(cell.error)
        return f"fails [{self.errors.index(cell.error) + 1}]"

    def _table(self, show, what="value") -> list[str]:
        """`show(cells, peer)` for each problem and each peer that have `what`."""
        results = {k: v for k, v in self.results.items() if (OURS, what) in v}
        every = [key for cells in results.values() for key in cells]
        peers = [peer for peer in self.peers if (peer, what) in every]
        lines = [
            "| | " + " | ".join(PEERS[peer] for peer in peers) + " |",
            "| --- |" + " --- |" * len(peers),
        ]
        for problem, cells in results.items():
            row = [show(cells, peer) for peer in peers]
            lines.append(f"| {problem} | " + " | ".join(row) + " |")
        return lines

    def times(self, what: str) -> list[str]:
        def show(cells, peer):
            cell = cells[peer, what]
            if cell.error is not None:
                return self._failed(cell)
            time = show_seconds(float(np.median(cell.seconds)))
            if peer == OURS:
                return time
            return f"**{_ratio(cell, cells[OURS, what]):.2g}** ({time})"

        return self._table(show, what)

    def pairs(self, show_one) -> list[str]:
        """What belongs to the value / to the gradient."""

        def show(cells, peer):
            both = [cells[peer, what] for what in WHATS]
            first, second = (
                show_one(c) if c.error is None else self._failed(c) for c in both
            )
            return first if first == second else f"{first} / {second}"

        return self._table(show)

    def gradient_over_forward(self) -> list[str]:
        def show(cells, peer):
            forward, gradient = (cells[peer, what] for what in WHATS)
            for cell in (forward, gradient):
                if cell.error is not None:
                    return self._failed(cell)
            return f"{_ratio(gradient, forward):.2g}"

        return self._table(show)

    def markdown(self) -> str:
        tables = {
            "Forward": [
                "As multiples of hybridjax's time; in brackets the time itself.",
                *self.times("value"),
            ],
            "Value and gradient, in reverse mode": [
                "As above. SciPy: central differences.",
                *self.times("gradient"),
            ],
            "Gradient over forward": [
                "How many solves a value and a gradient take.",
                *self.gradient_over_forward(),
            ],
            **{
                f"Jacobians: {what}": [text, *self.times(what)]
                for what, text in JACOBIANS.items()
            },
            "Error": [
                "Largest deviation from the reference: final state / gradient.",
                *self.pairs(lambda cell: f"{cell.deviation:.0e}"),
            ],
            "Compilation": [
                "From nothing to the first result: forward / value and gradient.",
                *self.pairs(lambda cell: show_seconds(cell.compile_seconds)),
            ],
            "Peak memory": [
                "Of the process, with compilation: forward / and then the gradient.",
                *self.pairs(lambda cell: _size(cell.peak_memory)),
            ],
        }
        lines = [
            "# Peers",
            "",
            "Written by `benchmarks/run.sh`, which reruns all of it: not by hand. The "
            "problems are defined in `benchmarks/peers/problems.py`. float64, "
            "rtol = atol = 1e-8; medians over rounds in which the peers take turns.",
            "",
            f"Machine: {_machine()}. The run took {self.minutes:.0f} minutes. "
            "Every process may use all cores. All that uses JAX runs with "
            f"`XLA_FLAGS={XLA_FLAGS}` (docs/performance.md says why).",
            "",
            "![The times as multiples of hybridjax's](results.png)",
            "",
        ]
        for title, (text, *table) in tables.items():
            lines += [f"## {title}", "", text, "", *table, ""]
        if self.errors:
            lines += ["## Failures", ""]
            lines += [
                f"{i + 1}. {' '.join(error.split())[:300]}"
                for i, error in enumerate(self.errors)
            ]
            lines.append("")
        lines += ["## Versions", ""]
        for peer in self.peers:
            packages = ", ".join(f"{k} {v}" for k, v in self.versions[peer].items())
            lines.append(f"- {PEERS[peer]}: {packages}")
        return "\n".join(lines) + "\n"

    def draw(self, path: Path):
        figure, axes = plt.subplots(2, 1, figsize=(9, 7), sharex=True)
        others = [peer for peer in self.peers if peer != OURS]
        width = 0.8 / len(others)
        for axis, (what, title) in zip(axes, WHATS.items(), strict=True):
            for k, peer in enumerate(others):
                ratios = [
                    _ratio(cells[peer, what], cells[OURS, what])
                    for cells in self.results.values()
                ]
                at = np.arange(len(ratios)) + (k - (len(others) - 1) / 2) * width
                # From 1: what is slower than hybridjax rises, what is faster hangs.
                axis.bar(at, np.array(ratios) - 1, width, bottom=1, label=PEERS[peer])
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_yscale("log")
            axis.set_ylabel("time / hybridjax's time")
            axis.set_title(title)
            axis.grid(axis="y", alpha=0.3)
        names = list(self.results)
        axes[1].set_xticks(range(len(names)), names, rotation=25, ha="right")
        axes[0].legend(ncols=len(others), fontsize="small")
        figure.tight_layout()
        figure.savefig(path, dpi=120)


def _machine() -> str:
    name = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return (
        f"{name}, {cores()} cores, {platform.system()}, load "
        f"average {os.getloadavg()[0]:.1f} at the end"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="hybridjax and its peers.")
    parser.add_argument("--python", action="append", required=True)
    parser.add_argument("--problems", nargs="+", help="The beginnings of names.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in options.python)

    start = time.perf_counter()
    results, versions = {}, {}
    for problem in PROBLEMS:
        if options.problems and not problem.name.startswith(tuple(options.problems)):
            continue
        cells, found = measure(problem, pythons)
        results[problem.name] = cells
        versions = {**found, **{k: v for k, v in versions.items() if v}}
        for (peer, what), cell in cells.items():
            print(problem.name, peer, what, cell, file=sys.stderr, flush=True)
    report = Report(results, versions, (time.perf_counter() - start) / 60)
    (options.out / "results.md").write_text(report.markdown())
    report.draw(options.out / "results.png")


if __name__ == "__main__":
    main()
