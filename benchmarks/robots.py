"""Robots of gymnasium's files that fall, beside MJX and MuJoCo in C.

    python benchmarks/robots.py [--models hopper] [--engines hybridjax] [--lanes 1 100]
        [--parts parts.json] [--out robots.md]

A robot is released with bent joints, 2 cm above the ground, and is driven by constant
controls, other ones in each lane; where it is after a second is asked for, and the
derivative of its root's x with respect to the controls. `_gymnasium.py` says what is
altered in the files, for all engines, and `_robot_engines.py` how each is called.

The engines have different models of contact: rigid, and soft. So each is compared with
its own limit: tolerances of 1e-11, or a 128th of the file's step, and with differences
(of fourth order) of the states there, for the first lanes and controls. MJX has the
model of MuJoCo in C, which has its limit at hand. How far the limits are from each
other is a line of its own.

Every engine, number of lanes and model is a process of its own. Times are CPU seconds,
as the machine may have other work; where JAX sees a GPU, those of the wall. All in
float64. What was measured is kept in the file of `--parts`, so that one part can be
measured after the other, and the page is made of all that is there. Needs the packages
`gymnasium`, `mujoco` and `mujoco-mjx`.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from _gymnasium import Fall, fall_of, MODELS, VERSIONS
from _robot_engines import differences, Engine, ENGINES, OfLanes, timed
from _timing import machine, show_seconds


# How many lanes are compared with the limit, and with differences there.
REFERENCE_LANES = {"hopper": 2, "walker2d": 2, "ant": 1}
DIFFERENCED = 3  # controls: more would take long
ENOUGH = 2.0  # seconds that calls are repeated for
# One more setting is not tried where it would take so long (seconds).
TOO_LONG = 120.0


#
# What is measured, in a process of its own
#


def measure(name: str, engine_name: str, lanes: int) -> dict:
    fall = fall_of(name, lanes)
    engine = ENGINES[engine_name](fall)
    u = fall.controls
    first = next(iter(engine.settings.values()))
    found = {"settings": {}, "compile": {}}
    for what in ("forward", "gradient"):
        run = getattr(engine, what)
        if isinstance(run, OfLanes):
            _, found["compile"][what] = timed(run.compile, first, u)
        taken = 0.0
        for label, setting in engine.settings.items():
            if 4 * taken > TOO_LONG:
                break
            values, taken = timed(run, setting, u, enough=ENOUGH)
            found["settings"].setdefault(label, {})[what] = {
                "seconds": taken / lanes,
                "values": values[: REFERENCE_LANES[name]].tolist(),
                "failed": int(np.sum(~np.isfinite(values).all(axis=1))),
            }
    if lanes == 1 and engine.limit is not None:
        found["limit"] = limit_of(engine, fall_of(name, REFERENCE_LANES[name]))
    return found


def limit_of(engine: Engine, fall: Fall) -> dict:
    assert engine.limit is not None
    fine, coarse = engine.limit
    each = lambda setting: np.concatenate(
        [engine.forward(setting, lane[None]) for lane in fall.controls]
    )
    steps = engine.difference * np.array([1, 2, 4])
    one, two, four = (
        differences(engine.forward, fine, fall.controls, h, DIFFERENCED) for h in steps
    )
    # Of fourth order: those of second order are no better than 7e-3 for the ant.
    of_fourth = lambda near, far: ((4 * near - far) / 3).tolist()
    return {
        "states": each(fine).tolist(),
        "coarse": each(coarse).tolist(),
        "gradients": of_fourth(one, two),
        "again": of_fourth(two, four),
    }


def in_a_process(*arguments: str) -> dict:
    # Compilation is measured: none of it comes from a cache.
    environment = dict(os.environ)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--measure", *arguments]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        return {"error": f"ended with code {run.returncode}"}
    return json.loads(run.stdout.splitlines()[-1])


#
# The page
#


HEADER = (
    "robot",
    "lanes",
    "engine",
    "forward, a lane",
    "error of the end",
    "gradient, a lane",
    "error of the gradient",
    "compile: forward, gradient",
)


def page(parts: dict) -> str:
    lines = [
        "# Robots that fall",
        "",
        "What `benchmarks/robots.py` wrote (see there what it measures).",
        "",
        f"{machine()}, {VERSIONS}{_of_mjx()}. CPU seconds (with a GPU, of the wall), "
        "on a machine that had other work.",
        "",
        "Errors, the largest of two lanes, of the ant of one. Of the end: the largest "
        "entry of the final positions, in m and rad. Of the gradient: relative, in the "
        "Euclidean norm, of its first three entries.",
        "",
        f"| {' | '.join(HEADER)} |",
        "| --- " * len(HEADER) + "|",
    ]
    for key, part in parts.items():
        lines += _rows(parts, key, part)
    return "\n".join([*lines, "", *_of_limits(parts)]) + "\n"


def _rows(parts, key, part):
    name, engine, lanes = key.split()
    if "error" in part:
        yield f"| {name} | {lanes} | {engine} | {part['error']} |" + " |" * 4
        return
    limit = _limit(parts, name, engine)
    compiled = part["compile"]
    for i, (label, found) in enumerate(part["settings"].items()):
        cells = [name, lanes, f"{engine}, {label}"]
        for what, exact in (("forward", "states"), ("gradient", "gradients")):
            cells += _cells(found.get(what), limit and limit[exact], what)
        times = (show_seconds(compiled[what]) for what in compiled)
        cells.append(", ".join(times) if i == 0 else "")
        yield f"| {' | '.join(cells)} |"


def _cells(found, exact, what: str) -> list[str]:
    if found is None:
        return ["", ""]
    values = found["values"]
    lost = f", {found['failed']} lanes failed" if found["failed"] else ""
    error = ""
    if exact is not None:
        error = f"{_apart(values, exact[: len(values)], what):.0e}"
    return [show_seconds(found["seconds"]) + lost, error]


def _apart(found: list, exact: list, what: str) -> float:
    """How far states, or gradients, are from others: the lane where that is most."""
    a, b = np.array(found), np.array(exact)
    if what == "forward":
        return float(np.max(np.abs(a - b)))
    norm = lambda a: np.linalg.norm(a, axis=1)
    a = a[:, : b.shape[1]]
    return float(np.max(norm(a - b) / norm(b)))


def _limit(parts, name: str, engine: str) -> dict | None:
    # MJX has the model of MuJoCo, and its limit.
    engine = "MuJoCo" if engine == "MJX" else engine.split(":")[0]
    return parts.get(f"{name} {engine} 1", {}).get("limit")


def _of_limits(parts):
    for name in MODELS:
        mjx, in_c = (_first(parts, name, engine) for engine in ("MJX", "MuJoCo"))
        if mjx and in_c:
            apart = _apart(mjx, in_c, "forward")
            yield (
                f"MJX and MuJoCo in C, {name}, with the steps of the file: {apart:.0e} "
                "apart."
            )
        limits = {e: _limit(parts, name, e) for e in ("hybridjax", "MuJoCo")}
        for engine, limit in limits.items():
            if limit:
                states = _apart(limit["coarse"], limit["states"], "forward")
                slopes = _apart(limit["again"], limit["gradients"], "gradient")
                yield (
                    f"The limit of {engine}, {name}: with a setting less fine it is "
                    f"{states:.0e} away, and differences with twice the step "
                    f"{slopes:.0e}."
                )
        ours, soft = limits.values()
        if ours and soft:
            states = _apart(soft["states"], ours["states"], "forward")
            slopes = _apart(soft["gradients"], ours["gradients"], "gradient")
            yield (
                f"The limits of MuJoCo and of hybridjax, {name}: {states:.1g} apart, "
                f"and their gradients {slopes:.1g}."
            )


def _first(parts, name: str, engine: str) -> list | None:
    """The final states with the coarsest setting of one lane."""
    for found in parts.get(f"{name} {engine} 1", {}).get("settings", {}).values():
        return found["forward"]["values"]
    return None


def _of_mjx() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f", mujoco-mjx {version('mujoco-mjx')}"
    except PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Robots that fall.")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    lanes = ["1", "100", "1000"]
    parser.add_argument("--lanes", nargs="*", default=lanes)
    parser.add_argument("--parts", type=Path, default=Path("build/robots.json"))
    parser.add_argument("--out", type=Path, default=Path("robots.md"))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        name, engine, lanes = given.measure
        print(json.dumps(measure(name, engine, int(lanes))))
        return
    parts = json.loads(given.parts.read_text()) if given.parts.exists() else {}
    for part in itertools.product(given.models, given.engines, given.lanes):
        parts[" ".join(part)] = in_a_process(*part)
        given.parts.parent.mkdir(exist_ok=True)
        given.parts.write_text(json.dumps(parts))
        print(f"<!-- {' '.join(part)} -->", flush=True)
    text = page(parts)
    print(text)
    given.out.write_text(text)


if __name__ == "__main__":
    main()
