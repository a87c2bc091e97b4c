"""Draw Figures 3 and 4 of Council, Revzen and Burden, from simulations.

Figure 3: a planar vector field that is constant in each quadrant. A circle of initial
states flows through the origin, where both axes are crossed at once: to a circle, where
the B-derivative is linear, and in general to a curve of pieces of two ellipses.

Figure 4: a biped lands on both of its feet at once. Its flow is continuously
differentiable there, unless the damping of a foot depends on whether the other one is
on the ground. Then a circle of initial positions has an image with kinks.

In both, the lines are the derivative of the flow, in Figure 3 by `hj.b_derivative` and
in Figure 4 by `jax.jvp`, and the dots are simulations. Prints how well `jax.jvp` agrees
with these, and what `hj.b_derivative` says of the double touchdown. Saves the two
pictures: `python examples/b_derivative_figures.py [folder]`.

Council, Revzen, Burden, *Representing and computing the B-derivative of the
piecewise-differentiable flow of a class of nonsmooth vector fields*, Section 3.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from _pictures import save
from hybridjax.models import linear_table, piecewise_constant, soft_biped


# Half a degree keeps the states off the border between the two orders.
angles = jnp.deg2rad(jnp.arange(360) + 0.5)
circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
dots = slice(7, None, 15)
colours = "#0072B2", "#D55E00"  # by the guard that comes first

radius = 0.35
tables = {
    "linear": linear_table(0.4, 2),
    "piecewise linear": jnp.array([[0.2, 0.5], [-0.5, 0.0], [0.1, -0.4], [0.1, -0.1]]),
}

# The legs, of 1 m, are so steep that only their feet are on the hill.
spread, gravity = 0.3 * np.pi, 9.81  # rad, m/s²
drop, stance = 0.4, 0.05  # m above the touchdown, and s after it
small = 1e-5  # m, the radius of the circle of initial positions
fall = (2 * drop / gravity) ** 0.5  # s
touchdown = np.sin(spread) - np.cos(spread) ** 2  # m, where both feet are on the hill
cases = [  # damping (N s/m), that with one foot relative to that with two
    ("conservative", 0.0, 1.0),
    ("dissipative", 1.0, 1.0),
    ("damping depends on the other foot", 1.0, 0.5),
]


def flow(system, t1, x0, mode):
    return hj.simulate(
        system,
        0.0,
        t1,
        x0,
        mode,
        stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
        max_steps=64,
        max_events=4,
    )


@jax.jit
def flow_through_corner(table):
    """For each initial state on the circle: the outcome, relative to that of its
    centre; the derivative; which surface is first; the corners of the trajectory."""
    system, mode = piecewise_constant(table), jnp.array([-1, -1])
    start = -(1 + table[0]) / 2

    def from_offset(offset):
        solution = flow(system, 1.0, start + offset, mode)
        log = solution.events
        path = jnp.stack([start + offset, *log.x_before[:2], solution.x1])
        return solution.x1, (log.event[0], path)

    return simulate_and_differentiate(from_offset, radius)


@jax.jit
def land(damping, single_support):
    """For each initial position on the circle: the velocity (x, y) after the landing,
    relative to that of the double touchdown, per metre; its derivative; which foot is
    first."""
    system = soft_biped(
        spread=spread, damping=damping, single_support=single_support, gravity=gravity
    )

    def from_offset(offset):
        q = jnp.stack([offset[0], touchdown + drop + offset[1], 0.0])
        x0, mode = (q, jnp.zeros(3)), jnp.array([-1, -1, 1, 1])
        solution = flow(system, fall + stance, x0, mode)
        return solution.x1[1][:2], (solution.events.event[0],)

    outcome, line, first = simulate_and_differentiate(from_offset, small)
    return outcome / small, line / small, first


def simulate_and_differentiate(function, size):
    """Simulates from the circle, and differentiates at its centre in all directions:
    there is a derivative in each, but it need not be linear in them."""
    n, zeros = len(circle), jnp.zeros_like(circle)
    # All in one `vmap`, so that the simulation is compiled only once.
    offsets = jnp.concatenate([size * circle, zeros])
    tangents = jnp.concatenate([zeros, size * circle])
    push = lambda x, v: jax.jvp(function, (x,), (v,), has_aux=True)
    outcomes, lines, aux = jax.vmap(push)(offsets, tangents)
    return outcomes[:n] - outcomes[n:], lines[n:], *(a[:n] for a in aux)


def distance(a, b):
    return float(jnp.linalg.norm(a - b, axis=1).max())


def report_double_touchdown():
    print("Figure 4, the biped at the double touchdown (right foot 0, left foot 1):")
    state = jnp.array([0.0, touchdown, 0.0]), jnp.array([0.0, -gravity * fall, 0.0])
    for name, damping, single_support in cases:
        system = soft_biped(
            spread=spread, damping=damping, single_support=single_support
        )
        b = hj.b_derivative(system, 0.0, state, jnp.array([-1, -1, 1, 1]))
        difference = np.asarray(b.matrix((1, 0)) - b.matrix((0, 1)))
        # Equation (19), of which the state is (x, y, theta) and their rates.
        beta = 2 * damping * (1 - single_support)
        formula = np.zeros((6, 6))
        formula[4, 0] = -4 * beta * np.cos(spread)
        formula[4, 2] = -2 * beta * (np.sin(2 * spread) + np.cos(spread))
        error = abs(difference - formula).max()
        print(
            f"  {name}: {'linear' if b.is_linear() else 'not linear'}; the matrices of "
            f"the two orders differ by up to {abs(difference).max():.4f}, "
            f"and from (19) by {error:.1e}"
        )
        assert b.is_linear() == (single_support == 1)
        assert error < 1e-12, error


def draw_images(axes, line, simulated, first):
    """The image of a circle, by the derivative and by simulation."""
    line, first = np.asarray(line), np.asarray(first)
    nonlinear = distance(line, -np.roll(line, 180, axis=0)) > 1e-3
    for guard, colour in enumerate(colours):
        # Begin where this guard begins to be the first one; end at the next piece.
        begin = np.flatnonzero((first == guard) & (np.roll(first, 1) != guard))[0]
        count = int(np.sum(first == guard))
        piece = line[(begin + np.arange(count + 1)) % len(line)]
        if nonlinear:
            # Each piece is half of an ellipse. This is the other half of it.
            axes.plot(*-piece.T, ":", color=colour, linewidth=1, zorder=3)
        axes.plot(*piece.T, color=colour, linewidth=2, zorder=4)
    draw_dots(axes, simulated, first)


def draw_dots(axes, simulated, first):
    simulated, first = np.asarray(simulated)[dots], np.asarray(first)[dots]
    for guard, colour in enumerate(colours):
        shown = simulated[first == guard]
        axes.scatter(
            *shown.T, s=20, color="w", edgecolor=colour, linewidth=1.2, zorder=5
        )


def finish(plt, figure, first, path):
    """Adds the legend, below the panels, and saves."""
    ring = dict(marker="o", markerfacecolor="w", linestyle="", markersize=4.5)
    rows = [
        (f"{first[0]} first", dict(color=colours[0], linewidth=2)),
        (f"{first[1]} first", dict(color=colours[1], linewidth=2)),
        ("derivative", dict(color="0.3", linewidth=2)),
        ("simulations", dict(color="0.3", **ring)),
        ("other half of the ellipse", dict(color="0.3", linestyle=":")),
    ]
    handles = [plt.Line2D([], [], label=label, **style) for label, style in rows]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    save(figure, path)


def draw_figure_3(plt, results, path):
    corners = {
        name: hj.b_derivative(
            piecewise_constant(table), 0.0, jnp.zeros(2), jnp.array([-1, -1])
        )
        for name, table in tables.items()
    }
    figure, both = plt.subplots(1, 2, figsize=(10, 5.4), layout="constrained")
    tails = np.array([[-0.33, -1.23], [0.8, -0.95], [-0.95, 0.75], [0.8, 1.0]])
    for axes, (name, table) in zip(both, tables.items(), strict=True):
        outcome, _, first, paths = results[name]
        fields = 1 + np.asarray(table)
        start, end = -fields[0] / 2, fields[3] / 2
        for i in range(22, 360, 45):
            axes.plot(*paths[i].T, color="0.65", linewidth=0.9, zorder=1)
        axes.plot(*jnp.stack([start, jnp.zeros(2), end]).T, "k", linewidth=1.2)
        axes.plot([-1.3, 1.3], [0, 0], "k--", linewidth=1, zorder=0)
        axes.plot([0, 0], [-1.3, 1.3], "k--", linewidth=1, zorder=0)
        axes.text(0.03, 1.25, "$H_1$", va="top")
        axes.text(1.25, 0.03, "$H_2$", ha="right", va="bottom")
        # The first piece is that of the second guard.
        axes.set_prop_cycle(color=colours[::-1])
        hj.plot.b_derivative(
            corners[name], radius=radius, before=start, after=end, ax=axes
        )
        axes.get_legend().remove()
        draw_dots(axes, start + radius * circle, first)
        draw_dots(axes, end + outcome, first)
        for i, signs in enumerate(("--", "+-", "-+", "++")):
            arrow = dict(arrowstyle="-|>", color="0.2", shrinkA=0, shrinkB=0)
            axes.annotate("", tails[i] + 0.2 * fields[i], tails[i], arrowprops=arrow)
            axes.text(*(tails[i] - [0.03, 0]), f"$F_{{{signs}}}$", ha="right")
        thin = dict(arrowstyle="-", color="0.3", linewidth=0.8)
        for point, at, text in (
            (start, (-1.2, -0.3), "$\\rho^-$"),
            (end, (0.75, 0.12), "$\\rho^+$"),
        ):
            axes.plot(*point, "k.", zorder=6)
            axes.annotate(text, point, at, arrowprops=thin, zorder=6)
        axes.set_aspect("equal", adjustable="box")
        axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), title=name)
        axes.set(xlabel="$x_1$ (dimensionless)", ylabel="$x_2$ (dimensionless)")
    finish(plt, figure, ["surface $H_1$", "surface $H_2$"], path)


def draw_figure_4(plt, results, path):
    figure, (scene, *both) = plt.subplots(1, 3, figsize=(13, 4.8), layout="constrained")
    draw_biped(scene, plt)
    limit = 1.15 * max(float(abs(line).max()) for _, _, line, _ in results)
    for axes, (name, outcome, line, first) in zip(both, results, strict=True):
        draw_images(axes, line, outcome, first)
        axes.plot(0, 0, "k.")
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title=name)
        axes.set_xlabel("change of $\\dot x$ per offset (1/s)", labelpad=7)
        axes.set_ylabel("change of $\\dot y$ per offset (1/s)")
    finish(plt, figure, ["right foot", "left foot"], path)


def draw_biped(axes, plt):
    """The release, with the circle of initial positions (not to scale), and the double
    touchdown (to scale)."""
    ground = np.linspace(-1.3, 1.3, 100)
    axes.fill_between(ground, -(ground**2), -2, color="0.85", zorder=0)
    axes.plot(ground, -(ground**2), color="0.4", zorder=1)
    foot = np.array([np.cos(spread), -np.sin(spread)])
    for height, colour in ((touchdown + drop, "0.7"), (touchdown, "k")):
        center = np.array([0, height])
        for leg in (foot, foot * [-1, 1]):
            axes.plot(*np.stack([center, center + leg]).T, "o-", color=colour, ms=4)
        body = plt.Rectangle(center - [0.2, 0.07], 0.4, 0.14, fc="w", ec=colour)
        axes.add_patch(body).set_zorder(3)
        axes.plot(*center, ".", color=colour, zorder=6)
    offsets = np.array([0, touchdown + drop]) + 0.16 * np.asarray(circle)
    for half, colour in zip((90, 270), colours, strict=True):
        points = np.roll(offsets, -half, axis=0)[:180]
        axes.plot(*points.T, color=colour, linewidth=2, zorder=5)
    axes.plot([0.2, 0.75], [touchdown] * 2, "k:", linewidth=1)
    turn = np.linspace(0, -spread, 20)
    axes.plot(0.5 * np.cos(turn), touchdown + 0.5 * np.sin(turn), "k", linewidth=1)
    axes.text(0.54, touchdown - 0.19, "$\\psi$")
    arrow = dict(arrowstyle="-|>", color="k")
    axes.annotate("", (-0.95, 0.3), (-0.95, 0.7), arrowprops=arrow)
    axes.text(-0.9, 0.47, "$g$")
    axes.text(0.25, touchdown + drop + 0.1, "initial positions\n(not to scale)")
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.0, 1.5), aspect="equal")
    axes.set(xlabel="$x$ (m)", ylabel="$y$ (m)")
    axes.set_title("double touchdown, on the hill $y = -x^2$")


def main(folder):
    print("Figure 3, largest distance between simulations and derivative:")
    results_3 = {name: flow_through_corner(table) for name, table in tables.items()}
    for name, (outcome, line, _, _) in results_3.items():
        print(f"  {name}: {distance(outcome, line):.1e}")
        assert distance(outcome, line) < 1e-9

    report_double_touchdown()
    print("The same distance, relative to the offset of the initial position:")
    results_4 = []
    for name, damping, single_support in cases[1:]:
        outcome, line, first = land(damping, single_support)
        results_4.append((name, outcome, line, first))
        print(f"  {name}: {distance(outcome, line):.1e} 1/s")
        assert distance(outcome, line) < 1e-3

    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("\nThere are no pictures, because matplotlib is not installed.")
        return
    draw_figure_3(plt, results_3, folder / "b_derivative_figure_3.png")
    draw_figure_4(plt, results_4, folder / "b_derivative_figure_4.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
