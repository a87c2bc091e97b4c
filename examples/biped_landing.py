"""Let a biped land on both feet in the same instant, and come to rest without slipping.

A planar robot with two legs is dropped in a symmetric posture onto slippery ground. In
its joints are springs and dampers, and torques that are splines in time. With the first
guess, no such torques and little damping, its feet slip apart. `jax.grad`
differentiates the landing, with both impacts in one instant, with respect to the gains
and the splines, and optax follows it. No contact sequence is prescribed.

Two events in one instant: in general the outcome then depends on the order in which
they are taken to happen, and has a kink, of which `jax.grad` gives one side: that of
the order that was recorded. Here both legs do the same, so that they land together
whatever the gains and the splines are, in the first guess and after each step.

Prints what it finds, and saves a picture and an animation:
`python examples/biped_landing.py [folder]`. Most of the time is compilation.
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
from hybridjax.mechanics import ContactMode
from hybridjax.models import planar_biped, planar_links


jit = functools.partial(
    jax.jit, compiler_options=hj.compiler_options("fast_to_compile")
)


drop, t1 = 0.15, 0.8  # m, s
friction = 0.3
lengths = 0.6, 0.4, 0.4  # m: torso, thigh, shank
thigh, shank = 0.7, 0.0  # rad, at the start; those of the second leg are opposite
bent = jnp.array([thigh, shank - thigh])  # rad, hip and knee
hip_height = 0.65  # m, at the end
weight = 20 * 9.81  # N
spacing, num_knots = 0.1, 11  # s, between the knots of the splines
strongest = 150.0  # N m
num_drops = 40
first_guess = dict(
    # Stiffness (N m/rad) and damping (N m s/rad) of hip and knee.
    gains=jnp.log(jnp.array([[60.0, 60.0], [2.0, 2.0]])),
    torques=jnp.zeros((num_knots, 2)),  # N m, of hip and knee
)
rates = dict(gains=0.05, torques=1.0)


def spline(knots, t):
    """Cubic B-splines, with the first knot at `t = -spacing`."""
    s = jnp.abs(t / spacing + 1 - jnp.arange(knots.shape[0]))
    near, far = 2 / 3 - s**2 + s**3 / 2, jnp.maximum(2 - s, 0.0) ** 3 / 6
    return jnp.where(s < 1, near, far) @ knots


def torques(t, q, v, params):
    """Of hip and knee of the first leg, then of the second, its mirror image."""
    stiffness, damping = jnp.exp(params["gains"])
    mirror = jnp.array([[1.0], [-1.0]])
    joints = lambda x: (x[3:] - jnp.stack([x[2], x[3], x[2], x[5]])).reshape(2, 2)
    push = mirror * (spline(params["torques"], t) + stiffness * bent)
    u = push - stiffness * joints(q) - damping * joints(v)
    return strongest * jnp.tanh(u.reshape(-1) / strongest)


def feet(q):
    """The positions of the feet along the ground."""
    return planar_links(q, lengths)[2::2, 1, 0]


biped = planar_biped(torques, lengths=lengths, friction=friction)


def excess(t, x, params):
    """By how much the friction that both feet need in order to stick exceeds most of
    what there is, relative to the weight, squared."""
    normal, tangential = biped.contact_forces(t, x, jnp.array([1, 1]), params)
    beyond = jnp.abs(tangential) - 0.8 * friction * normal
    return jnp.sum((jax.nn.relu(beyond) / weight) ** 2)


@jit
def land(params):
    """How far the landing is from a good one, the gradient of that, and the landing."""
    q = jnp.stack([0.0, 0.0, 0.0, thigh, shank, -thigh, -shank])
    q = q.at[1].set(drop - planar_links(q, lengths)[2, 1, 1])

    def objective(params):
        solution = hj.simulate(
            biped,
            0.0,
            t1,
            (q, jnp.zeros(7)),
            args=params,
            # Of few stages, which compiles faster.
            solver=diffrax.Bosh3(),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, t1, 81)),
            max_steps=1024,
            max_events=32,
            throw=False,
        )
        log, (q1, v1) = solution.events, solution.x1
        before, after = [
            (x[0][i], x[1][i]) for i, x in enumerate((log.x_before, log.x_after))
        ]
        _, sliding = jax.jvp(feet, (before[0],), (before[1],))
        later = jax.vmap(excess, (0, 0, None))(solution.ts, solution.xs, params)
        grip = excess(log.t[1], after, params)
        grip += 0.1 * jnp.sum(jnp.where(solution.ts >= log.t[1], later, 0.0))
        loss = (
            jnp.sum(v1**2)
            + 10 * (q1[1] - hip_height) ** 2
            + 10 * grip
            + 1000 * jnp.sum((feet(q1) - feet(after[0])) ** 2)
            + jnp.sum(sliding**2)
            + 1e-4 * jnp.mean(params["torques"] ** 2)
        )
        return loss, solution

    return jax.value_and_grad(objective, has_aux=True)(params)


@jit
def forces(solution, params):
    """Of the feet, normal and tangential, at the times that were saved."""
    of = jax.vmap(biped.contact_forces, (0, 0, 0, None))
    return of(solution.ts, solution.xs, solution.modes, params)


def is_finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def optimise(params):
    optimiser = optax.multi_transform(
        {
            k: optax.adam(optax.cosine_decay_schedule(r, num_drops))
            for k, r in rates.items()
        },
        {k: k for k in rates},
    )
    state, good, losses = optimiser.init(params), params, []
    for i in range(num_drops):
        (loss, solution), gradient = land(params)
        if not is_finite((loss, gradient)):
            # The simulation failed, or there is no derivative: go halfway back.
            print(f"drop {i + 1:2d}  failed, the step is halved")
            params = jax.tree.map(lambda a, b: (a + b) / 2, good, params)
            continue
        good = params
        losses.append(float(loss))
        if i % 10 == 0 or i == num_drops - 1:
            print(f"drop {i + 1:2d}  loss {loss:.5f}", flush=True)
        updates, state = optimiser.update(gradient, state)
        params = optax.apply_updates(params, updates)
    return good, losses


def report(name, solution):
    log, (q1, v1) = solution.events, solution.x1
    modes = lambda mode: ", ".join(ContactMode(int(m)).name for m in mode)
    print(f"\n{name}. Events (the mode of the feet after each):")
    for i in range(int(log.count)):
        print(f"  {float(log.t[i]):.12f} s  {modes(log.mode_after[i])}")
    late = float(log.t[1] - log.t[0])
    slip = float(jnp.abs(feet(q1) - feet(log.x_after[0][1])).max())
    slips = bool((log.mode_after[: int(log.count)] > 1).any())
    together = "in the same instant" if late == 0 else f"{late:.1e} s apart"
    print(
        f"  The feet touch down {together}. They {'slip' if slips else 'never slip'}: "
        f"they end {1000 * slip:.4f} mm from\n  where they landed. At {t1} s: "
        f"{modes(solution.mode1)}, |v| = {float(jnp.linalg.norm(v1)):.4f} "
        "(m/s and rad/s)."
    )
    if solution.result != hj.RESULTS.successful:
        print("  The simulation failed.")


def scenery(axes, title):
    axes.axhspan(-0.1, 0, color="0.8")
    axes.set(xlim=(-0.7, 0.7), ylim=(-0.1, 1.55), aspect="equal", title=title)
    axes.set(xlabel="distance (m)", ylabel="height (m)")


def draw_robot(ax, t, x, mode, color="tab:red"):
    style = dict(color=color, linewidth=2, markersize=4)
    return ax.plot(*planar_links(x[0], lengths).T, "o-", **style)


def draw(losses, runs, folder):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("\nThere are no pictures, because matplotlib is not installed.")
        return
    names, colours = ("first guess", "after optimisation"), ("tab:blue", "tab:red")
    before, after = (solution for _, solution in runs)
    ts = np.asarray(after.ts)

    figure, axes = plt.subplots(2, 2, figsize=(9, 8), layout="constrained")
    scenery(axes[0, 0], "after optimisation")
    for time, colour in ((0.0, "0.75"), (0.18, "tab:orange"), (t1, "tab:red")):
        robot = draw_robot(axes[0, 0], time, after.evaluate(time), None, color=colour)
        robot[0].set_label(f"{time:.2f} s")
    axes[0, 0].legend(loc="upper left", frameon=False)
    for (params, solution), name, colour in zip(runs, names, colours, strict=True):
        down = ts >= float(solution.events.t[1])
        slip = jax.vmap(feet)(solution.xs[0]) - feet(solution.events.x_after[0][1])
        normal, along = forces(solution, params)
        ratio = np.abs(along)[down] / np.asarray(normal)[down]
        for foot, style in enumerate(("-", "--")):
            label = f"{name}, foot {foot}"
            kind = dict(color=colour, linestyle=style, label=label)
            axes[0, 1].plot(ts[down], 1000 * np.asarray(slip)[down, foot], **kind)
            axes[1, 0].plot(ts[down], ratio[:, foot], **kind)
    axes[0, 1].set(title="slip since touchdown", xlabel="time (s)", ylabel="slip (mm)")
    axes[0, 1].legend(loc="center right", frameon=False)
    axes[1, 0].axhline(friction, color="k", linestyle=":", linewidth=1)
    axes[1, 0].text(t1, friction, "friction", ha="right", va="bottom")
    axes[1, 0].set(title="forces on the feet", xlabel="time (s)")
    axes[1, 0].set(ylabel="|tangential| / normal", ylim=(0, 1.15 * friction))
    axes[1, 1].semilogy(losses, "k")
    axes[1, 1].set(title="loss", xlabel="drop", ylabel="loss (dimensionless)")
    save(figure, folder / "biped_landing.png")

    figure, ax = plt.subplots(figsize=(5, 5.5), layout="constrained")
    scenery(ax, "after optimisation, and the first guess (pale)")
    film = hj.plot.animate(draw_robot, after, ghost=before, slower=5.0, fps=10, ax=ax)
    film.save(folder / "biped_landing.gif", dpi=70)
    print(f"The film is in {folder / 'biped_landing.gif'}.")


def main(folder):
    (_, before), _ = land(first_guess)
    report("First guess", before)
    print()
    params, losses = optimise(first_guess)
    (_, after), _ = land(params)
    report("After optimisation", after)
    draw(losses, [(first_guess, before), (params, after)], folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
