"""The figures of the concepts, from simulations: `python docs/figures.py` draws them
afresh, into `docs/images`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import matplotlib.pyplot as plt
import numpy as np
from hybridjax import models


IMAGES = Path(__file__).parent / "images"
# Colours that everybody can tell apart.
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"
# A mass of 1 kg on a spring of 1 N/m hits a stop. Before and after, perturbations turn
# in the plane of place and speed.
STOP = 0.3
OSCILLATOR = models.ImpactOscillator(frequency=4.0, stop=STOP, damping=0.0)
START, END = np.array([-1.0, 0.5]), 2.5


def turn(time):
    return np.array([[np.cos(time), np.sin(time)], [-np.sin(time), np.cos(time)]])


@jax.jit
@jax.vmap
def _swing(x0):
    return hj.simulate(
        OSCILLATOR,
        0.0,
        END,
        x0,
        0,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, END, 501)),
        max_steps=32,
        max_events=2,
    )


def swings():
    """The motion from one state, and those from a circle around it."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    circle = 0.12 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    offsets = np.concatenate([np.zeros((1, 2)), circle])
    return offsets, jax.tree.map(np.asarray, _swing(START + offsets))


def save(figure, folder, name):
    figure.savefig(folder / f"concept_{name}.png", dpi=85)
    plt.close(figure)


def with_jump(sol):
    """A motion as a line: up to the left limit, a gap, and on from the right one."""
    k, t = np.searchsorted(sol.ts, sol.events.t[0]), sol.events.t[0]
    between = [sol.events.x_before[0], [np.nan, np.nan], sol.events.x_after[0]]
    return np.insert(sol.ts, k, [t, t, t]), np.insert(sol.xs, [k], between, axis=0)


def one_event(runs, folder):
    offsets, sols = runs
    nominal = jax.tree.map(lambda a: a[0], sols)
    event, before = nominal.events.t[0], nominal.events.x_before[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")

    # Of those that come later: the one that does so most.
    later = jax.tree.map(lambda a: a[np.argmax(sols.events.t[:, 0])], sols)
    for sol, colour in ((nominal, "k"), (later, RED)):
        ts, xs = with_jump(sol)
        left.plot(ts, xs[:, 1], color=colour)
        jump = sol.events.t[0]
        ends = sol.events.x_before[0, 1], sol.events.x_after[0, 1]
        left.plot([jump, jump], ends, "--", linewidth=0.8, color=colour)
        left.plot(jump, ends[0], "o", markerfacecolor="w", markersize=4, color=colour)
        left.plot(jump, ends[1], "o", markersize=4, color=colour)
    late = later.events.t[0]
    left.axvspan(event, late, color="0.9", zorder=0)
    arrow = dict(arrowstyle="<->", color="k", shrinkA=0, shrinkB=0)
    left.annotate("", (event, 1.25), (late, 1.25), arrowprops=arrow)
    left.text((event + late) / 2, 1.3, r"$\epsilon\, \delta t$", ha="center")
    left.text(event - 0.35, 1.05, "nominal", ha="right")
    left.text(late + 0.05, 0.75, "perturbed", color=RED)
    left.set(xlim=(0.6, 2.3), ylim=(-1.2, 1.55), xlabel="time (s)")
    left.set(ylabel="speed (m/s)", title="the perturbed motion hits later")

    saltation = hj.saltation_matrix(OSCILLATOR, event, before, 0, 0)
    reset = np.diag([1.0, -float(OSCILLATOR.restitution)])
    inset = right.inset_axes([0.36, 0.36, 0.5, 0.36])
    closed = np.r_[1 : len(offsets), 1]
    _, path = with_jump(nominal)
    for axes in (right, inset):
        axes.plot(*path.T, "k", linewidth=1)
        for matrix, line, name in (
            (np.asarray(saltation), "-", "by the saltation matrix"),
            (reset, ":", "by $D_x R$ alone"),
        ):
            flows = turn(END - event) @ matrix @ turn(event)
            image = nominal.x1 + offsets @ flows.T
            axes.plot(*image[closed].T, line, color="0.55", label=name)
        axes.plot(*sols.x1[1:].T, ".", color=BLUE, markersize=5, label="simulations")
    right.plot(*(START + offsets[closed]).T, ".-", color=BLUE, linewidth=0.8)
    jump = np.stack([before, nominal.events.x_after[0]])
    right.plot(*jump.T, "k--", linewidth=0.8)
    right.axvline(STOP, color="0.8", zorder=0)
    right.text(-1.15, 0.27, "at 0 s")
    x, y = nominal.x1
    inset.set(xlim=(x - 0.14, x + 0.14), ylim=(y - 0.2, y + 0.2), xticks=[], yticks=[])
    inset.text(0.03, 0.97, f"at {END} s", va="top", transform=inset.transAxes)
    right.indicate_inset_zoom(inset)
    right.legend(*inset.get_legend_handles_labels(), loc="lower left", fontsize=8)
    right.set(xlabel="place (m)", ylabel="speed (m/s)", ylim=(-1.2, 1.3))
    right.set_title("a circle of starts, before and after")
    save(figure, folder, "one_event")


def tape(runs, folder):
    sol = jax.tree.map(lambda a: a[0], runs[1])
    rows = sol._path.open().tape
    # Beyond its end it waits for the others of its batch.
    n = int(np.sum(rows.t < END))
    t, dt, fired = (np.asarray(a[:n]) for a in (rows.t, rows.dt, rows.event >= 0))
    numbers, rejected = np.arange(n), dt == 0
    shape: dict[str, Any] = dict(sharex=True, height_ratios=[2, 3, 2])
    figure, axes = plt.subplots(3, 1, figsize=(8, 5.6), layout="constrained", **shape)
    upper, middle, lower = axes
    ts, xs = with_jump(sol)
    upper.plot(ts, xs[:, 1], "k")
    upper.plot(t, rows.x[:n, 1], ".", color=BLUE, markersize=8)
    upper.set_ylabel("speed (m/s)")

    middle.barh(numbers, dt, left=t, height=0.6, color=np.where(fired, RED, BLUE))
    middle.plot(t[rejected], numbers[rejected], "x", color="0.4", label="rejected")
    middle.plot([], [], color=BLUE, linewidth=6, label="flow for dt")
    middle.plot([], [], color=RED, linewidth=6, label="flow for dt, then jump")
    middle.set(ylabel="row", ylim=(n - 0.3, -0.7), yticks=numbers)
    middle.legend(fontsize=8, loc="lower left")
    for x, begin, end, colour, name, side in (
        (0.80, 0.95, 0.4, "k", "tangents ", "right"),
        (0.82, 0.4, 0.95, GREEN, " cotangents", "left"),
    ):
        arrow: Any = dict(arrowstyle="->", color=colour)
        ends: dict[str, Any] = dict(xycoords="axes fraction", arrowprops=arrow)
        middle.annotate("", (x, end), (x, begin), **ends)
        text: dict[str, Any] = dict(transform=middle.transAxes, color=colour)
        middle.text(x, 0.7, name, ha=side, **text)

    event, before = sol.events.t[0], sol.events.x_before[0]
    saltation = np.asarray(hj.saltation_matrix(OSCILLATOR, event, before, 0, 0))
    # The left limit, then a gap, then the right limit.
    earlier = [turn(END - event) @ saltation @ turn(event - s) for s in ts[ts <= event]]
    steps = [turn(END - s) for s in ts[ts >= event]]
    pulled = np.array(earlier[:-2] + [np.full((2, 2), np.nan)] + steps[2:])[:, 0]
    for i, (name, colour) in enumerate((("place", GREEN), ("speed", "k"))):
        lower.plot(ts, pulled[:, i], color=colour, label=f"to the {name}")
        dots = pulled[np.searchsorted(ts, t + 1e-9), i]
        lower.plot(t, dots, ".", color=colour, markersize=8)
    lower.set(xlabel="time (s)", xlim=(0, END))
    lower.set_ylabel("sensitivity of\nthe final place")
    lower.legend(fontsize=8, loc="lower left")
    for panel in axes:
        panel.axvline(event, color="0.8", zorder=0)
    save(figure, folder, "tape")


@jax.jit
def _step(t, x, dt, shares):
    """The states within one step of the solver, which ignores the stop."""
    solver = diffrax.Tsit5()
    flow = diffrax.ODETerm(lambda t, x, _: OSCILLATOR.flow(jnp.asarray(t), x, 0, None))
    state = solver.init(flow, t, t + dt, x, None)
    end, _, dense, _, _ = solver.step(flow, t, t + dt, x, None, state, False)
    curve = solver.interpolation_cls(t0=t, t1=t + dt, **dense)
    within = jax.vmap(lambda share: curve.evaluate(t + share * dt))(shares)
    return within, end


def finding_events(runs, folder):
    rows = jax.tree.map(lambda a: a[0], runs[1])._path.open().tape
    landing = int(np.argmax(rows.event >= 0))
    t, x, length = rows.t[landing], rows.x[landing], rows.dt[landing]
    figure, both = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    s = np.linspace(0, 1, 201)
    checks = np.array([25, 75, 125, 175])
    for axes, dt in zip(both, (2.2, 0.6), strict=True):
        within, end = _step(t, x, dt, s)
        guard = STOP - np.asarray(within)[:, 0]
        rates = -dt * np.array([x[1], end[1]])
        cubic = (1 + 2 * s) * (1 - s) ** 2 * guard[0] + s**2 * (3 - 2 * s) * guard[-1]
        cubic += s * (1 - s) ** 2 * rates[0] - s**2 * (1 - s) * rates[1]
        w = 16 * s**2 * (1 - s) ** 2
        error = np.max(np.abs(guard - cubic)[checks] / w[checks])
        times = t + s * dt
        band = cubic - 2 * error * w, cubic + 2 * error * w
        axes.fill_between(times, *band, color=BLUE, alpha=0.15, linewidth=0)
        axes.plot(times, guard, color="k", label="guard, on the solver's interpolant")
        axes.plot(times, cubic, "--", color=BLUE, label=r"cubic $H$, and $H \pm 2 E w$")
        axes.plot(times[checks], guard[checks], "k.", label="interior points")
        axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        axes.set(xlabel="time (s)", title=f"a step of {dt} s: $E$ = {error:.2g} m")
    left, right = both
    left.set_ylabel("guard (m)")
    left.legend(fontsize=8, loc="lower left")
    root = t + length
    right.plot(root, 0, "o", color=RED, markersize=7, zorder=3)
    right.axvline(root, color=RED, linewidth=0.8, zorder=0)
    arrow = dict(arrowstyle="<->", color=RED, shrinkA=0, shrinkB=0)
    right.annotate("", (t, -0.12), (root, -0.12), arrowprops=arrow)
    right.text(t + length / 2, -0.11, "the step that lands", color=RED, ha="center")
    save(figure, folder, "finding_events")


def contact(folder):
    drag, grip = 0.2, 0.3
    block = models.block_on_incline(0.0, drag, grip, speed=0.5)

    @jax.jit
    def drop():
        q, v = jnp.array([0.0, 0.3]), jnp.array([1.0, 0.0])
        sol = hj.simulate(block, 0.0, 3.0, (q, v), max_steps=128, max_events=8)
        # At both limits of each event, too: forces jump there.
        jumps = sol.events.t[:, None] - jnp.array([[1e-9, 0.0]])
        ts = jnp.concatenate([jnp.linspace(0.0, 3.0, 301), jumps.ravel()])
        ts = jnp.sort(jnp.minimum(ts, 3.0))
        xs, modes = sol.evaluate_with_mode(ts)
        return sol, ts, jax.vmap(block.contact_forces)(ts, xs, modes)

    sol, ts, (normal, tangential) = drop()
    normal, tangential = np.asarray(normal)[:, 0], np.asarray(tangential)[:, 0]
    figure, axes = plt.subplots(3, 1, figsize=(8, 5.6), layout="constrained")
    for panel, part, name in ((axes[0], 1, "gap (m)"), (axes[1], 2, "slip (m/s)")):
        artists = hj.plot.trajectory(sol, {name: part}, ax=panel)
        panel.legend().remove()
        panel.set(xlabel="", ylabel=name)
    # The modes are named above the first.
    artists["modes"][0].axes.remove()
    axes[2].plot(ts, normal, color=BLUE, label="normal")
    axes[2].plot(ts, tangential, color=RED, label="tangential")
    for share, line, name in ((grip, ":", "static"), (drag, "--", "kinetic")):
        for sign in (1, -1):
            bound = sign * share * normal
            label = f"{name} friction" if sign == 1 else "_"
            axes[2].plot(ts, bound, line, color="0.5", linewidth=1, label=label)
    axes[2].set(xlabel="time (s)", ylabel="force (N)", xlim=(0, 3))
    axes[2].legend(fontsize=8, ncols=2, loc="center right", bbox_to_anchor=(1, 0.7))
    save(figure, folder, "contact")


def sliding(folder):
    stiffness, friction, belt_speed = 2.0, 1.0, 0.5
    belt = models.block_on_belt(stiffness, friction, belt_speed)

    @jax.jit
    @jax.vmap
    def run(place):
        x0 = jnp.stack([place, 0.0])
        return hj.simulate(belt, 0.0, 8.0, x0, "behind", max_steps=128, max_events=8)

    both = run(jnp.array([1.05, -1.2]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    place, speed = np.meshgrid(np.linspace(-1.4, 1.4, 11), np.linspace(-1.4, 1.6, 11))
    pull = -stiffness * place - friction * np.sign(speed - belt_speed)
    size = np.hypot(speed, pull)
    arrows: dict[str, Any] = dict(
        color="0.7", width=0.003, scale=18, pivot="middle", zorder=0
    )
    left.quiver(place, speed, speed / size, pull / size, **arrows)
    for i, colour in enumerate((BLUE, RED)):
        sol = jax.tree.map(lambda a, i=i: a[i], both)
        artists = hj.plot.phase(sol, ax=left)
        plt.setp([*artists["arcs"], *artists["jumps"]], color=colour)
    left.axhline(belt_speed, color="k", linewidth=0.8, zorder=1)
    left.set(xlabel="place (m)", ylabel="speed (m/s)")
    hj.plot.trajectory(sol, {"speed (m/s)": 1}, ax=right)
    right.axhline(belt_speed, color="k", linewidth=0.8, zorder=1)
    right.set_xlabel("time (s)")
    save(figure, folder, "sliding")


def friction(folder):
    gravity, slope, grip, static = 9.81, 0.15, 0.3, 0.4
    puck = models.body_on_plane(
        slope=slope, friction=grip, static_friction=static, gravity=gravity
    )
    # Times left to slide, closer and closer to its end; and one after it.
    left_to_slide = np.append(np.geomspace(1.0, 1e-3, 120), -0.1)

    @jax.jit
    @jax.vmap
    def slide(angle):
        q = jnp.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
        v = 2.0 * jnp.stack([jnp.cos(angle), jnp.sin(angle), *jnp.zeros(4)])
        sol = hj.simulate(
            puck,
            0.0,
            2.0,
            (q, v),
            solver=diffrax.Bosh3(),
            stepsize_controller=diffrax.PIDController(1e-6, 1e-6),
            max_steps=256,
            max_events=4,
        )
        ts = sol.events.t[0] * (1 - left_to_slide)
        return ts, sol.evaluate(ts)[1][:, :2]

    angles = np.deg2rad(np.arange(-170.0, 180.0, 20.0))
    ts, slips = jax.tree.map(np.asarray, slide(angles))
    chosen = int(np.argmin(np.abs(angles - np.deg2rad(130))))
    shape: dict[str, Any] = dict(figsize=(10, 3.5), layout="constrained")
    figure, (left, middle, right) = plt.subplots(1, 3, **shape)

    for i, slip in enumerate(slips):
        style: dict[str, Any] = dict(color=RED if i == chosen else BLUE)
        left.plot(*slip.T, **style, zorder=2 + (i == chosen))
        left.plot(*slip[0], ".", **style)
        # Without the point after the slide.
        speed, angle = np.hypot(*slip[:-1].T), np.arctan2(slip[:-1, 1], slip[:-1, 0])
        right.loglog(speed, np.abs(angle), **style)
    pull: dict[str, Any] = dict(arrowstyle="-|>", color="k", shrinkA=0, shrinkB=0)
    left.annotate("", (2.1, 1.6), (1.3, 1.6), arrowprops=pull)
    left.text(1.7, 1.7, "downhill", ha="center")
    left.set(xlabel="slip, downhill (m/s)", ylabel="slip, across (m/s)")
    left.set(
        xlim=(-2.3, 2.3),
        ylim=(-2.3, 2.3),
        aspect="equal",
        title="the slip of pucks on a slope",
    )

    # What friction does to one of them, from how its slip changes.
    rates = np.gradient(slips[chosen, :-1], ts[chosen, :-1], axis=0)
    drive = gravity * np.sin(slope), 0.0
    forces = (rates - drive) / (gravity * np.cos(slope))
    turn = np.linspace(0, 2 * np.pi, 200)
    for size, line, name in ((static, ":", "static"), (grip, "--", "kinetic")):
        circle = size * np.cos(turn), size * np.sin(turn)
        middle.plot(*circle, line, color="0.5", label=f"{name} friction")
    middle.plot(*forces.T, color=RED, linewidth=2)
    sticks = -np.tan(slope), 0.0
    jump = np.stack([forces[-1], sticks])
    middle.plot(*jump.T, "--", color=RED, linewidth=1)
    middle.plot(*forces[-1], "o", color=RED, markerfacecolor="w", zorder=3)
    middle.plot(*sticks, "o", color=RED)
    middle.text(-0.13, 0.0, "sticks", va="center")
    middle.set(xlabel="downhill, per normal force", ylabel="across", aspect="equal")
    middle.set(title="the force on one of them", ylim=(-0.45, 0.6))
    middle.legend(fontsize=8, loc="upper center", ncols=2, columnspacing=1)

    exponent = np.tan(slope) / (grip - np.tan(slope))
    speeds = np.array([6e-3, 1.0])
    power = 0.25 * speeds**exponent
    right.loglog(speeds, power, "k--", label=f"$r^p$, $p$ = {exponent:.2f}")
    right.legend(fontsize=8)
    right.set(xlabel="speed of the slip $r$ (m/s)", ylabel="angle to downhill (rad)")
    right.set(xlim=(3e-3, 2.2), title="their directions")
    save(figure, folder, "friction")


if __name__ == "__main__":
    runs = swings()
    for draw in (one_event, tape, finding_events):
        draw(runs, IMAGES)
    for draw in (contact, sliding, friction):
        draw(IMAGES)
