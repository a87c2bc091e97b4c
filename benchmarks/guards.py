"""What a guard costs: a ball that bounces on one wall, with 0 to 63 more behind it.

    python benchmarks/guards.py [--walls 1 4 16 64] [--rounds 25]

The state, the steps and the impacts are the same for any number of walls. float64,
rtol = atol = 1e-8, Tsit5, t in [0, 2]; the derivative of the final height with respect
to the initial state. Prints a Markdown table of times, and of ratios to one wall in the
same run, and takes about three minutes.
"""

import argparse

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
from _timing import compile_timed, machine, show_seconds, time_in_turns
from hybridjax.models import WalledBall


jax.config.update("jax_enable_x64", True)


def final_height(walls: int):
    # Below the ground, one behind the other.
    offsets = -jnp.linspace(0.0, 1.0, walls) if walls > 1 else jnp.zeros(1)
    system = WalledBall(jnp.tile(jnp.array([0.0, 1.0]), (walls, 1)), offsets)

    def solve(x0):
        sol = hj.simulate(
            system,
            0.0,
            2.0,
            x0,
            0,
            stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
            max_steps=64,
            max_events=8,
        )
        return sol.x1[1]

    return solve


QUANTITIES = {
    "forward": lambda fn: fn,
    "value and gradient": jax.value_and_grad,
    "jvp": lambda fn: lambda x0: jax.jvp(fn, (x0,), (jnp.ones_like(x0),)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Many guards.")
    parser.add_argument("--walls", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()

    print(f"{machine()}\n")
    print("| what | walls | median (least) | ratio | compile | ratio |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    x0 = jnp.array([0.0, 1.0, 0.0, 0.0])
    compile_timed(final_height(2), x0)  # Imports and set-up on first use.
    for name, transform in QUANTITIES.items():
        programs, compiles = {}, {}
        for walls in options.walls:
            fn = transform(final_height(walls))
            programs[walls], compiles[walls] = compile_timed(fn, x0)
        times = time_in_turns(programs, x0, rounds=options.rounds)
        for walls in options.walls:
            one = options.walls[0]
            time = f"{show_seconds(times[walls].median)}"
            time += f" ({show_seconds(times[walls].least)})"
            ratio = times[walls].over(times[one])
            compile_ratio = compiles[walls] / compiles[one]
            print(
                f"| {name} | {walls} | {time} | {ratio:.2f} | "
                f"{show_seconds(compiles[walls])} | {compile_ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
