"""The calibration of Anderson and Revzen, Section 5.1: `hj.Project` against MuJoCo.

    python benchmarks/hopper.py

The hopper of problem P2, dropped from 2 m, to t = 2. `hj.Project` with steps of 0.002,
as MuJoCo's, and the largest eps up to 1, found by bisection, with which it has at most
MuJoCo's root mean square error over the trajectory, against the closed form; and the
times of both. Then with the steps that it would choose by itself. Prints a Markdown
table, and takes two minutes. Needs the extra `bench`.
"""

from collections.abc import Callable

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from _mujoco import hopper, Rollout
from _timing import compile_timed, machine, show_seconds, time_in_turns
from hybridjax.models import spring_hopper, spring_hopper_flow


jax.config.update("jax_enable_x64", True)

HEIGHT, END, STEP = 2.0, 2.0, 0.002
TIMES = STEP * jnp.arange(1, round(END / STEP) + 1)
FIXED = dict(stepsize_controller=diffrax.ConstantStepSize(), dt0=STEP)
CHOSEN = dict(stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4))


def simulation(stiffness, saveat, steps):
    def solve(eps):
        return hj.simulate(
            spring_hopper(stiffness=stiffness),
            0.0,
            END,
            jnp.array([HEIGHT, 0.0]),
            event_method=hj.Project(eps),
            saveat=saveat,
            max_steps=2048 if steps is FIXED else 256,
            **steps,
        )

    return solve


def rms(difference) -> float:
    return float(np.sqrt(np.mean(np.asarray(difference) ** 2)))


def calibrated(error, target) -> float:
    """The largest eps up to 1 with an error of at most `target`: by bisection of its
    logarithm."""
    low, high = 1e-6, 1.0
    if error(high) <= target:
        return high
    for _ in range(30):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if error(middle) <= target else (low, middle)
    return low


def main() -> None:
    print(f"{machine()}\n")
    print("| k (N/m) | what | steps | eps | error (RMS) | time | MuJoCo / it |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    start = np.array([[HEIGHT]])
    for stiffness in (100.0, 1000.0):
        flow = lambda t, k=stiffness: spring_hopper_flow(t, HEIGHT, stiffness=k)[0]
        exact = jax.jit(jax.vmap(flow))(TIMES)
        mujoco = Rollout(hopper(stiffness, STEP), END)
        target = rms(mujoco(start)[0] - exact)
        programs: dict[str, Callable] = {"MuJoCo": lambda _, run=mujoco: run(start)}
        rows = []
        for name, steps in (("of 0.002", FIXED), ("chosen", CHOSEN)):
            saved = simulation(stiffness, diffrax.SaveAt(ts=TIMES), steps)
            states = jax.jit(lambda eps, saved=saved: saved(eps).xs)
            error = lambda eps, states=states, exact=exact: rms(states(eps) - exact)
            eps = calibrated(error, target)
            last = simulation(stiffness, diffrax.SaveAt(t1=True), steps)
            run, _ = compile_timed(lambda eps, last=last: last(eps).x1, eps)
            programs[name] = lambda _, run=run, eps=eps: run(eps)
            rows.append((name, eps, error(eps)))
        times = time_in_turns(programs, 0.0, rounds=25)
        line = f"| {stiffness:.0f} | MuJoCo | of {STEP} | | {target:.1e} |"
        print(f"{line} {show_seconds(times['MuJoCo'].median)} | |")
        for name, eps, error in rows:
            ratio = times["MuJoCo"].over(times[name])
            print(
                f"| {stiffness:.0f} | `Project` | {name} | {eps:.2g} | {error:.1e} | "
                f"{show_seconds(times[name].median)} | {ratio:.1f} |"
            )


if __name__ == "__main__":
    main()
