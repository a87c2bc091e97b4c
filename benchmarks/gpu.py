"""Throughput of batches on an accelerator, and how far it is from the memory's limit.

    python benchmarks/gpu.py [--most 1000000] [--out FILE]

Balls (P5 of the benchmarks) under `vmap`, 1 to 10⁶ lanes, float32 and float64. For
each: solver steps per second, forward and with the gradient; the bytes that an
iteration of the loop moves, by XLA's account of the compiled program (every kernel
reads and writes memory: more than what passes the caches); and what share that is of
what the device's memory moves in the same time, which is measured by a large copy.
Writes a Markdown table.
"""

import argparse
from pathlib import Path
from typing import Any

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _timing import compile_timed, machine, show_seconds, time_in_turns, Timing
from hybridjax.models import BouncingBall


jax.config.update("jax_enable_x64", True)

TOLERANCES = {"float32": 1e-5, "float64": 1e-8}


def solver(dtype):
    def solve(theta):
        tolerance = TOLERANCES[dtype]
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
        return sol.x1[0], sol.stats["num_steps"]

    return solve


def lanes_of(count: int, dtype) -> jax.Array:
    heights = jnp.linspace(0.5, 1.5, count + 2, dtype=dtype)[1:-1]
    others = jnp.broadcast_to(jnp.array([0.0, 9.81, 0.8], dtype), (count, 3))
    return jnp.concatenate([heights[:, None], others], axis=1)


def bandwidth() -> float:
    """Bytes per second of a copy that does not fit into caches, read and written."""
    on_cpu = jax.default_backend() == "cpu"
    x = jnp.ones((2**24 if on_cpu else 2**27,), jnp.float32)
    copy, _ = compile_timed(lambda x: x + 1, x)
    return 2 * x.nbytes / time_in_turns({"copy": copy}, x)["copy"].least


def bytes_accessed(run, theta) -> float:
    # What a loop's body accesses is counted once: that is one iteration, and a little
    # before and after it.
    cost: Any = run.lower(theta).compile().cost_analysis()
    return float(cost["bytes accessed"])


def limit(share: float, per_iteration: float, alone: float) -> str:
    if share > 0.5:
        return "memory"
    if per_iteration < 2 * alone:
        return "latency: an iteration takes as long as for one lane"
    return "neither memory nor latency alone"


def rows(dtype: str, most: int, full: float):
    solve = solver(dtype)
    forward = jax.vmap(solve)
    gradient = jax.vmap(jax.value_and_grad(solve, has_aux=True))
    alone = None
    for count in (10**k for k in range(7)):
        if count > most:
            return
        theta = lanes_of(count, dtype)
        run, _ = compile_timed(forward, theta)
        run_gradient, _ = compile_timed(gradient, theta)
        programs = {"forward": run, "gradient": run_gradient}
        times: dict[str, Timing] = time_in_turns(programs, theta, rounds=5)
        steps = np.asarray(run(theta)[1])
        moved = bytes_accessed(run, theta)
        seconds = times["forward"].median
        per_iteration = seconds / steps.max()
        alone = per_iteration if alone is None else alone
        share = moved / per_iteration / full
        yield (
            dtype,
            f"{count:,}",
            show_seconds(seconds),
            show_seconds(times["gradient"].median),
            f"{steps.sum() / seconds:.3g}",
            f"{steps.sum() / times['gradient'].median:.3g}",
            f"{moved / count:.0f}",
            f"{share:.1%}",
            limit(share, per_iteration, alone),
        )


HEADER = (
    "dtype",
    "lanes",
    "forward",
    "value and gradient",
    "steps/s",
    "steps/s with gradient",
    "bytes per lane and iteration",
    "of the bandwidth",
    "what limits",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accelerator benchmark.")
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    full = bandwidth()
    lines = ["# Batches on one device", "", f"{machine()}."]
    lines += [f"A large copy moves {full / 1e9:.0f} GB/s.", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "| --- " * len(HEADER) + "|"]
    print("\n".join(lines), flush=True)
    for dtype in TOLERANCES:
        for row in rows(dtype, options.most, full):
            lines.append("| " + " | ".join(row) + " |")
            print(lines[-1], flush=True)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
