"""The time to the first gradient: trace, lower, compile, and the size of the program.

    python benchmarks/compile.py [--problems P1 monoped] [--whats gradient]
        [--peers hybridjax diffrax jaxonomy mjx] [--options fast_to_compile]
        [--python jaxonomy=PATH] [--once]

Every line is measured in a process of its own; unless `--once`, in a second one again,
which finds the compiled program in JAX's persistent cache. In seconds of wall time:
`jax.jit(f).trace(...)`, `.lower()`, `.compile()`; `first` is all of it, and the first
call. Kernels are the instructions of the optimised program that do work, outside of
fusions; lines are those of its text.

float64, rtol = atol = 1e-8, Tsit5:

- P1, P3, P5: those of `benchmarks/peers/problems.py`; P5 has 1000 lanes.
- monoped, biped: robots of `hybridjax.models` that drop on their feet and are caught by
  springs and dampers in their joints. The final height of the hip, by the stiffnesses
  of the joints and the initial configuration.
- five_bar: the mechanism of `examples/five_bar.py` until t = 1; the final height of
  point 2, by the lengths of its springs.
- friction: a block on an incline, pulled by a spring, sticks and slips; its final
  position, by nine parameters.
- hopper: one of those of `hoppers.py`, by its six parameters.

Peers have those that they share: the loop over diffrax and jaxonomy P1, P3 and P5, MJX
the hopper (its reverse mode refuses). Jaxonomy pins other versions, and wants
an environment of its own. Prints a Markdown table; all of hybridjax takes ten minutes.
"""

import argparse
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


HERE = Path(__file__).parent
PEERS = {
    "hybridjax": "P1 P3 P5 monoped biped five_bar friction hopper".split(),
    "diffrax": ["P1", "P3", "P5"],
    "jaxonomy": ["P1", "P3", "P5"],
    "mjx": ["hopper"],
}
WHATS = ("value", "gradient", "jvp")
# More than enough of each, for robots and mechanisms.
MAX_STEPS, MAX_EVENTS = 1024, 32


#
# The problems: a program, and its argument
#


def build(peer: str, problem: str, what: str):
    if problem in PEERS["diffrax"]:
        sys.path.insert(0, str(HERE / "peers"))
        problems = importlib.import_module("problems").PROBLEMS
        name = {"P5": "P5, 1000 lanes"}.get(problem, problem)
        (shared,) = (p for p in problems if p.name == name)
        program = importlib.import_module(f"peer_{peer}").build(shared, what)
        return program.run, program.theta

    import jax
    import jax.numpy as jnp

    value, at = (mjx_hopper if peer == "mjx" else globals()[problem])()
    at = jnp.asarray(at)
    run = {
        "value": value,
        "gradient": jax.value_and_grad(value),
        "jvp": lambda z: jax.jvp(value, (z,), (jnp.ones_like(z),)),
    }[what]
    return jax.jit(run), at


def simulate(system, t1, x0, mode0=None, args=None):
    import hybridjax as hj

    return hj.simulate(
        *(system, 0.0, t1, x0, mode0, args),
        max_steps=MAX_STEPS,
        max_events=MAX_EVENTS,
        throw=False,
    )


def _robot(build, legs):
    import jax.numpy as jnp

    def joints(a):
        """Hip and knee of each leg."""
        torso, thighs, shanks = a[2], a[3::2], a[4::2]
        return jnp.stack([thighs - torso, shanks - thighs], axis=1).ravel()

    rest = jnp.concatenate([jnp.zeros(3), jnp.tile(jnp.array([0.5, -0.5]), legs)])
    rest = rest.at[1].set(0.05 - jnp.min(build().gap(rest, None)))

    def torques(t, q, v, stiffness):
        return -stiffness * (joints(q) - joints(rest)) - 0.05 * joints(v)

    def height(z):
        stiffness, q = z[: 2 * legs], z[2 * legs :]
        free = jnp.zeros(legs, jnp.int32)
        x0 = q, jnp.zeros_like(q)
        return simulate(build(torques), 0.3, x0, free, stiffness).x1[0][1]

    return height, jnp.concatenate([jnp.full(2 * legs, 50.0), rest])


def monoped():
    from hybridjax.models import planar_monoped

    return _robot(planar_monoped, 1)


def biped():
    from hybridjax.models import planar_biped

    return _robot(planar_biped, 2)


def five_bar():
    import jax.numpy as jnp
    from hybridjax import models

    def height(lengths):
        mechanism, start = models.five_bar(lengths), models.five_bar_start()
        return simulate(mechanism, 1.0, start, "moving").x1[0][3]

    return height, jnp.sqrt(jnp.array([5.0, 4.25]))


def friction():
    import jax.numpy as jnp
    from hybridjax.models import block_on_incline

    def position(p):
        x0 = p[7:], jnp.zeros(2)
        return simulate(block_on_incline(*p[:7]), 4.0, x0).x1[0][0]

    angle, coefficients, stiffness, speed = 0.1, (0.2, 0.3), 10.0, 0.3
    mass, gravity, place = 1.0, 9.81, (0.0, 0.0)
    return position, [angle, *coefficients, stiffness, speed, mass, gravity, *place]


def hopper():
    import hoppers

    p, angles = hoppers.hoppers()
    return lambda p: hoppers.hop(p, angles[0], 1e-8)[0][0], p[0]


def mjx_hopper():
    import hoppers

    p, angles = hoppers.hoppers()
    solve = hoppers.mjx_solver()
    settings = 0.002, 0.014, round(hoppers.END / 0.002)
    return lambda p: solve(p, angles[0], *settings)[0], p[0]


#
# What is measured
#


def measure(peer: str, problem: str, what: str, options: str | None) -> dict:
    """In this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if peer == "hybridjax":
        import hybridjax as hj
    # Not credited to the program: what JAX and its peers set up on first use.
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    run, at = build(peer, problem, what)
    compiler_options = hj.compiler_options(options) if options else None  # pyright: ignore
    times = [time.perf_counter()]
    mark = lambda: times.append(time.perf_counter())
    traced = run.trace(at)
    mark()
    lowered = traced.lower()
    mark()
    compiled = lowered.compile(compiler_options)
    mark()
    jax.block_until_ready(compiled(at))
    mark()
    parts = [b - a for a, b in zip(times, times[1:], strict=False)]
    names = ("trace", "lower", "compile", "call")
    text = compiled.as_text() or ""
    return dict(
        zip(names, parts, strict=True),
        first=times[-1] - times[0],
        lines=len(re.findall(r"^ .* = ", text, re.MULTILINE)),
        kernels=count_kernels(text),
    )


# What does no work of its own, or is a computation that does.
_NO_KERNEL = (
    "parameter|constant|tuple|get-tuple-element|bitcast|while|conditional|call|"
    "after-all|partition-id|replica-id|opt-barrier"
)


def count_kernels(text: str) -> int:
    """Instructions of an optimised program that are run one by one."""
    inside, count = False, 0
    for line in text.splitlines():
        if not line.startswith(" "):
            # Of a fusion, or of a reduction, only the instruction that calls it counts.
            inside = bool(re.match(r"%?(fused_|region_\S* \(\S+: \w+\[\], )", line))
        elif not inside and " = " in line:
            work = re.search(r"(?<= )([a-z][\w-]*)\(", line.split(" = ", 1)[1])
            count += work is not None and not re.fullmatch(_NO_KERNEL, work[1])
    return count


def in_a_process(python: str, cache: str, *arguments: str) -> dict:
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [python, __file__, "--measure", *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        errors = re.findall(r"^\S*(?:Error|Exception).*", run.stderr, re.MULTILINE)
        return {"error": (errors or ["fails"])[-1][:100]}
    return json.loads(run.stdout.splitlines()[-1])


COLUMNS = ("trace", "lower", "compile", "first")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to the first result.")
    every = PEERS["hybridjax"]
    parser.add_argument("--problems", nargs="+", choices=every, default=every)
    parser.add_argument("--whats", nargs="+", choices=WHATS, default=WHATS)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["hybridjax"])
    parser.add_argument("--options", choices=["fast_to_compile", "fast_to_run"])
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        peer, problem, what, *options = given.measure
        out = measure(peer, problem, what, options[0] if options else None)
        print(json.dumps(out))
        return
    pythons = dict(pair.split("=", 1) for pair in given.python)
    options = [given.options] if given.options else []
    header = ["", "", "", *COLUMNS, "from the cache", "kernels", "lines"]
    print("| " + " | ".join(header) + " |")
    print("| --- " * len(header) + "|")
    for problem, what, peer in itertools.product(
        given.problems, given.whats, given.peers
    ):
        if problem not in PEERS[peer]:
            continue
        python = pythons.get(peer, sys.executable)
        arguments = [peer, problem, what, *(options if peer == "hybridjax" else [])]
        with tempfile.TemporaryDirectory() as cache:
            cold = in_a_process(python, cache, *arguments)
            warm = {} if given.once else in_a_process(python, cache, *arguments)
        cells = [problem, what, peer]
        if "error" in cold:
            print("| " + " | ".join([*cells, cold["error"]]) + " |", flush=True)
            continue
        cells += [f"{cold[name]:.2f}" for name in COLUMNS]
        cells += [f"{warm['first']:.2f}" if "first" in warm else ""]
        cells += [str(cold["kernels"]), str(cold["lines"])]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
