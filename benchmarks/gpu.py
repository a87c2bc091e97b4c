"""Throughput of batches on an accelerator, and how far it is from the memory's limit.

    python benchmarks/gpu.py [--problems ball hopper] [--lanes 1 1000 1000000]
        [--dtypes float32 float64] [--out FILE]

Balls (P5 of the benchmarks), and the rigid contacts of `hoppers.py`, under `vmap`. For
each number of lanes: solver steps per second, forward and with the gradient; the bytes
that an iteration of the loop moves, by XLA's account of the compiled program (every
kernel reads and writes memory: more than what passes the caches); and what share that
is of what the device's memory moves in the same time, which is measured by a large
copy. The programs are compiled side by side, before any is timed. Writes a Markdown
table.
"""

import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import hoppers
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _timing import compile_timed, machine, show_seconds, time_in_turns
from hybridjax.models import BouncingBall


jax.config.update("jax_enable_x64", True)

TOLERANCES = {"float32": 1e-5, "float64": 1e-8}


def ball(theta, tolerance):
    sol = hj.simulate(
        BouncingBall(gravity=theta[2], restitution=theta[3]),
        0.0,
        2.0,
        theta[:2],
        0,
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=32,
        max_events=8,
        throw=False,
    )
    return sol.x1[0], sol.stats["num_steps"], sol.result == hj.RESULTS.successful


def balls(count: int) -> np.ndarray:
    heights = np.linspace(0.5, 1.5, count + 2)[1:-1]
    return np.stack(np.broadcast_arrays(heights, 0.0, 9.81, 0.8), axis=1)


def hopper(theta, tolerance):
    sol = hoppers.hop_of(theta[:6], theta[6], tolerance)
    done = sol.result == hj.RESULTS.successful
    return sol.x1[0][0], sol.stats["num_steps"], done


def all_hoppers(count: int) -> np.ndarray:
    p, angle = hoppers.hoppers(count)
    return np.concatenate([p, angle[:, None]], axis=1)


# The most lanes: of more hoppers, the rows of all steps, which a gradient needs, would
# not fit into the memory of a device.
PROBLEMS = {"ball": (ball, balls, 10**6), "hopper": (hopper, all_hoppers, 10**5)}


class Part(NamedTuple):
    """Both programs of a row: forward, and value and gradient."""

    problem: str
    dtype: str
    lanes: int
    theta: jax.Array
    lowered: tuple[Any, Any]

    def compiled(self) -> tuple[tuple[Any, float], tuple[Any, float]]:
        """With the seconds that they took, beside others."""

        def compile_(lowered):
            start = time.perf_counter()
            return lowered.compile(), time.perf_counter() - start

        forward, gradient = map(compile_, self.lowered)
        return forward, gradient


def part_of(problem: str, dtype: str, lanes: int) -> Part:
    solve, thetas, _ = PROBLEMS[problem]
    theta = jnp.asarray(thetas(lanes), dtype)

    def forward(theta):
        value, steps, done = solve(theta, TOLERANCES[dtype])
        return value, (steps, done)

    gradient = jax.value_and_grad(forward, has_aux=True)
    lower = lambda fn: jax.jit(jax.vmap(fn)).lower(theta)
    return Part(problem, dtype, lanes, theta, (lower(forward), lower(gradient)))


def bandwidth() -> float:
    """Bytes per second of a copy that does not fit into caches, read and written."""
    on_cpu = jax.default_backend() == "cpu"
    x = jnp.ones((2**24 if on_cpu else 2**30,), jnp.float32)
    copy, _ = compile_timed(lambda x: x + 1, x)
    return 2 * x.nbytes / time_in_turns({"copy": copy}, x)["copy"].least


def row(part: Part, compiled, full: float) -> tuple[str, ...]:
    (forward, first), (gradient, longer) = compiled
    programs = {"forward": forward, "gradient": gradient}
    times = time_in_turns(programs, part.theta, rounds=3)
    steps, done = map(np.asarray, forward(part.theta)[1])
    # What a loop's body accesses is counted once: that is one iteration, and a little
    # before and after it.
    cost: Any = forward.cost_analysis()
    moved = float(cost["bytes accessed"])
    seconds = times["forward"].median
    per_iteration = seconds / steps.max()
    return (
        part.problem,
        part.dtype,
        f"{part.lanes:,}",
        f"{np.sum(~done)}",
        show_seconds(seconds),
        show_seconds(times["gradient"].median),
        show_seconds(per_iteration),
        f"{steps.sum() / seconds:.3g}",
        f"{steps.sum() / times['gradient'].median:.3g}",
        f"{moved / part.lanes:.0f}",
        f"{moved / per_iteration / full:.1%}",
        f"{first:.0f} s, {longer:.0f} s",
    )


HEADER = (
    "problem",
    "dtype",
    "lanes",
    "failed",
    "forward",
    "value and gradient",
    "an iteration",
    "steps/s",
    "steps/s with gradient",
    "bytes per lane and iteration",
    "of the bandwidth",
    "compile",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accelerator benchmark.")
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, default=PROBLEMS)
    parser.add_argument("--dtypes", nargs="*", choices=TOLERANCES, default=TOLERANCES)
    lanes = [1, 1000, 100_000, 1_000_000]
    parser.add_argument("--lanes", nargs="*", type=int, default=lanes)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    choices = itertools.product(options.problems, options.dtypes, options.lanes)
    parts, compiling = [], []
    with ThreadPoolExecutor() as pool:
        for choice in choices:
            if choice[2] <= PROBLEMS[choice[0]][2]:
                parts.append(part_of(*choice))
                compiling.append(pool.submit(parts[-1].compiled))
    programs = [future.result() for future in compiling]
    full = bandwidth()
    lines = ["# Batches on one device", "", f"{machine()}."]
    lines += [f"A large copy moves {full / 1e9:.0f} GB/s.", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "| --- " * len(HEADER) + "|"]
    print("\n".join(lines), flush=True)
    for part, compiled in zip(parts, programs, strict=True):
        lines.append("| " + " | ".join(row(part, compiled, full)) + " |")
        print(lines[-1], flush=True)
        if options.out is not None:
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
