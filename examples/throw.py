"""Find the throw that lands a ball in a bin, by gradients through all its bounces.

The ball bounces off the ground, flies over a wall, and goes on bouncing between that
wall and a higher one at the back, with a bin in between. Wanted is the throw after
which it is in the bin 3.2 s later. (The bin is only a place, the ball does not bounce
off it.) `jax.grad` gives the derivative through every bounce, and optax follows it. On
the way the bounces change their order (of ground and wall, the ball meets now the one
first and now the other) and their number. Where the ball is at a given time depends
continuously on the throw all the same, and the gradient carries on.

Prints what it finds, and saves a picture: `python examples/throw.py [picture.png]`.
With `throw.gif` it is an animation.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import optax
from hybridjax.models import ThrownBall


jit = functools.partial(jax.jit, compiler_options=hj.compiler_options())


scene = ThrownBall(
    drag=0.01,
    restitution_ground=0.9,
    restitution_wall=0.8,
    tangential=0.97,
    wall_position=3.5,
    wall_height=0.8,
    back_position=5.5,
)
hand = (0.0, 1.2)  # m, where the ball leaves the hand
bin_x, bin_width, bin_height = 4.5, 0.6, 0.4  # m
t1 = 3.2  # s, when the ball should be in the bin
first_throw = jnp.array([2.8, 1.5])  # m/s, horizontal and vertical velocity
num_throws = 60


def fly(throw):
    return hj.simulate(
        scene,
        0.0,
        t1,
        jnp.stack([*hand, *throw]),
        0,
        stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, t1, 500)),
        max_steps=256,
        max_events=16,
    )


@jit
def miss(throw):
    """How far the ball is from the lower half of the bin at time `t1`, squared, with
    its gradient; and the whole flight."""

    def objective(throw):
        solution = fly(throw)
        x, z, _, _ = solution.x1
        above = jnp.maximum(z - bin_height / 2, 0.0)
        return (x - bin_x) ** 2 + above**2, solution

    return jax.value_and_grad(objective, has_aux=True)(throw)


def bounces(solution):
    """The events as letters, and the indices of those that are bounces."""
    log = solution.events
    letters, indices = "", []
    for i in range(int(log.count)):
        passes = int(log.mode_before[i]) != int(log.mode_after[i])
        letters += "." if passes else "GWB"[int(log.event[i])]
        if not passes:
            indices.append(i)
    return letters, indices


def finite_differences(throw, h=1e-6):
    steps = h * jnp.eye(2)
    return [(miss(throw + s)[0][0] - miss(throw - s)[0][0]) / (2 * h) for s in steps]


def progress(i, n, text):
    done = 40 * i // n
    bar = "#" * done + "-" * (40 - done)
    print(f"\r[{bar}] {i}/{n}  {text}", end="", file=sys.stderr, flush=True)


def optimise(throw):
    """Throws again and again. Returns the first flight, the last one, and one for each
    order of bounces that was met."""
    # Little momentum, so that it is the gradient that carries on, and not the momentum.
    speed = optax.cosine_decay_schedule(0.04, num_throws)
    optimiser = optax.adam(speed, b1=0.5, b2=0.9)
    state = optimiser.init(throw)
    history = []
    progress(0, num_throws, "compiling")
    for i in range(num_throws):
        (value, solution), gradient = miss(throw)
        letters, _ = bounces(solution)
        if i in (0, num_throws - 1) or letters != history[-1][2]:
            history.append((i + 1, throw, letters, value, gradient, solution))
        progress(i + 1, num_throws, f"miss {float(value) ** 0.5:.4f} m ")
        updates, state = optimiser.update(gradient, state)
        throw = optax.apply_updates(throw, updates)
    print(file=sys.stderr)
    return history


def report(history):
    print(
        "Bounces: G ground, W wall, B wall at the back; . the ball flies over the wall."
        "\n\n                                        d(miss²)/d(throw), m²/(m/s)"
        "\nthrow  velocity (m/s)  bounces  miss (m)  jax.grad            differences"
    )
    for i, throw, letters, value, gradient, _ in history:
        differences = finite_differences(throw)
        print(
            f"{i:5d}  {throw[0]:6.3f} {throw[1]:6.3f}  {letters:>9}"
            f"  {float(value) ** 0.5:8.4f}  {gradient[0]:9.5f} {gradient[1]:9.5f}"
            f"  {differences[0]:9.5f} {differences[1]:9.5f}"
        )
        error = max(abs(g - d) for g, d in zip(gradient, differences, strict=True))
        assert error < 1e-5, error
    print()
    for name, row in (("first", history[0]), ("last", history[-1])):
        solution = row[-1]
        print(
            f"{name} throw: {len(bounces(solution)[1])} bounces, and after {t1} s "
            f"{abs(solution.x1[0] - bin_x):.4f} m beside the middle of the bin, at a "
            f"height of {solution.x1[1]:.2f} m."
        )


def scenery(axes):
    wall: dict[str, Any] = dict(color="0.35", linewidth=5, solid_capstyle="butt")
    wall_x, back_x, top = float(scene.wall_position), float(scene.back_position), 1.8
    axes.plot([wall_x, wall_x], [0, float(scene.wall_height)], **wall)
    axes.plot([back_x, back_x], [0, top], **wall)
    axes.axhspan(-0.1, 0, color="0.35")
    left, end = bin_x - bin_width / 2, bin_x + bin_width / 2
    box = [left, left, end, end], [bin_height, 0.015, 0.015, bin_height]
    axes.plot(*box, color="tab:green", linewidth=3, label="bin", zorder=3)
    axes.scatter(*hand, s=110, color="w", edgecolor="k", zorder=5)
    axes.set(
        xlim=(-0.2, 5.6),
        ylim=(-0.1, top),
        aspect="equal",
        xlabel="distance (m)",
        ylabel="height (m)",
    )


def animate(history, path):
    """One flight after the other, for each order of bounces that was met."""
    import matplotlib.pyplot as plt
    from matplotlib.animation import FuncAnimation

    figure, axes = plt.subplots(figsize=(5.4, 2.3), layout="constrained")
    scenery(axes)
    (trail,) = axes.plot([], [], color="tab:red", linewidth=1.5)
    ball = axes.scatter([], [], color="tab:red", s=60, edgecolor="k", zorder=5)
    num_frames = 26  # per flight; in the last ones the ball stays where it ended

    def draw_frame(k):
        i, _, _, value, _, solution = history[k // num_frames]
        stop = min(500, 25 * (k % num_frames + 1))
        trail.set_data(solution.xs[:stop, 0], solution.xs[:stop, 1])
        ball.set_offsets(solution.xs[stop - 1, :2])
        axes.set_title(f"throw {i}: miss {float(value) ** 0.5:.2f} m", loc="left")

    frames = num_frames * len(history)
    FuncAnimation(figure, draw_frame, frames).save(path, "pillow", fps=16, dpi=100)
    print(f"\nThe animation is in {path}.")


def draw(history, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("\nThere is no picture, because matplotlib is not installed.")
        return
    if path.endswith(".gif"):
        return animate(history, path)
    figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
    for row, colour, name in (
        (history[0], "C0", "first throw"),
        (history[-1], "C1", "last throw"),
    ):
        solution = row[-1]
        (curve,) = hj.plot.phase(solution, 0, 1, ax=axes)["arcs"]
        hits, miss = len(bounces(solution)[1]), float(row[3]) ** 0.5
        curve.set_label(f"{name}: {hits} bounces, miss {miss:.2f} m")
        axes.scatter(*solution.x1[:2], color=colour, s=110, edgecolor="k", zorder=5)
    scenery(axes)
    axes.set_title(
        f"Gradients through the bounces find the throw (balls drawn at {t1} s)"
    )
    axes.legend(loc="upper left", ncols=3, frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"\nThe picture is in {path}.")


if __name__ == "__main__":
    history = optimise(first_throw)
    report(history)
    draw(history, sys.argv[1] if len(sys.argv) > 1 else "throw.png")
