"""What a contact costs: the plate on springs, beside MuJoCo and Anderson's listing.

    python benchmarks/plate.py [--springs 1 10 20 35 50] [--figure plate.png]

Problem P6 (Anderson and Revzen, Section 5.2, Figure 5.2): 120 random starts, to t = 2,
on beds of 1 to 50 springs (2 to 100 contacts, as the paper counts both sides). The time
of one simulation is the median over the starts; what a spring costs is the slope of a
straight line through these times. Errors are those of the final state (the largest
entry) against diffrax with tolerances of 1e-10 that knows nothing of events. `batch` is
all starts at once, on all cores, per start; `gradient` that of the final tilt with
respect to the start. All in float64. Prints Markdown tables, draws a figure, and takes
some ten minutes. Needs the extra `bench`.

XLA is told to compile loops as one function, see docs/performance.md.
"""

import os


os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"
)

import argparse
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from _listing import integrate, Plate
from _mujoco import plate as mujoco_plate, Rollout
from _timing import cores, machine, show_seconds
from hybridjax.models import plate_on_springs


matplotlib.use("Agg")
import matplotlib.pyplot as plt


jax.config.update("jax_enable_x64", True)

END = 2.0
LANES = 120
# The listing takes seconds; these are enough for a median.
LISTING_LANES = 5


def starts() -> np.ndarray:
    rng = np.random.default_rng(0)
    q = np.zeros((LANES, 3))
    q[:, 1] = rng.uniform(2, 3, LANES)
    q[:, 2] = rng.uniform(-0.1, 0.1, LANES)
    return q


def reference(n: int, q: np.ndarray) -> np.ndarray:
    """By a solver that does not know of events, with steps as short as that takes."""
    system = plate_on_springs(n)

    def field(t, x, args):
        h = system.event_functions(t, x, args)
        return system.vector_field(t, x, jnp.where(h > 0, 1, -1), args)

    def solve(q):
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            0.0,
            END,
            None,
            (q, jnp.zeros(3)),
            stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
            max_steps=200_000,
            adjoint=diffrax.ForwardMode(),
        )
        assert sol.ys is not None
        return jnp.concatenate([leaf[0] for leaf in sol.ys])

    return np.asarray(jax.jit(jax.vmap(solve))(q))


class Setting(NamedTuple):
    name: str
    method: Callable  # of `accuracy`
    accuracy: float
    tolerance: float


SETTINGS = (
    Setting("`Project(0.03)`", hj.Project, 0.03, 1e-4),
    Setting("`Project(0.003)`", hj.Project, 0.003, 1e-6),
    Setting("`Locate`, 1e-4", lambda _: hj.Locate(), 0.0, 1e-4),
)


def simulation(n: int, method: Callable):
    system = plate_on_springs(n)

    def solve(q, accuracy, tolerance):
        sol = hj.simulate(
            system,
            0.0,
            END,
            (q, jnp.zeros(3)),
            event_method=method(accuracy),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_steps=256 + 12 * n,
            max_events=64 + 10 * n,
            throw=False,
        )
        x = jnp.concatenate(sol.x1)
        return jnp.where(sol.result == hj.RESULTS.successful, x, jnp.nan)

    return solve


class Measured(NamedTuple):
    time: float  # seconds per simulation
    errors: np.ndarray | None = None


def median_time(fn: Callable, lanes) -> float:
    seconds = []
    for lane in lanes:
        begin = time.perf_counter()
        fn(lane)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def batch_time(fn: Callable) -> float:
    fn()
    return median_time(lambda _: fn(), range(5)) / LANES


def measure(n: int) -> dict[tuple[str, str], Measured]:
    """For each tool and each way to use it."""
    q = starts()
    exact = reference(n, q)
    error = lambda x: np.max(np.abs(np.asarray(x) - exact[: len(x)]), axis=1)
    found = {}

    for dt in (0.002, 0.01):
        name = f"MuJoCo, {dt} s"
        model = mujoco_plate(n, dt)
        one, all_ = Rollout(model, END), Rollout(model, END, threads=cores())
        errors = error(all_(q)[:, -1])
        found[name, "one"] = Measured(median_time(one, np.split(q, LANES)), errors)
        found[name, "batch"] = Measured(batch_time(functools.partial(all_, q)), errors)

    bed = Plate(n)
    listing = lambda x0: integrate(bed.f, bed.h, bed.Dh, 0.03, x0, 0.0, END, 0.002)
    x0 = np.concatenate([q, np.zeros_like(q)], axis=1)[:LISTING_LANES]
    errors = error(np.stack([listing(x) for x in x0]))
    found["Listing 1, NumPy", "one"] = Measured(median_time(listing, x0), errors)

    lanes = [jnp.asarray(lane) for lane in q]
    everyone = jnp.asarray(q)
    compiled = {}
    for setting in SETTINGS:
        given = jnp.asarray(setting.accuracy), jnp.asarray(setting.tolerance)
        if setting.method not in compiled:
            solve = simulation(n, setting.method)
            tilt = jax.value_and_grad(lambda *given, solve=solve: solve(*given)[2])
            axes = (0, None, None)
            compiled[setting.method] = {
                "one": jax.jit(solve),
                "batch": jax.jit(jax.vmap(solve, axes)),
                "gradient": jax.jit(tilt),
                "gradient, batch": jax.jit(jax.vmap(tilt, axes)),
            }
        programs = compiled[setting.method]
        errors = error(programs["batch"](everyone, *given))
        for way, program in programs.items():
            run = lambda lane, program=program, given=given: jax.block_until_ready(
                program(lane, *given)
            )
            if "batch" in way:
                seconds = batch_time(lambda run=run: run(everyone))
            else:
                run(lanes[0])
                seconds = median_time(run, lanes)
            found[setting.name, way] = Measured(seconds, errors)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What a contact costs.")
    parser.add_argument("--springs", nargs="+", type=int, default=[1, 10, 20, 35, 50])
    parser.add_argument("--figure", default="plate.png")
    options = parser.parse_args()

    print(f"{machine()}\n", flush=True)
    springs, table = options.springs, []
    for n in springs:
        table.append(measure(n))
        print(f"<!-- {n} springs measured -->", flush=True)
    print("\nTime of a simulation, and what a spring more costs.\n")
    columns = " | ".join(f"{n} springs" for n in springs)
    print(f"| tool | way | {columns} | a spring |")
    print("| --- " * (len(springs) + 3) + "|")
    for tool, way in table[0]:
        times = [found[tool, way].time for found in table]
        slope = np.polyfit(springs, times, 1)[0]
        cells = " | ".join(show_seconds(seconds) for seconds in times)
        print(f"| {tool} | {way} | {cells} | {show_seconds(slope)} |")
    print("\nErrors of the final state: median (largest).\n")
    print(f"| tool | {columns} |")
    print("| --- " * (len(springs) + 1) + "|")
    tools = list(dict.fromkeys(tool for tool, _ in table[0]))
    for tool in tools:
        errors = [found[tool, "one"].errors for found in table]
        cells = " | ".join(show_errors(e) for e in errors)
        print(f"| {tool} | {cells} |")
    draw(options.figure, springs, table, tools)
    print(f"\nSaved {options.figure}.")


def show_errors(errors) -> str:
    failed = np.sum(np.isnan(errors))
    text = f"{np.nanmedian(errors):.0e} ({np.nanmax(errors):.0e})"
    return text + (f", {failed} of {len(errors)} failed" if failed else "")


def draw(path, springs, table, tools):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    styles = {"one": "o-", "batch": "s--"}
    colours = dict(zip(tools, ["C3", "C1", "0.5", "C0", "C2", "C4"], strict=True))
    for tool, way in table[0]:
        if way not in styles:
            continue
        times = [1e3 * found[tool, way].time for found in table]
        label = tool.replace("`", "") + (", batch" if way == "batch" else "")
        left.plot(springs, times, styles[way], ms=4, color=colours[tool], label=label)
    left.set(
        xlabel="springs",
        ylabel="time of a simulation (ms)",
        yscale="log",
        xlim=(0, None),
    )
    left.legend(
        fontsize="x-small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1)
    )
    for tool in tools:
        errors = [np.nanmedian(found[tool, "one"].errors) for found in table]
        right.plot(springs, errors, "o-", ms=4, color=colours[tool])
    right.set(
        xlabel="springs",
        ylabel="median error of the final state",
        yscale="log",
        xlim=(0, None),
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
