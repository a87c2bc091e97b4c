"""Find the joint torques with which a one-legged robot jumps onto a step.

The torques at hip and knee are splines in time, added to soft springs and dampers in
the joints. The first guess is one push: the foot comes down in front of the step, and
slips back from it. `jax.grad` differentiates the whole jump, through slipping, takeoff
and landing, and optax follows it. No contact sequence is prescribed: how often the foot
touches the ground, where and when, comes out of the optimisation. (Only the foot
touches; the knee passes through the step.)

It goes in two stages: first the robot should be in the air at 0.4 s, upright, above the
edge of the step; then it should stand on the step at 0.8 s. While the foot is at rest
on the ground, where it is does not depend on the torques, and the gradient knows of no
way to lift it. So the first guess must leave the ground.

Prints what it finds, and saves a picture and an animation:
`python examples/hopper_jump.py [folder]`. Most of the time is compilation.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import optax
from _pictures import save
from _robots import draw_robot, film, points, spline
from hybridjax.mechanics import ContactMode
from hybridjax.models import planar_monoped


jit = functools.partial(jax.jit, compiler_options=hj.compiler_options())


step_height, step_edge, step_width = 0.12, 0.2, 0.01  # m, a smooth step
lengths = 0.3, 0.25, 0.25  # m: torso, thigh, shank
crouch = jnp.array([0.0, 0.8, -1.05])  # rad, their angles
stiffness, damping, strongest = 5.0, 0.3, 40.0  # N m/rad, N m s/rad, N m
spacing, num_knots = 0.1, 10  # s, between the knots of the splines
first_guess = jnp.zeros((num_knots, 2)).at[1:4].set(jnp.array([-9.0, 18.0]))  # N m

# By stage: when (s), where hip and foot should be (m), the angles (rad), the weights of
# the errors of hip, foot, angles and velocities; number of jumps, and learning rate.
in_flight = [[0.22, 0.58], [0.22, 0.25]], [0.0, 1.0, -0.85], [3.0, 3.0, 0.5, 0.0]
standing = [[0.35, 0.45], [0.35, step_height]], crouch, [3.0, 10.0, 0.5, 0.003]
stages = [(0.4, in_flight, 25, 0.7), (0.8, standing, 30, 0.05)]
t1 = stages[-1][0]


def ground(x):
    return step_height * jax.nn.sigmoid((x - step_edge) / step_width)


def torques(t, q, v, knots):
    bend, rate = jnp.diff(q[2:] - crouch), jnp.diff(v[2:])
    u = spline(knots, t, spacing) - stiffness * bend - damping * rate
    return strongest * jnp.tanh(u / strongest)


def joints(q):
    """Where head, hip, knee and foot are."""
    return points(q, lengths)


hopper = planar_monoped(torques, ground, lengths=lengths)


@jit
def jump(knots, t1, goal):
    """How far the robot is from its goal, the gradient of that, and the jump."""
    places, angles, weights = goal
    q = jnp.concatenate([jnp.zeros(2), crouch])
    q = q.at[:2].add(jnp.stack([0.0, ground(0.0)]) - joints(q)[3])

    def objective(knots):
        solution = hj.simulate(
            hopper,
            0.0,
            t1,
            (q, jnp.zeros(5)),
            args=knots,
            # Of few stages, which compiles faster.
            solver=diffrax.Bosh3(),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, t1, 71)),
            max_steps=1024,
            max_events=24,
            throw=False,
        )
        q1, v1 = solution.x1
        hip, foot = jnp.sum((joints(q1)[jnp.array([1, 3])] - places) ** 2, axis=1)
        posture = jnp.sum((q1[2:] - angles) ** 2)
        errors = jnp.stack([hip, foot, posture, jnp.sum(v1**2)])
        return weights @ errors + 1e-4 * jnp.mean(knots**2), solution

    return jax.value_and_grad(objective, has_aux=True)(knots)


def arrays(goal):
    return tuple(jnp.array(part) for part in goal)


def optimise(knots):
    """The losses of each stage, the last knots of each."""
    losses = []
    for stage, (end, goal, num_jumps, rate) in enumerate(stages):
        optimiser = optax.adam(optax.cosine_decay_schedule(rate, num_jumps))
        state, losses_here = optimiser.init(knots), []
        good = knots
        for i in range(num_jumps):
            (loss, solution), gradient = jump(knots, end, arrays(goal))
            if not (np.isfinite(loss) and np.isfinite(gradient).all()):
                # A simulation that fails, as in Painlevé's paradox: go halfway back.
                print(f"stage {stage + 1}  jump {i + 1:3d}  failed, the step is halved")
                knots = (good + knots) / 2
                continue
            good = knots
            losses_here.append(float(loss))
            if i % 10 == 0 or i == num_jumps - 1:
                x, z = joints(solution.x1[0])[3]
                print(
                    f"stage {stage + 1}  jump {i + 1:3d}  loss {loss:7.4f}  "
                    f"foot at {end} s at ({x:6.3f}, {z:6.3f}) m",
                    flush=True,
                )
            updates, state = optimiser.update(gradient, state)
            knots = knots + jnp.asarray(updates)
        knots = good
        losses.append(losses_here)
    return knots, losses


def report(name, solution):
    foot = joints(solution.x1[0])[3]
    closed = ContactMode(int(solution.mode1[0]))
    x, z = float(foot[0]), float(foot[1])
    above = z - float(ground(x))
    stands = x > step_edge and abs(above) < 1e-4 and closed.name == "STICKING"
    print(
        f"\n{name}: at {t1} s the foot is at x = {x:.3f} m, z = {z:.3f} m, "
        f"{above:.1e} m above the ground, {closed.name}: it is "
        f"{'' if stands else 'not '}standing on the step."
    )
    if solution.result != hj.RESULTS.successful:
        print("  The simulation failed.")
    log = solution.events
    for i in range(int(log.count)):
        mode = ContactMode(int(log.mode_after[i][0]))
        x = float(joints(log.x_after[0][i])[3, 0])
        print(f"  {float(log.t[i]):.4f} s  at x = {x:6.3f} m: {mode.name}")


def scenery(axes):
    x = np.linspace(-0.4, 0.7, 500)
    axes.fill_between(x, np.asarray(ground(x)), -0.1, color="0.8")
    axes.set(xlim=(-0.2, 0.65), ylim=(-0.05, 1.05), aspect="equal")
    axes.set(xlabel="distance (m)", ylabel="height (m)")


def draw(knots, losses, before, after, folder):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("\nThere are no pictures, because matplotlib is not installed.")
        return
    figure, axes = plt.subplots(2, 2, figsize=(9, 8), layout="constrained")
    paths = [np.asarray(joints(s.xs[0])) for s in (before, after)]
    names = "first guess", "after optimisation"
    for ax, path, name, colour in zip(
        axes[0], paths, names, ("tab:blue", "tab:red"), strict=True
    ):
        scenery(ax)
        for i, k in enumerate(np.linspace(0, len(path) - 1, 6).round().astype(int)):
            draw_robot(ax, path[k], colour, alpha=0.25 + 0.15 * i)
        ax.plot(*path[:, 3].T, ":", color="k", linewidth=1, label="path of the foot")
        ax.set_title(f"{name}, 0 to {t1} s")
        ax.legend(loc="upper left", frameon=False)
    start = 1
    for i, part in enumerate(losses):
        axes[1, 0].semilogy(
            range(start, start + len(part)), part, label=f"stage {i + 1}"
        )
        start += len(part)
    axes[1, 0].set(xlabel="jump", ylabel="loss (dimensionless)", title="loss")
    axes[1, 0].legend(frameon=False)
    ts = np.asarray(after.ts)
    for values, style in ((before, "--"), (after, "-")):
        used = first_guess if values is before else knots
        qs, vs = values.xs
        u = jax.vmap(torques, (0, 0, 0, None))(values.ts, qs, vs, used)
        for j, (name, colour) in enumerate((("hip", "C0"), ("knee", "C1"))):
            label = f"{name}{', first guess' if values is before else ''}"
            axes[1, 1].plot(ts, u[:, j], style, color=colour, label=label)
    axes[1, 1].set(xlabel="time (s)", ylabel="torque (N m)", title="torques")
    axes[1, 1].legend(frameon=False)
    save(figure, folder / "hopper_jump.png")

    figure, both = plt.subplots(1, 2, figsize=(8, 4.4), layout="constrained")
    for ax, name in zip(both, names, strict=True):
        scenery(ax)
        ax.set_title(name)
    robots = [
        draw_robot(ax, p[0], c)
        for ax, p, c in zip(both, paths, ("tab:blue", "tab:red"), strict=True)
    ]
    film(figure, robots, paths, folder / "hopper_jump.gif")


def main(folder):
    goal = arrays(stages[-1][1])
    (_, before), _ = jump(first_guess, t1, goal)
    report("First guess", before)
    print()
    knots, losses = optimise(first_guess)
    (_, after), _ = jump(knots, t1, goal)
    report("After optimisation", after)
    draw(knots, losses, before, after, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
