"""Memory and time of the gradient of a long simulation, with and without checkpoints.

    python benchmarks/memory.py [--steps 100000] [--checkpoints 10 100 1000]

Ten balls in one state of dimension 20, float64, constant steps, some hundred impacts,
the gradient of the sum of the final heights with respect to the initial ones. The
memory is XLA's own account of the compiled program's work space, and the growth of this
process's peak while it runs for the first time. Prints a Markdown table; takes a minute
or two.
"""

import argparse

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _process import memory_bytes
from _timing import machine, show_seconds, time_in_turns
from hybridjax.models import Balls


jax.config.update("jax_enable_x64", True)


def objective(steps: int, checkpoints: int | None):
    # Each impact takes two steps more. With a margin: all may fall into one piece.
    max_steps = steps // (checkpoints or 1) + 500

    def solve(heights):
        sol = hj.simulate(
            Balls(restitution=0.9),
            0.0,
            2.0,
            jnp.concatenate([heights, jnp.zeros_like(heights)]),
            0,
            stepsize_controller=diffrax.ConstantStepSize(),
            dt0=2.0 / steps,
            max_steps=max_steps,
            max_events=128,
            checkpoints=checkpoints,
            throw=False,
        )
        return jnp.sum(sol.x1[:10])

    return solve


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of long simulations.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()

    heights = jnp.linspace(0.40, 0.58, 10)
    programs, sizes = {}, {}
    value = jax.jit(objective(options.steps, None))
    programs["forward"] = value
    jax.block_until_ready(value(heights))
    reference = None
    for checkpoints in [None, *options.checkpoints]:
        name = f"{checkpoints} checkpoints" if checkpoints else "gradient"
        run = jax.jit(jax.value_and_grad(objective(options.steps, checkpoints)))
        statistics = run.lower(heights).compile().memory_analysis()
        assert statistics is not None
        before = memory_bytes("VmRSS")
        _, gradient = jax.block_until_ready(run(heights))
        growth = max(0, memory_bytes("VmHWM") - before)
        reference = gradient if reference is None else reference
        deviation = float(np.max(np.abs(gradient - reference)))
        programs[name] = run
        sizes[name] = (statistics.temp_size_in_bytes, growth, deviation)
    times = time_in_turns(programs, heights, rounds=5)
    print(f"{machine()}\n\n{options.steps} steps\n")
    print("| | work space | growth of the peak | deviation | time | time / forward |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, timing in times.items():
        cells = ["", "", ""]
        if name in sizes:
            temporary, growth, deviation = sizes[name]
            cells = [f"{temporary / 1e6:.3g} MB", f"{growth / 1e6:.3g} MB"]
            cells.append(f"{deviation:.0e}")
        ratio = timing.over(times["forward"])
        cells += [show_seconds(timing.median), f"{ratio:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
