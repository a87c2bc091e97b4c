"""Make a hopper leap over a gap and stand still beyond it: hybrid iLQR, beside Adam.

A body on a springy leg comes hopping to a gap in the ground, 35 cm wide. Its motors
turn the leg, and move the end of the spring. A cost asks it to stand beyond the gap
after 1.4 s, upright and at rest, and with little effort. No contact sequence is
prescribed: how often the foot touches the ground, where and when, comes out of the
optimisation.

A gradient knows nothing of a contact that was never made, so the first guess has to
land beyond the gap. It is a constant torque of 1 N m, by which the leg swings forward
in flight: the hopper bounces over the gap, and topples. If the gap is 40 cm wide, it
lands close to the edge, and from some starts iLQR ends there, though it would cost less
farther on.

Steps have a constant length; with an error control, iLQR took ten times as long. (Only
the foot touches the ground. The edges of the gap are smooth, within some centimetres.)
"""

import time
from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import matplotlib.pyplot as plt
import numpy as np
import optax
from _pictures import save
from hybridjax import control
from hybridjax.models import PlanarHopper


width, depth, edge, goal = 0.35, 2.0, 0.01, 0.7  # m


def ground(x):
    inside = jax.nn.sigmoid(x / edge) - jax.nn.sigmoid((x - width) / edge)
    return -depth * inside


n, dt = 40, 0.035
ts = dt * jnp.arange(n + 1)
hopper = PlanarHopper(ground, inertia=1.0)
# Torque and extension are continuous, and their rates are the controls. If they jumped
# at knots, the cost would have a kink wherever a contact comes to a knot.
system = control.with_rates(hopper)
x0 = jnp.array([-0.7, 0.65, 0.0, 0.2, 2.0, 0.0, 0.0, 0.0]), jnp.zeros(2)
mode0 = jnp.array(0)
scale = jnp.array([10.0, 0.05])  # N m, m
guess = jnp.zeros((n, 2)).at[0, 0].set(1.0 / dt)
standing = hopper.leg_length - hopper.mass * hopper.gravity / hopper.stiffness
options: Any = dict(
    solver=diffrax.Bosh3(),
    stepsize_controller=diffrax.ConstantStepSize(),
    dt0=dt / 4,
    max_events=4,
    max_steps=24,
)


def running(t, x, rates):
    effort = 1e-2 * jnp.sum((x[1] / scale) ** 2)
    return effort + 1e-5 * jnp.sum((rates / scale) ** 2)


def terminal(t, x):
    (place, height, pitch, leg, *velocity, rate, foot), motors = x
    there = 50 * (place - goal) ** 2 + 300 * (height - standing) ** 2
    balanced = 100 * (place - foot) ** 2 + 20 * (pitch**2 + leg**2)
    at_rest = 5 * (velocity[0] ** 2 + velocity[1] ** 2) + rate**2
    return there + balanced + at_rest + 3 * jnp.sum((motors / scale) ** 2)


def timed(run, *args):
    """What a program returns, and how long it takes, once it is compiled."""
    run = jax.jit(run, compiler_options=hj.compiler_options()).lower(*args).compile()
    begin = time.perf_counter()
    return jax.block_until_ready(run(*args)), time.perf_counter() - begin


#
# iLQR
#


def by_ilqr(guess):
    problem = (system, ts, x0, mode0, guess, running, terminal)
    return control.ilqr(
        *problem, max_iterations=60, rtol=1e-2, regularization=1e-2, **options
    )


found, seconds = timed(by_ilqr, guess)
log, count = found.log, int(found.log.count)
print("iteration      cost   gradient    step   other contacts")
for k in range(count):
    row = f"{k:9} {log.cost[k]:9.4f} {log.gradient_norm[k]:10.2e} {log.step[k]:7.3f}"
    if k % 5 == 0 or k == count - 1 or log.sequence_changed[k]:
        print(row + ("   yes" if log.sequence_changed[k] else ""))


#
# Adam, on the same controls
#


def rollout(motors):
    """The cost, and the trajectory at knots, given what motors do at them, scaled."""
    rates = jnp.diff(motors * scale, axis=0, prepend=jnp.zeros((1, 2))) / dt

    def step(carry, inputs):
        x, mode = carry
        t0, t1, rate = inputs
        sol = hj.simulate(system, t0, t1, x, mode, rate, throw=False, **options)
        return (sol.x1, sol.mode1), (sol.x1, sol.mode1, running(t0, x, rate))

    knots = ts[:-1], ts[1:], rates
    (x1, _), (xs, modes, spent) = jax.lax.scan(step, (x0, mode0), knots)
    return jnp.sum(spent) + terminal(ts[-1], x1), (xs, modes)


# Of rates from 0.005 to 0.1, the best and its neighbours.
steps, learning_rates = 500, jnp.array([0.01, 0.02, 0.05])


def by_adam(motors):
    def run(rate):
        adam = optax.adam(optax.cosine_decay_schedule(1.0, steps))

        def step(carry, _):
            motors, good, state = carry
            (cost, path), slope = jax.value_and_grad(rollout, has_aux=True)(motors)
            # A simulation that fails, as the foot chatters: halfway back.
            fine = jnp.all(jnp.isfinite(slope))
            updates, new = adam.update(slope, state)
            state = jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, state)
            after = jnp.where(fine, motors + rate * updates, (motors + good) / 2)
            good = jnp.where(fine, motors, good)
            return (after, good, state), (jnp.where(fine, cost, jnp.nan), path)

        carry = motors, motors, adam.init(motors)
        return jax.lax.scan(step, carry, None, length=steps)[1]

    return jax.vmap(run)(learning_rates)


first = jnp.cumsum(guess, axis=0) * dt / scale
(costs, paths), adam_seconds = timed(by_adam, first)
costs = np.asarray(costs)
# For each step size there is a rollout, and by the clock there are two more.
print(
    f"\niLQR: {found.cost:.3f}, in {seconds:.1f} s: {count} iterations of 8 rollouts."
)
for rate, row in zip(learning_rates, costs, strict=True):
    print(f"Adam, rate {rate}: {np.nanmin(row):.3f}, after {steps} gradients.")
print(f"All {len(costs)} of them took {adam_seconds:.1f} s.")


#
# What was found
#

trajectory, motors = (np.asarray(a) for a in found.xs)
modes = np.asarray(found.modes)
print("\nContacts of iLQR's trajectory, each by the knot that follows it:")
names = "touchdown", "liftoff"
for k, event in np.argwhere(np.asarray(found.event) >= 0):
    name, foot = names[int(found.event[k, event])], trajectory[k + 1, 7]
    print(f"  {ts[k + 1]:.3f} s: {name}, the foot at {foot:.2f} m")
place, height, pitch, leg, *velocity, rate, foot = trajectory[-1]
off, speed = abs(place - foot), np.hypot(*velocity)
beyond = 100 * (foot - width)
print(f"At the end the foot is on the ground, {beyond:.0f} cm beyond the gap.")
print(
    f"The body is {1000 * off:.0f} mm beside it, {100 * speed:.1f} cm/s fast, and "
    f"turned by {abs(np.rad2deg(pitch)):.1f} degrees."
)


#
# The picture
#


def draw_ground(axes):
    x = np.linspace(-1, 1.2, 1000)
    axes.fill_between(x, np.asarray(ground(x)), -depth, color="0.85", linewidth=0)
    axes.set(xlim=(-0.85, 1.05), ylim=(-0.2, 1.1), aspect="equal")
    axes.set(xlabel="distance (m)", ylabel="height (m)")


def draw_hopper(axes, colour, alpha, x, mode, motors):
    foot = np.asarray(hopper.foot(jnp.asarray(x), mode, jnp.asarray(motors)))
    axes.plot(*np.stack([x[:2], foot]).T, color=colour, alpha=alpha, linewidth=1)
    side = 0.07 * np.array([np.cos(x[2]), np.sin(x[2])])
    body = np.stack([x[:2] - side, x[:2] + side])
    axes.plot(*body.T, color=colour, alpha=alpha, linewidth=4)


figure, axes = plt.subplots(2, 2, figsize=(11, 6.6), layout="constrained")
for row in axes[:, 0]:
    draw_ground(row)
(xs, applied), adam_modes = jax.tree.map(lambda a: np.asarray(a)[0, 0], paths)
shown = [
    ("first guess", "C0", (xs, adam_modes, applied)),
    ("iLQR", "C1", (trajectory, modes, motors)),
]
for row, (name, colour, path) in zip(axes[:, 0], shown, strict=True):
    row.plot(*path[0][:, :2].T, ":", color="k", linewidth=1)
    for k in range(0, len(path[0]), 2):
        draw_hopper(row, colour, 0.3 + 0.7 * k / n, *(part[k] for part in path))
    row.set_title(f"{name}, 0 to {ts[-1]:.1f} s")
right, below = axes[:, 1]
right.loglog(np.arange(count) + 1, log.cost[:count], "o-", color="C1", label="iLQR")
for rate, row, shade in zip(learning_rates, costs, ("0.7", "0.5", "0.2"), strict=True):
    right.loglog(np.arange(steps) + 1, row, color=shade, label=f"Adam, rate {rate}")
right.set(xlabel="iteration", ylabel="cost")
right.legend(frameon=False)
below.plot(ts, motors / scale, label=["torque (10 N m)", "extension (5 cm)"])
stands = dict(where=modes == 1, step="post", label="foot on the ground")
below.fill_between(ts, -1.5, 1.5, color="0.9", **stands)
below.set(xlabel="time (s)", ylabel="what the motors do")
below.legend(frameon=False)
save(figure, "hopper_gap.png")

assert found.cost < min(0.5, np.nanmin(costs))
assert modes[-1] == 1 and foot > width
assert off < 0.03 and speed < 0.1 and abs(pitch) < 0.1
