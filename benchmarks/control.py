"""What control and estimation across events cost, as multiples of what they rest on.

    python benchmarks/control.py [--intervals 251] [--filters 1000]

Prints Markdown tables, of float64 and default tolerances:

- A ball that bounces on its way to a target, pushed by a force (`hj.models.PushedBall`,
  the second of the published problems of hybrid iLQR): one rollout; the same and its
  linearisation, all intervals in one batch; an iteration of `hj.control.ilqr`, with
  Gauss-Newton and with exact Hessians; the whole optimisation.
- With CasADi (`pip install casadi`): IPOPT on the same problem, where the sequence of
  contacts is given: one impact, whose time is a variable.
- With MuJoCo's MJX (`pip install mujoco-mjx`): Adam on the same problem with the
  nearest soft contact, forces held in each interval; and what these forces cost where
  the contact is rigid.
- A salted Kalman filter on a bouncing ball: steps per second, of one filter and of many
  at once; with `pip install hybrid-tools`, beside that of Kong and others.

An iteration's time is the difference of two runs with different numbers of iterations.
Takes two minutes on two cores.
"""

import argparse
import functools
import time
from typing import Any

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _timing import compile_timed, machine, show_seconds, time_in_turns
from hybridjax import control, estimation, models


jax.config.update("jax_enable_x64", True)

T1, RESTITUTION, GOAL, EFFORT, WEIGHT = 1.004, 0.7, 1.0, 1.25e-4, 100.0
X0 = np.array([4.0, 0.0])
FEW, MORE = 5, 15
OPTIONS: Any = dict(max_events=4, max_steps=32, solver=diffrax.Bosh3())


def running(t, x, rate):
    return EFFORT * jnp.sum(x[1] ** 2)


def terminal(t, x):
    miss = x[0] - jnp.array([GOAL, 0.0])
    return WEIGHT * jnp.sum(miss**2) + EFFORT * jnp.sum(x[1] ** 2)


def problem(n: int):
    """The force is continuous: see `hj.control.with_rates`."""
    ball = control.with_rates(models.PushedBall(restitution=RESTITUTION))
    return ball, jnp.linspace(0, T1, n + 1), (jnp.asarray(X0), jnp.zeros(1)), 0


def rollout(us):
    return follow(*problem(us.shape[0]), us)


def follow(system, ts, x0, mode0, us):
    """The states after each interval."""

    def step(carry, inputs):
        (x, mode), (t0, t1, u) = carry, inputs
        sol = hj.simulate(system, t0, t1, x, mode, u, throw=False, **OPTIONS)
        return (sol.x1, sol.mode1), sol.x1

    start = x0, jnp.asarray(mode0)
    return jax.lax.scan(step, start, (ts[:-1], ts[1:], us))[1]


def linearised(us):
    system = control.linearize(
        *problem(us.shape[0]), us, running=running, terminal=terminal, **OPTIONS
    )
    return system.A, system.B, system.cost


def optimised(us, iterations, exact):
    found = control.ilqr(
        *problem(us.shape[0]),
        us,
        running,
        terminal,
        exact_hessians=exact,
        max_iterations=iterations,
        # Not to end before.
        rtol=0.0 if iterations in (FEW, MORE) else 1e-6,
        **OPTIONS,
    )
    return found.cost, found.log.count, found.gradient_norm, found.initial_gradient_norm


def ilqr_table(n: int) -> None:
    us = jnp.zeros((n, 1)).at[0].set(-100.0 * n / T1)
    programs, compiled = {}, {}
    runs = {
        "rollout": rollout,
        "rollout and linearisation": linearised,
        **{
            f"{name}, {k} iterations": functools.partial(
                optimised, iterations=k, exact=exact
            )
            for name, exact in (("Gauss-Newton", False), ("exact Hessians", True))
            for k in (FEW, MORE)
        },
    }
    for name, fn in runs.items():
        programs[name], compiled[name] = compile_timed(fn, us)
    # Compiling forgets.
    for fn in programs.values():
        jax.block_until_ready(fn(us))
    times = time_in_turns(programs, us, rounds=9, sample_seconds=0.2)
    base = times["rollout and linearisation"]
    print(f"\n{n} intervals, {machine()}:\n")
    print("| | time | over rollout and linearisation | compilation |")
    print("| --- | ---: | ---: | ---: |")
    for name in ("rollout", "rollout and linearisation"):
        took = times[name]
        row = f"{show_seconds(took.median)} | {took.over(base):.2f}"
        print(f"| {name} | {row} | {compiled[name]:.1f} s |")
    for name in ("Gauss-Newton", "exact Hessians"):
        few, more = (times[f"{name}, {k} iterations"] for k in (FEW, MORE))
        counts = [int(programs[f"{name}, {k} iterations"](us)[1]) for k in (FEW, MORE)]
        each = (more.rounds - few.rounds) / (counts[1] - counts[0])
        ratio = np.median(each / base.rounds)
        row = f"{show_seconds(float(np.median(each)))} | {ratio:.2f}"
        took = compiled[f"{name}, {MORE} iterations"]
        print(f"| an iteration, {name} | {row} | {took:.1f} s |")
    for name, exact in (("Gauss-Newton", False), ("exact Hessians", True)):
        fn = jax.jit(functools.partial(optimised, iterations=100, exact=exact))
        cost, count, norm, first = jax.block_until_ready(fn(us))
        start = time.perf_counter()
        jax.block_until_ready(fn(us))
        took = time.perf_counter() - start
        print(
            f"\n{name}: cost {cost:.5f} after {count} iterations, "
            f"{show_seconds(took)}; the gradient's norm is {norm / first:.1e} of its "
            "start."
        )


def casadi_row(n: int) -> None:
    """IPOPT, with one impact."""
    try:
        import casadi as ca  # pyright: ignore
    except ImportError:
        print("\nCasADi is not installed.")
        return
    opti = ca.Opti()
    tau = opti.variable()
    force = opti.variable(n)
    half, g = n // 2, 9.8
    q, v, cost = X0[0], X0[1], 0
    for k in range(n):
        h = tau / half if k < half else (T1 - tau) / (n - half)
        a = force[k] - g
        q, v = q + h * v + h**2 / 2 * a, v + h * a
        cost += EFFORT * force[k] ** 2 * h * n / T1
        if k == half - 1:
            opti.subject_to(q == 0)
            v = -RESTITUTION * v
    opti.minimize(cost + WEIGHT * ((q - GOAL) ** 2 + v**2))
    opti.subject_to(opti.bounded(0.05, tau, T1 - 0.05))
    opti.set_initial(tau, T1 / 2)
    opti.set_initial(force, -10.0)
    opti.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes"})
    start = time.perf_counter()
    found = opti.solve()
    first = time.perf_counter() - start
    start = time.perf_counter()
    found = opti.solve()
    took = time.perf_counter() - start
    print(
        f"\nCasADi and IPOPT, one impact given: cost {found.value(opti.f):.5f}, "
        f"{show_seconds(took)} (the first time {show_seconds(first)}), "
        f"{found.stats()['iter_count']} iterations."
    )


def mjx_row(n: int) -> None:
    """Adam, at the best of some rates."""
    try:
        from _mjx_ball import roll
    except ImportError:
        print("\nMJX is not installed.")
        return

    def cost(x1, forces):
        miss = x1 - jnp.array([GOAL, 0.0])
        return WEIGHT * jnp.sum(miss**2) + EFFORT * jnp.sum(forces**2)

    def soft(forces):
        return cost(roll(jnp.asarray(X0), forces, T1, RESTITUTION), forces)

    @jax.jit
    def rigid(forces):
        ball = models.PushedBall(restitution=RESTITUTION)
        ts = jnp.linspace(0, T1, n + 1)
        x1 = follow(ball, ts, jnp.asarray(X0), 0, forces[:, None])[-1]
        return cost(x1, forces)

    gradient, compiled = compile_timed(jax.value_and_grad(soft), jnp.zeros(n))

    def descend(rate):
        optimiser, forces = optax.adam(rate), jnp.full(n, -100.0)
        state, best = optimiser.init(forces), (np.inf, forces)
        for _ in range(300):
            value, slope = gradient(forces)
            if value < best[0]:
                best = (float(value), forces)
            moves, state = optimiser.update(slope, state)
            forces = optax.apply_updates(forces, moves)
        return best

    start = time.perf_counter()
    rates = (0.3, 1.0, 3.0, 10.0)
    found = [descend(rate) for rate in rates]
    took = (time.perf_counter() - start) / len(rates)
    value, forces = min(found, key=lambda pair: pair[0])
    print(
        f"\nMJX and Adam, 300 steps: cost {value:.4g}, {show_seconds(took)}, compiled "
        f"in {compiled:.1f} s; with a rigid impact the forces cost {rigid(forces):.4g}."
    )


FILTER: Any = dict(count=100, dt=0.05, x0=[5.0, 0.0], restitution=0.7)
PRIOR, PROCESS, NOISE = 0.1, 0.01, 0.025  # variances; that of the process per second


def hybrid_tools_row(ys) -> None:
    """The filter of Kong's group, in NumPy and SciPy, with the same numbers."""
    try:
        from hybrid_tools import basic_hybrid_systems, SKF  # pyright: ignore
    except ImportError:
        print("\nhybrid-tools is not installed.")
        return
    system, eye = basic_hybrid_systems.bouncing_ball(), np.eye(2)
    for name, mode in system.dynamics.items():
        mode.y, mode.C = (lambda x, p: x[:1]), (lambda x, p: eye[:1])
        # Its noise is of an input, per step.
        mode.B_disc = lambda x, u, dt, p: np.sqrt(dt) * eye
        system.noises[name].W = PROCESS * eye
        system.noises[name].V = NOISE * eye[:1, :1]
    parameters = np.array([FILTER["restitution"], 9.81])
    dt, start = FILTER["dt"], time.perf_counter()
    filtered = SKF(np.array(FILTER["x0"]), "I", PRIOR * eye, dt, parameters, system)
    for k, y in enumerate(np.asarray(ys)):
        filtered.predict(k * dt, np.zeros(1))
        filtered.update((k + 1) * dt, np.zeros(1), y)
    took = time.perf_counter() - start
    print(f"\nhybrid-tools, one filter: {len(ys) / took:,.0f} steps per second.")


def filter_table(count: int) -> None:
    ts = FILTER["dt"] * jnp.arange(1, FILTER["count"] + 1)
    ball = models.BouncingBall(restitution=FILTER["restitution"])
    x0, eye = jnp.array(FILTER["x0"]), jnp.eye(2)
    truth = hj.simulate(ball, 0.0, ts[-1], x0, 0, saveat=diffrax.SaveAt(ts=ts)).xs
    noise = jax.random.normal(jax.random.key(0), (count, ts.size, 1))
    ys = truth[None, :, :1] + np.sqrt(NOISE) * noise

    def one(ys):
        return estimation.kalman_filter(
            ball,
            0.0,
            ts,
            ys,
            x0,
            np.sqrt(PRIOR) * eye,
            0,
            measurement=lambda t, x, mode, args: x[:1],
            measurement_root=np.sqrt(NOISE) * eye[:1, :1],
            process_root=np.sqrt(PROCESS) * eye,
            max_steps=64,
            max_events=8,
            throw=False,
        ).log_likelihood

    single, first = compile_timed(one, ys[0])
    batch, second = compile_timed(jax.vmap(one), ys)
    jax.block_until_ready(single(ys[0]))
    alone = time_in_turns({"one": single}, ys[0], rounds=9)["one"]
    many = time_in_turns({"many": batch}, ys, rounds=9)["many"]
    print(f"\nFilters on a bouncing ball, {ts.size} measurements, {machine()}:\n")
    print("| filters | time of all | steps per second | compilation |")
    print("| ---: | ---: | ---: | ---: |")
    for number, took, compiled in ((1, alone, first), (count, many, second)):
        rate = number * ts.size / took.median
        row = f"{show_seconds(took.median)} | {rate:,.0f} | {compiled:.1f} s"
        print(f"| {number} | {row} |")
    hybrid_tools_row(ys[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=int, default=251)
    parser.add_argument("--filters", type=int, default=1000)
    options = parser.parse_args()
    ilqr_table(options.intervals)
    casadi_row(options.intervals)
    mjx_row(options.intervals)
    filter_table(options.filters)


if __name__ == "__main__":
    main()
