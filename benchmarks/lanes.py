"""What lanes of different length cost each other in a batch.

    python benchmarks/lanes.py [--lanes 1000] [--rounds 15]

Balls (P1, float64, rtol = atol = 1e-8, t in [0, 2]) that fall from different heights
and have 0 to 12 impacts, each number equally often, under `vmap`. All lanes share one
loop, which goes on until the longest is done; useful are the steps of lanes that are
not done. What the loop should cost is the number of iterations that the longest lane
takes by itself, times the cost of one iteration of a batch: the last is that of a batch
of copies of the longest lane. Prints a Markdown table; takes a minute.
"""

import argparse

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _timing import machine, show_seconds, time_in_turns
from hybridjax.models import BouncingBall


jax.config.update("jax_enable_x64", True)


def solve(height):
    sol = hj.simulate(
        BouncingBall(),
        0.0,
        2.0,
        jnp.stack([height, 0.0]),
        0,
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
        max_steps=64,
        max_events=16,
        throw=False,
    )
    return sol.x1[0], (sol.stats["num_steps"], sol.events.count)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lanes of different length.")
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    heights = jnp.geomspace(0.2, 25.0, 4000)
    _, (steps, impacts) = jax.jit(jax.vmap(solve))(heights)
    steps, impacts = np.asarray(steps), np.asarray(impacts)
    rng = np.random.default_rng(0)
    mixed = np.array(
        [
            rng.choice(np.flatnonzero(impacts == number))
            for number in rng.integers(0, 12, options.lanes, endpoint=True)
        ]
    )
    longest = mixed[np.argmax(steps[mixed])]
    iterations = int(steps[longest])
    batches = {"mixed": heights[mixed], "copies": heights[mixed * 0 + longest]}

    print(f"{machine()}\n\n{options.lanes} lanes, {iterations} iterations\n")
    print(f"useful lane-steps: {np.mean(steps[mixed]) / iterations:.1%}\n")
    print("| | mixed | copies of the longest | per iteration | ratio |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    height = lambda x0: solve(x0)[0]
    quantities = {"forward": height, "value and gradient": jax.value_and_grad(height)}
    for name, fn in quantities.items():
        program = jax.jit(jax.vmap(fn))
        programs = {
            batch: lambda program=program, x0=x0: program(x0)
            for batch, x0 in batches.items()
        }
        times = time_in_turns(programs, rounds=options.rounds)
        print(
            f"| {name} | {show_seconds(times['mixed'].median)} "
            f"| {show_seconds(times['copies'].median)} "
            f"| {show_seconds(times['copies'].median / iterations)} "
            f"| {times['mixed'].over(times['copies']):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
