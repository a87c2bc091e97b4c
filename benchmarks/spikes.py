"""What a spike costs: networks of 25 to 400 neurons, some 30 spikes of each.

    python benchmarks/spikes.py [--neurons 25 50 100 200 400] [--eventax 25 50]

Leaky integrate-and-fire neurons with exponential synapses, all connected to all
(`hj.models.SpikingNetwork`), from rest, driven over the threshold; the mean of the
final voltages, and its gradient by all weights. float64, Tsit5, rtol = atol = 1e-6.
Prints Markdown tables of the time per spike, and its exponent in the number of neurons:

- hybridjax: forward, value and gradient, one tangent.
- Time steps of 0.1 ms with SuperSpike's surrogate gradient, as in snnTorch or Norse, in
  JAX. Spikes are at the ends of steps, and the gradient is that of no trajectory. The
  time is divided by the spikes of hybridjax.
- eventax, for the numbers of neurons in `--eventax` (`pip install eventax==0.1.0`): the
  same spikes, and their exact gradient. To compile it takes a minute for each number.

Errors of gradients are relative to that of hybridjax at tolerances of 1e-10, which is
compared with central differences in the direction of the gradient. Takes eight minutes
on two shared cores.
"""

import argparse
from collections.abc import Callable

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _timing import compile_timed, machine, show_seconds, time_in_turns
from hybridjax.models import SpikingNetwork


jax.config.update("jax_enable_x64", True)

T1 = 0.75
TOLERANCE, TIGHT = 1e-6, 1e-10
CONSTANTS = dict(membrane_time=0.02, synaptic_time=0.005, threshold=1.0, reset=0.0)
# More than there are.
SPIKES_PER_NEURON, STEPS_PER_SPIKE = 32, 6
DT = 1e-4
# The slope of SuperSpike's surrogate, in 1/V: what Norse takes.
SLOPE = 100.0
GRADIENT = "value and gradient"
COLUMNS = ("forward", GRADIENT, "jvp")


def network(n: int) -> tuple[jax.Array, jax.Array]:
    """The weights and the drive, in V."""
    rng = np.random.default_rng(n)
    weights = 0.3 * rng.normal(size=(n, n)) / np.sqrt(n)
    np.fill_diagonal(weights, 0)
    return jnp.asarray(weights), jnp.asarray(rng.uniform(1.2, 1.6, n))


def solution(weights, drive, tolerance=TOLERANCE) -> hj.Solution:
    n = drive.size
    spikes = SPIKES_PER_NEURON * n
    return hj.simulate(
        SpikingNetwork(weights, drive, **CONSTANTS),
        0.0,
        T1,
        jnp.zeros((2, n)),
        0,
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=STEPS_PER_SPIKE * spikes,
        max_events=spikes,
        throw=False,
    )


def voltages(weights, drive, tolerance=TOLERANCE) -> jax.Array:
    return solution(weights, drive, tolerance).x1[0]


#
# Time steps with a surrogate gradient
#


@jax.custom_jvp
def spike(above):
    return (above > 0).astype(above.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (above,), (tangent,) = primals, tangents
    return spike(above), tangent / (1 + SLOPE * jnp.abs(above)) ** 2


def stepped_voltages(drive) -> Callable:
    """From the weights to the final voltages, by time steps."""
    c = CONSTANTS
    decay_v, decay_u = (np.exp(-DT / c[f"{k}_time"]) for k in ("membrane", "synaptic"))

    def final(weights):
        def step(carry, _):
            v, u = carry
            v = drive + u + (v - drive - u) * decay_v
            fires = spike(v - c["threshold"])
            v = v + jax.lax.stop_gradient(fires) * (c["reset"] - v)
            return (v, u * decay_u + fires @ weights), None

        start = jnp.zeros_like(drive), jnp.zeros_like(drive)
        return jax.lax.scan(step, start, length=round(T1 / DT))[0][0]

    return final


#
# What is measured
#


def reference(weights, drive) -> tuple[jax.Array, float]:
    """The gradient at tight tolerances; and in one direction, its deviation from
    central differences."""
    mean = jax.jit(jax.value_and_grad(lambda w: jnp.mean(voltages(w, drive, TIGHT))))
    gradient = mean(weights)[1]
    step = 1e-7 * gradient / jnp.linalg.norm(gradient)
    difference = mean(weights + step)[0] - mean(weights - step)[0]
    return gradient, float(abs(difference / (2 * jnp.vdot(gradient, step)) - 1))


def measure(name: str, fn: Callable, weights, spikes: int, exact) -> dict[str, float]:
    """Seconds per spike, seconds to compile the gradient, and its relative error."""
    mean = lambda w: jnp.mean(fn(w))
    programs = {"forward": mean, GRADIENT: jax.value_and_grad(mean)}
    if name == "hybridjax":
        programs["jvp"] = lambda w: jax.jvp(mean, (w,), (exact,))
    row, runs = {}, {}
    for what, program in programs.items():
        runs[what], seconds = compile_timed(program, weights)
        if what == GRADIENT:
            row["compile"] = seconds
            difference = runs[what](weights)[1] - exact
            row["error"] = float(jnp.linalg.norm(difference) / jnp.linalg.norm(exact))
    times = time_in_turns(runs, weights, rounds=3)
    return row | {what: time.least / spikes for what, time in times.items()}


def exponent(rows: dict[int, dict], what: str) -> str:
    """Of the time per spike, fitted as a power of the number of neurons."""
    points = {n: row[what] for n, row in rows.items() if what in row}
    if len(points) < 2:
        return ""
    return f"{np.polyfit(np.log([*points]), np.log([*points.values()]), 1)[0]:.2f}"


def show(name: str, rows: dict[int, dict]) -> None:
    print(f"\n{name}, time per spike:\n")
    print(f"| neurons | {' | '.join(COLUMNS)} | error of the gradient | compile |")
    print("| --- " * 6 + "|")
    for n, row in rows.items():
        cells = [show_seconds(row[what]) if what in row else "" for what in COLUMNS]
        cells += [f"{row['error']:.0e}", show_seconds(row["compile"])]
        print(f"| {n} | {' | '.join(cells)} |")
    fits = " | ".join(exponent(rows, what) for what in COLUMNS)
    print(f"| exponent | {fits} | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Spiking networks.")
    neurons = [25, 50, 100, 200, 400]
    parser.add_argument("--neurons", nargs="+", type=int, default=neurons)
    parser.add_argument("--eventax", nargs="*", type=int, default=[])
    options = parser.parse_args()

    print(machine(), "\n")
    tables: dict[str, dict[int, dict]] = {}
    for n in options.neurons:
        weights, drive = network(n)
        sol = jax.jit(solution)(weights, drive)
        assert bool(sol.result == hj.RESULTS.successful), sol
        spikes = int(sol.events.count)
        steps = int(sol.stats["num_steps"]) / spikes
        exact, deviation = reference(weights, drive)
        print(f"- {n} neurons: {spikes} spikes, {steps:.2f} steps for each, ", end="")
        print(f"reference and central differences: {deviation:.0e}", flush=True)
        programs = {
            "hybridjax": lambda w, drive=drive: voltages(w, drive),
            "Time steps, surrogate gradient": stepped_voltages(drive),
        }
        if n in options.eventax:
            # In the environment only if it is asked for.
            from _eventax import eventax_voltages

            bound = SPIKES_PER_NEURON * n
            fn = eventax_voltages(drive, TOLERANCE, T1, bound, CONSTANTS)
            programs["eventax"] = fn
        for name, fn in programs.items():
            try:
                row = measure(name, fn, weights, spikes, exact)
            except jax.errors.JaxRuntimeError as error:
                # Of a peer: its root finder, at 100 neurons.
                print(f"- {n} neurons: {name} failed: {str(error).splitlines()[-1]}")
                continue
            tables.setdefault(name, {})[n] = row
            print(f"  - {name}: {row}", flush=True)
    for name, rows in tables.items():
        show(name, rows)


if __name__ == "__main__":
    main()
