"""Redraw Figures 3(b) to 7 of Corner, Sandu and Sandu, from simulations.

A five-bar mechanism on two springs bounces on the ground. How do the motion of its
lowest point, point 2, and two integrals along it depend on the natural lengths of the
springs? `jax.jvp` of `hj.simulate` answers through all impacts, and is compared with
central finite differences, at every time that is not between the impacts of the two
neighbours: there these are spikes.

Prints the impacts, the residuals of the constraints in both formulations, and how well
the sensitivities agree; fails if that is not to 1e-6. Saves a picture: `python
examples/five_bar.py [folder]`.

Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
dynamical systems*, Section 7. What it leaves open is in the docstring of
`models.five_bar`.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from _pictures import save
from hybridjax.mechanics import Penalty
from hybridjax.models import five_bar, five_bar_start


jit = functools.partial(
    jax.jit, compiler_options=hj.compiler_options("fast_to_compile")
)


natural_lengths = jnp.sqrt(jnp.array([5.0, 4.25]))  # m
times = jnp.linspace(0.0, 5.0, 2001)
tolerances = diffrax.PIDController(rtol=1e-10, atol=1e-10)
step = 1e-5  # of the finite differences, m


def running(t, x, dx, mode, args):
    """The vertical velocity of point 2, and its acceleration."""
    (_, v), (_, acceleration) = x, dx
    return jnp.stack([v[3], acceleration[3]])


def motion(natural_lengths):
    """The height and the speed of point 2, and the two integrals, and the times of the
    impacts; and, without derivatives, the residuals of the constraints, and all."""
    mechanism = five_bar(natural_lengths)
    sol = hj.simulate(
        hj.with_cost(mechanism, running),
        0.0,
        5.0,
        (five_bar_start(), jnp.zeros(2)),
        "moving",
        stepsize_controller=tolerances,
        saveat=diffrax.SaveAt(ts=times),
        max_events=10,
    )
    (q, v), z = sol.xs
    curves = jnp.stack([q[:, 3], v[:, 3], z[:, 0], z[:, 1]])
    return (curves, sol.events.t), (residuals(mechanism, sol.xs[0]), sol)


def residuals(mechanism, xs):
    """The largest ones: of positions, m², and of velocities, m²/s."""
    (body,) = mechanism.vector_fields
    largest = lambda r: jnp.max(jnp.abs(r), axis=1)
    return jax.tree.map(largest, jax.vmap(body.residuals)(times, xs))


@jit
def by_penalty():
    mechanism = five_bar(natural_lengths, formulation=Penalty(1e5))
    sol = hj.simulate(
        mechanism,
        0.0,
        5.0,
        five_bar_start(),
        "moving",
        saveat=diffrax.SaveAt(ts=times),
    )
    return residuals(mechanism, sol.xs)


@jit
def with_sensitivity(natural_lengths, direction):
    return jax.jvp(motion, (natural_lengths,), (direction,), has_aux=True)


def main(folder):
    print("index-1 formulation:")
    sensitivities, differences, away = [], [], []
    for k in range(2):
        e = jnp.eye(2)[k]
        (curves, impacts), (slopes, moves), (index_one, sol) = with_sensitivity(
            natural_lengths, e
        )
        (up, later), _, _ = with_sensitivity(natural_lengths + step * e, e)
        (down, earlier), _, _ = with_sensitivity(natural_lengths - step * e, e)
        count = int(jnp.sum(jnp.isfinite(impacts)))
        impacts, moves = impacts[:count], moves[:count]
        if k == 0:
            text = ", ".join(f"{t:.9f}" for t in impacts)
            print(f"  {count} impacts, at t = {text} s")
            for name, residual in zip(
                ("positions", "velocities"), index_one, strict=True
            ):
                print(f"  residuals of the {name}: up to {jnp.max(residual):.1e}")
        moved = (later - earlier)[:count]
        distance = jnp.abs(times[:, None] - impacts[None])
        away.append(jnp.all(distance > jnp.abs(moved)[None], axis=1))
        sensitivities.append(slopes)
        differences.append((up - down) / (2 * step))
        check(f"impact times to L0{k + 1}", moves, moved / (2 * step))

    names = ["y2", "y2'", "int y2' dt", "int y2'' dt"]
    for i, name in enumerate(names):
        for k in range(2):
            pair = sensitivities[k][i], differences[k][i]
            check(f"{name} to L0{k + 1}", *(a[away[k]] for a in pair))
    rise = jnp.max(jnp.abs(curves[2] - (curves[0] - curves[0][0])))
    print(f"  int y2' dt is y2 - y2(0), to {rise:.1e} m")

    penalty = by_penalty()
    print("penalty formulation:")
    for name, residual in zip(("positions", "velocities"), penalty, strict=True):
        print(f"  residuals of the {name}: up to {jnp.max(residual):.1e}")

    draw(folder, sol, sensitivities, differences, index_one, penalty)


def check(name, exact, differences):
    apart = jnp.max(jnp.abs(exact - differences)) / jnp.max(jnp.abs(exact))
    print(f"  {name}: {apart:.1e} of the largest, from {len(exact)} finite differences")
    assert apart < 1e-6


def draw(folder, sol, sensitivities, differences, index_one, penalty):
    figure, axes = plt.subplots(5, 2, figsize=(11, 15), sharex=True)
    for axis, one, other, unit in zip(
        axes[0], penalty, index_one, ("m²", "m²/s"), strict=True
    ):
        axis.semilogy(times, one, label="penalty")
        axis.semilogy(times, other, label="index 1")
        axis.set_ylim(1e-13, 1e-4)
        axis.set_ylabel(unit)
        axis.legend(loc="upper right")
    axes[0, 0].set_title("3(b): residuals of the position constraints")
    axes[0, 1].set_title("3(b): residuals of the velocity constraints")
    titles = [
        ["4(a): height of point 2", "4(b): vertical velocity of point 2"],
        ["5(a): sensitivity of the height", "5(b): sensitivity of the velocity"],
        [r"6(a): $\int \dot y_2\, dt$", r"6(b): $\int \ddot y_2\, dt$"],
        [r"7(a): sensitivity of $\int \dot y_2\, dt$"]
        + [r"7(b): sensitivity of $\int \ddot y_2\, dt$"],
    ]
    units = [["m", "m/s"], ["m/m", "1/s"], ["m", "m/s"], ["m/m", "1/s"]]
    # Of the state ((q, v), z).
    parts = [lambda x: x[0][0][3], lambda x: x[0][1][3]]
    parts += [lambda x: x[1][0], lambda x: x[1][1]]
    for row in range(4):
        for column in range(2):
            axis, i = axes[1 + row, column], 2 * (row // 2) + column
            axis.set_title(titles[row][column])
            axis.set_ylabel(units[row][column])
            if row % 2 == 0:
                hj.plot.trajectory(sol, {units[row][column]: parts[i]}, ax=axis)
                axis.get_legend().remove()
                axis.set_xlabel("")
                continue
            for k, color in enumerate(("C0", "C3")):
                exact = sensitivities[k][i]
                label = f"to $L_{{0{k + 1}}}$"
                axis.plot(times, exact, color, lw=2.5, alpha=0.6, label=label)
                axis.plot(times, differences[k][i], "k--", lw=0.8)
            largest = 1.15 * float(max(jnp.max(jnp.abs(s[i])) for s in sensitivities))
            axis.set_ylim(-largest, largest)
            axis.plot([], [], "k--", lw=0.8, label="finite differences")
            axis.legend(loc="upper left")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)")
    figure.tight_layout()
    save(figure, Path(folder) / "five_bar.png")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
