"""Push a monoped between two ditches: model predictive control, on top of fixed gains.

A body hops in place on one springy leg, on an island between two ditches, and is pushed
to either side at all phases of its hop. A foot in a ditch is a fall. There are three
controllers:

- Fixed gains, after Raibert: in flight the leg swings to where the foot should land, in
  stance the hip keeps the body upright, and the leg pushes harder or less hard for the
  height. It knows nothing of ditches.
- The same, but a foothold in a ditch is moved to the nearer edge. The gains of both
  were chosen by trial, with these ditches.
- Model predictive control. Open loop a hopper is unstable, and of many controls the
  simulation fails, so that there is nothing to improve. So what is planned is not
  torque and thrust, but what to add to those of the first controller. With nothing
  added a plan hops by itself, and after a push it is a first guess. Every 80 ms
  `mpc_step` plans one hop and a quarter, with a cost of footholds in a ditch; and it
  finds out that a hopper may leap over one.

The plant is the model, and hears of a push at the knot at which it happens. The ground
is level in both: ditches are where the foot must not be.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import equinox as eqx
import hybridjax as hj
import jax.tree_util as jtu
import matplotlib.pyplot as plt
import numpy as np
from _pictures import save
from hybridjax import control
from hybridjax.models import PlanarHopper
from jaxtyping import Array, Bool
from matplotlib.colors import ListedColormap


ditches = np.array([[-0.60, -0.25], [0.15, 0.50]])  # m
dt, horizon, after = 0.08, 8, 16  # s, knots of a plan, plans after a push
hop = 6  # knots of a hop, less than half of one left out
pushes = np.array([-1.5, -1.0, -0.5, 0.5, 1.0, 1.5])  # of the body, m/s
apex = 0.65  # of the body, m
strongest, stiffest = 6.0, 0.5  # torque (N m), and share by which the leg is stiffer
options: Any = dict(
    solver=diffrax.Bosh3(),
    stepsize_controller=diffrax.ConstantStepSize(),
    dt0=dt / 5,
    max_events=3,
    max_steps=12,
)


#
# Fixed gains
#


class Steered(hj.AbstractHybridSystem):
    """A hopper under fixed gains, to which its `args` are added: torque, stiffness."""

    hopper: PlanarHopper
    # Are footholds moved out of ditches?
    careful: Bool[Array, ""]

    def motors(self, x, mode, more):
        place, height, pitch, leg, forward, upward, rate, _ = x
        hopper = self.hopper
        ahead = 0.12 * forward
        moved = out_of_ditches(place + ahead) - place
        ahead = jnp.where(self.careful, moved, ahead) / hopper.leg_length
        swing = 51.9 * (jnp.arcsin(0.8 * jnp.tanh(ahead / 0.8)) - leg) - rate
        hold = 177.0 * pitch + 32.5 * rate
        torque = jnp.where(mode == 1, hold, hopper.damping * swing) + more[0]

        axis = x[:2] - hopper.foot(x, mode, jnp.zeros(2))
        squeezed = hopper.leg_length - jnp.sqrt(axis[0] ** 2 + axis[1] ** 2)
        squeezed = jnp.where(mode == 1, squeezed, 0.0)
        spring = hopper.stiffness / hopper.mass * squeezed**2 / 2
        energy = hopper.gravity * (height - apex) + upward**2 / 2 + spring
        stiffer = more[1] - 0.16 * energy * jax.nn.sigmoid(upward / 0.1)
        # With a share of the length, touchdown and liftoff are those of the leg alone.
        limited = lambda value, bound: bound * jnp.tanh(value / bound)
        return jnp.stack(
            [limited(torque, strongest), limited(stiffer, stiffest) * squeezed]
        )

    def flow(self, t, x, mode, args):
        return self.hopper.flow(t, x, mode, self.motors(x, mode, args))

    def guards(self, t, x, mode, args):
        return self.hopper.guards(t, x, mode, jnp.zeros(2))

    def jump(self, t, x, mode, event, args):
        return self.hopper.jump(t, x, mode, event, jnp.zeros(2))


def out_of_ditches(foot):
    for left, right in ditches:
        edge = jnp.where(foot < (left + right) / 2, left - 0.02, right + 0.02)
        foot = jnp.where((foot > left - 0.02) & (foot < right + 0.02), edge, foot)
    return foot


def fallen(x):
    in_ditch = jnp.any((x[7] > ditches[:, 0]) & (x[7] < ditches[:, 1]))
    return in_ditch | (x[1] < 0.25) | (jnp.abs(x[2]) > 1.2)


def by_gains(x, mode, careful):
    """States and modes at knots, and whether it has not fallen, at each."""
    system = Steered(PlanarHopper(), careful)

    def step(carry, _):
        x, mode, stands = carry
        sol = hj.simulate(
            system, 0.0, dt, x, mode, jnp.zeros(2), throw=False, **options
        )
        stands = stands & sol.successful & ~fallen(sol.x1)
        return (sol.x1, sol.mode1, stands), (x, mode, stands)

    return jax.lax.scan(step, (x, mode, jnp.asarray(True)), None, length=after)[1]


#
# Model predictive control
#

steered = Steered(PlanarHopper(), jnp.asarray(False))
scale = jnp.array([strongest, 0.3])


def worry(x):
    place, _, pitch, _, forward, _, rate, foot = x
    middle, half = ditches.mean(1), np.diff(ditches)[:, 0] / 2 + 0.03
    ditch = jnp.sum(jnp.maximum(half - jnp.abs(foot - middle), 0))
    upright = 10 * pitch**2 + 0.3 * rate**2
    return 2 * forward**2 + place**2 + upright + 1000 * ditch


def running(t, x, more):
    return dt * worry(x) + 0.02 * jnp.sum((more / scale) ** 2)


def terminal(t, x):
    return 3 * worry(x)


effort: Any = dict(max_iterations=8, num_steps=6, rtol=0.02, regularization=0.01)


def by_plans(x, mode):
    """As `by_gains`."""
    ts, nothing = dt * jnp.arange(horizon + 1), jnp.zeros((horizon, 2))
    problem = (steered, ts - dt, x, mode, nothing, running, terminal)
    # A plan of which only times and controls are used, without computing one.
    shapes = jax.eval_shape(lambda: control.ilqr(*problem, **effort, **options))
    plan = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    plan = eqx.tree_at(lambda p: (p.ts, p.us), plan, (ts - dt, nothing))

    def onward(carry):
        x, mode, stands, plan = carry
        plan = control.mpc_step(
            steered, plan, x, mode, running, terminal, **effort, **options
        )
        stands = stands & ~fallen(plan.xs[1])
        exists = jnp.isfinite(plan.cost)
        # Beyond the end of a plan, and where there is none, the fixed gains go on.
        more = jnp.where(exists, plan.us, 0.0).at[-1].set(0.0)
        plan = eqx.tree_at(lambda p: p.us, plan, more)
        return (plan.xs[1], plan.modes[1], stands, plan), exists

    def step(carry, _):
        done = lambda carry: (carry, jnp.asarray(False))
        new, exists = jax.lax.cond(carry[2], onward, done, carry)
        return new, (*carry[:2], new[2] & exists)

    start = x, mode, jnp.asarray(True), plan
    return jax.lax.scan(step, start, None, length=after)[1]


#
# Pushes
#


def timed(run, *args):
    """What a program returns, and how long it takes, once it is compiled."""
    run = jax.jit(run, compiler_options=hj.compiler_options()).lower(*args).compile()
    begin = time.perf_counter()
    return jax.block_until_ready(run(*args)), time.perf_counter() - begin


run_gains = jax.jit(jax.vmap(by_gains), compiler_options=hj.compiler_options())
shape = hop, len(pushes)
number = hop * len(pushes)
careful = jnp.repeat(jnp.array([False, True]), number)
still = jnp.zeros((2 * number, 8)).at[:, 1].set(apex)
xs, modes, _ = run_gains(still, jnp.zeros(2 * number, int), careful)
k, push = (a.ravel() for a in np.meshgrid(np.arange(hop), pushes, indexing="ij"))
pushed, mode = xs[0][k].at[:, 4].add(push), modes[0][k]
twice = lambda a: jnp.concatenate([a, a])
gains = run_gains(twice(pushed), twice(mode), careful)
# One hopper after the other: in a batch, all would iterate as long as the slowest.
paths, seconds = timed(
    lambda *lanes: jax.lax.map(lambda lane: by_plans(*lane), lanes), pushed, mode
)

stands = np.asarray(gains[2])[:, -1].reshape(2, *shape)
names = "fixed gains", "careful footholds", "model predictive control"
ends = dict(
    zip(names, [*stands, np.asarray(paths[2])[:, -1].reshape(shape)], strict=True)
)
sizes = np.unique(np.abs(pushes))
print(f"Still hopping {after * dt:.1f} s after the push, of {number}:")
print(f"{'':26}" + "".join(f"{size:5.1f} m/s" for size in sizes) + "      all")
shares = {}
for name, end in ends.items():
    shares[name] = [np.mean(end[:, np.abs(pushes) == size]) for size in sizes]
    row = "".join(f"{share:9.0%}" for share in shares[name])
    print(f"{name:26}{row}{np.mean(end):9.0%}")
each = seconds / np.sum(np.asarray(paths[2]))
print(
    f"\nA plan takes {1e3 * each:.0f} ms, {each / dt:.2f} of the time until the next."
)


#
# The picture
#


def draw(axes, xs, modes, upto):
    motionless = jnp.zeros(2)
    for left, right in ditches:
        axes.fill_between([left, right], -0.15, 0, color="white", zorder=2)
    axes.axhspan(-0.15, 0, color="0.85", linewidth=0)
    axes.plot(*xs[: upto + 1, :2].T, ":", color="k", linewidth=1)
    for k in range(upto + 1):
        place = np.asarray(hopper.foot(jnp.asarray(xs[k]), modes[k], motionless))
        shade = dict(color=f"C{k % 2}", alpha=0.3 + 0.7 * k / upto)
        axes.plot(*np.stack([xs[k, :2], place]).T, linewidth=1, **shade)
        side = 0.05 * np.array([np.cos(xs[k, 2]), np.sin(xs[k, 2])])
        axes.plot(*np.stack([xs[k, :2] - side, xs[k, :2] + side]).T, lw=4, **shade)
    axes.set(xlim=(-0.75, 0.95), ylim=(-0.15, 0.8), aspect="equal")
    axes.set(ylabel="height (m)")


hopper = PlanarHopper()
shown = np.ravel_multi_index((0, 3), shape)
lanes = [(names[1], gains, number + shown), (names[2], paths, shown)]
figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained")
for axis, (name, runs, lane) in zip(axes[:, 0], lanes, strict=True):
    xs, modes, fine = (np.asarray(a)[lane] for a in runs)
    draw(axis, xs, modes, after - 1 if fine[-1] else int(np.argmin(fine)) + 1)
    axis.set_title(f"{name}: {push[shown]} m/s at the apex")
axes[1, 0].set_xlabel("distance (m)")
for name, colour in zip(names, ("0.6", "C0", "C1"), strict=True):
    axes[0, 1].plot(sizes, shares[name], "o-", color=colour, label=name)
axes[0, 1].set(xlabel="push (m/s)", ylabel="share still hopping", ylim=(0, 1.05))
axes[0, 1].legend(frameon=False, loc="lower right")
both = ends[names[1]] + 2 * ends[names[2]]
colours = ListedColormap(["0.25", "C0", "C1", "0.9"])
axes[1, 1].imshow(both, cmap=colours, vmin=0, vmax=3, aspect="auto")
axes[1, 1].set_xticks(range(len(pushes)), pushes)
axes[1, 1].set(xlabel="push (m/s)", ylabel="knot of the hop, 0 is the apex")
axes[1, 1].set_title("orange: held by plans alone; dark: by neither", fontsize="medium")
save(figure, "monoped_mpc.png")

# Of 36 pushes 14, 23 and 31 were survived.
won = [int(np.sum(end)) for end in ends.values()]
assert won[0] + 4 < won[1] and won[1] + 4 <= won[2]
