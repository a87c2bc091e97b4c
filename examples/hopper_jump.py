"""Make gymnasium's hopper jump as high as it can, by gradient.

The robot is read from its file: a foot, a leg, a thigh and a torso, 1.5 m tall and 16
kg, with motors of up to 200 N m. They are servos here, towards angles that are
piecewise linear in time; Adam finds these angles, from a first guess that hops a
little. The cost is how high the centre of mass will rise, by its height and its speed
in flight. When the heel and the toe leave the ground comes out of it, and the gradient
goes through that; and through the limits of joints, which are contacts as well.

The foot does not slip, whatever the forces are: two points of a rigid foot that stick
share their friction, no law says how, and so none says which slips first.

Prints the heights, and the gradient beside finite differences; saves a picture and a
film: `python examples/hopper_jump.py [folder]`.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np


jax.config.update("jax_enable_x64", True)

import diffrax
import gymnasium
import hybridjax as hj
import optax
from _pictures import save
from _robot_pictures import at_times, draw_robot, film_robot


assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
stiffness, damping = 400.0, 25.0  # N m/rad, N m s/rad
interval = 0.1  # s, between knots


def servo(t, q, v, angles):
    weights = jnp.maximum(0, 1 - jnp.abs(t / interval - jnp.arange(len(angles))))
    return (stiffness * (weights @ angles - q[3:]) - damping * v[3:]) / torque


# Two points of the foot, and two limits of each joint, which have no friction.
robot = hj.robots.from_mjcf(
    assets / "hopper.xml",
    control=servo,
    contacts=["foot_geom"],
    friction=0.9,
    static_friction=np.array([jnp.inf] * 2 + [0.0] * 6),
    rest_speed=0.02,
)
model = robot.model
torque = model.actuator_gear[:, 0]  # N m, at a control of 1
mode0 = np.array([hj.mechanics.ContactMode.STICKING] * 2 + [0] * 6)
# It squats, its foot flat on the ground and below the centre of mass.
hip, knee, pitch = -0.2, -1.2, -0.787
q0 = np.array([0.0, 1.0, pitch, hip, knee, pitch - hip - knee])
q0[1] -= robot.system.gap(jnp.asarray(q0), None)[0]
squat = jnp.asarray(q0[3:])
guess = jnp.tile(squat, (14, 1)).at[2].set(jnp.array([0.05, -0.1, -0.45]))
flight, film = 0.4, 1.0  # s: when it is in the air, and has landed
step = 0.01  # s, of the solver


def centre(q):
    """Of mass, in m."""
    places, turns = robot.frames(q)
    share = model.body_mass / model.body_mass.sum()
    return share @ (places + jnp.einsum("bij,bj->bi", turns, model.body_ipos))


def rise(q, v):
    """How high the centre of mass will be, in m, and what it drifts, in m/s."""
    place, speed = jax.jvp(centre, (q,), (v,))
    return place[2] + jnp.maximum(speed[2], 0) ** 2 / (2 * 9.81), speed[0]


def jump(later, t1, dt):
    """The cost at a time, with the height, and the tape."""
    # The first angles are those it has: it stands still.
    angles = jnp.concatenate([squat[None], later])
    sol = hj.simulate(
        robot.system,
        0.0,
        t1,
        (jnp.asarray(q0), jnp.zeros(6)),
        mode0,
        angles,
        solver=diffrax.Bosh3(),
        stepsize_controller=diffrax.ConstantStepSize(),
        dt0=dt,
        saveat=diffrax.SaveAt(t1=True, steps=True),
        max_steps=320,
        max_events=32,
        throw=False,
    )
    height, drift = rise(*sol.x1)
    # Upright enough to land: hardly turning, and on the spot.
    cost = -height + 0.1 * drift**2 + 0.01 * sol.x1[1][2] ** 2
    return cost, (height, sol.ts, sol.xs[0])


program = jax.jit(
    jax.value_and_grad(jump, has_aux=True),
    compiler_options=hj.compiler_options("fast_to_compile"),
)


def check(later):
    """The derivative in some direction, and the central difference."""
    # With short steps: what these err by differs a little from one jump to the next.
    cost = lambda later: program(later, flight, step / 4)
    along = np.random.default_rng(0).normal(size=later.shape)
    slope = float(np.sum(cost(later)[1] * along))
    (above, _), (below, _) = (cost(later + h * along)[0] for h in (1e-5, -1e-5))
    difference = float(above - below) / 2e-5
    print(f"Derivative along a direction: {slope:.6f}")
    print(f"By central differences:       {difference:.6f}")
    assert abs(slope / difference - 1) < 1e-3


def optimise(later, iterations=30):
    """The best angles, and all heights."""
    adam = optax.adam(optax.cosine_decay_schedule(0.05, iterations))
    state, log, best = adam.init(later), [], later
    for k in range(iterations):
        (cost, (height, *_)), slope = program(later, flight, step)
        assert np.isfinite(slope).all()
        log.append((float(cost), float(height)))
        if cost <= min(log)[0]:
            best = later
        if k % 5 == 0 or k == iterations - 1:
            print(f"{k:2}: the centre of mass rises to {height:.3f} m")
        updates, state = adam.update(slope, state)
        later = optax.apply_updates(later, updates)
    return best, np.array(log)[:, 1]


def trajectory(later):
    """Times and configurations at the steps, beyond the landing."""
    _, ts, qs = (np.asarray(a) for a in program(later, film, step)[0][1])
    n = np.isfinite(ts).sum()
    return ts[:n], qs[:n]


def clearance(path):
    """Of the foot, at each of the steps."""
    gaps = jax.jit(jax.vmap(lambda q: robot.system.gap(q, None)))(path[1])
    return np.asarray(gaps)[:, :2].min(axis=1)


#
# The picture
#


def draw(paths, heights, folder):
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")
    for axis, name in zip(axes, ("first guess", "found"), strict=False):
        axis.set(xlim=(-0.8, 0.8), ylim=(-0.05, 1.9), aspect="equal", title=name)
        axis.set(xlabel="distance (m)", ylabel="height (m)")
        axis.axhspan(-0.05, 0, color="0.85")
    axes[2].plot(heights, "k.-")
    axes[2].set(xlabel="iteration", title="height of the centre of mass (m)")
    figure.canvas.draw()  # lines are as wide as the robot: the axes have to be there
    for i, path in enumerate(paths):
        top = path[0][np.argmax(clearance(path))]
        for time, alpha in zip((0.0, 0.2, top), (0.15, 0.3, 1.0), strict=True):
            q = at_times(path, np.array([time]))[0]
            draw_robot(axes[i], model, q, f"C{i}", alpha)
    save(figure, folder / "hopper_jump.png")
    qs = at_times(paths[-1], np.arange(0, film, 0.03))
    film_robot(model, qs, folder / "hopper_jump.gif", 60, (-1.5, 1.5), "half as fast")


if __name__ == "__main__":
    first = guess[1:]
    check(first)
    best, heights = optimise(first)
    paths = [trajectory(later) for later in (first, best)]
    before, after = (100 * clearance(path).max() for path in paths)
    print(f"The foot is {after:.0f} cm above the ground, instead of {before:.0f} cm.")
    assert after > 30 and heights.max() > heights[0] + 0.2
    draw(paths, heights, Path(sys.argv[1] if len(sys.argv) > 1 else "."))
