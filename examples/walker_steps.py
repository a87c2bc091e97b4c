"""Make gymnasium's walker2d walk ten steps, on a gait that is found by gradient.

The robot is read from its file: two legs with feet and a torso, 24 kg, with motors of
up to 100 N m. They are servos here, towards angles that are piecewise linear in time. A
step begins with one foot flat on the ground, and ends with the other; when the heel
rises, the other foot lands and the toe leaves, and in which order, is not prescribed.

A gait is a state, and angles for the servos, after which the legs have changed places.
It is found by least squares (Levenberg, Marquardt), from a guess. The gait is unstable.
The same Jacobian of the step, by its state and its angles, gives the regulator that
holds it, which corrects the angles once in each step.

Feet do not slip, whatever the forces are. (In the file one foot has a friction of 0.9,
and the other one of 1.9, with which a foot that slides may have no contact force that
agrees with it: Painlevé's paradox.) Hips bend backward only, and so the torso leans
back. Prints the iterations, the Jacobian beside finite differences, and the steps;
saves a picture and a film: `python examples/walker_steps.py [folder]`.
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
from _pictures import save
from _robot_pictures import at_times, draw_robot, film_robot
from hybridjax.mechanics import ContactMode


assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
stiffness = np.array([300.0, 300.0, 100.0] * 2)  # N m/rad, of hip, knee and ankle
damping = np.array([15.0, 15.0, 4.0] * 2)  # N m s/rad
duration, speed, knots = 0.4, 0.5, 5  # of a step: s, m/s, and knots of its angles


guess = np.array(
    [
        # Angles of the torso and of the joints, and their rates.
        *[-0.63, -0.45, -0.2, 0.06, -0.26, -0.71, 0.47],
        *[-0.23, -0.9, 0.43, 0.23, 0.02, 2.77, -2.89],
        # Those for the servos, at all knots but the first.
        *[-0.4, -0.07, 0.24, -0.17, -0.6, 0.27],
        *[-0.52, -0.1, 0.19, -0.17, -0.31, -0.07],
        *[-0.06, -0.87, 0.65, -0.57, -0.27, 0.04],
        *[-0.16, -0.53, 0.37, -0.59, -0.21, 0.09],
    ]
)


def servo(t, q, v, angles):
    place = t / duration * (knots - 1)
    weights = jnp.maximum(0, 1 - jnp.abs(place - jnp.arange(knots)))
    return (stiffness * (weights @ angles - q[3:]) - damping * v[3:]) / torque


# Two points of each foot, and two limits of each joint, which have no friction.
robot = hj.robots.from_mjcf(
    assets / "walker2d.xml",
    control=servo,
    contacts=["foot_geom", "foot_left_geom"],
    friction=0.9,
    static_friction=np.array([jnp.inf] * 4 + [0.0] * 12),
    rest_speed=1e-3,
)
model = robot.model
torque = model.actuator_gear[:, 0]  # N m, at a control of 1
toe, new_toe = 1, 3  # of the contacts: that of the foot which stands, and of the other
stands = np.array([ContactMode.FREE] * 16)
stands[toe] = ContactMode.STICKING
# The torso and the joints, when legs change places.
other = np.array([0, 4, 5, 6, 1, 2, 3])


def start(state):
    """Angles of the torso and of the joints, and their rates, those of the leg that
    stands first, as a state of the robot: its toe is on the ground, and at rest."""
    turns, rates = jnp.split(state, 2)
    x, z = jnp.eye(9)[:2]
    q, v = (jnp.concatenate([jnp.zeros(2), a]) for a in (turns, rates))
    q = q - z * robot.system.gap(q, None)[toe]
    slip = robot.system.tangents(q, None)[toe] @ v
    rise = robot.system.normals(q, None)[toe] @ v
    return q, v - x * slip - z * rise


def step(unknowns):
    """What becomes of a state in a step, with the angles for the servos, both in one
    vector: the state after it, how far the hip went, and the gap of the new foot. And
    with the modes at the end, and the path."""
    state, later = unknowns[:14], unknowns[14:].reshape(knots - 1, 6)
    x0 = start(state)
    # At first the servos do not pull: whatever the state is, the toe stands.
    first = state[1:7] + damping / stiffness * state[8:]
    sol = hj.simulate(
        robot.system,
        0.0,
        duration,
        x0,
        stands,
        jnp.concatenate([first[None], later]),
        solver=diffrax.Bosh3(),
        stepsize_controller=diffrax.ConstantStepSize(),
        dt0=0.004,
        saveat=diffrax.SaveAt(t1=True, steps=True),
        max_steps=160,
        max_events=32,
        throw=False,
    )
    q, v = sol.x1
    gap = robot.system.gap(q, None)[new_toe]
    far = q[0] - x0[0][0]
    after = jnp.concatenate([q[2:][other], v[2:][other], jnp.stack([far, gap])])
    return after, (after, sol.mode1, sol.ts, sol.xs[0])


options = hj.compiler_options("fast_to_compile")
forward = jax.jit(step, compiler_options=options)
with_jacobian = jax.jit(jax.jacrev(step, has_aux=True), compiler_options=options)


# How much it matters: angles, rates, how far, and the gap.
weights = np.array([3.0] * 7 + [0.3] * 7 + [5.0, 10.0])


def residuals(unknowns):
    """What is to be zero, with its Jacobian, and that of the step."""
    jacobian, (after, *_) = with_jacobian(unknowns)
    aim = np.concatenate([unknowns[:14], [speed * duration, 0.0]])
    before = np.eye(*jacobian.shape) * (np.arange(16) < 14)[:, None]
    return weights * (after - aim), weights[:, None] * (jacobian - before), jacobian


def gait(unknowns):
    """One near a guess, with the Jacobian of its step, and how far off it is on the
    way."""
    damping, log = 0.1, []
    away, slopes, jacobian = residuals(unknowns)
    for k in range(20):
        log.append(np.linalg.norm(away))
        print(f"{k:2}: {log[-1]:.1e} from a gait, damping {damping:.0e}", flush=True)
        if log[-1] < 1e-4:
            break
        # There are more unknowns than equations.
        normal = slopes @ slopes.T + damping * np.eye(len(away))
        trial = unknowns - slopes.T @ np.linalg.solve(normal, away)
        new = residuals(trial)
        # (A simulation that fails is not finite.)
        if np.linalg.norm(new[0]) < log[-1] and np.isfinite(new[1]).all():
            unknowns, (away, slopes, jacobian), damping = trial, new, damping / 10
        else:
            damping *= 8
    assert log[-1] < 1e-4
    return unknowns, np.asarray(jacobian), np.array(log)


def check(unknowns, jacobian):
    """The Jacobian along a direction, and the central difference."""
    along = np.random.default_rng(0).normal(size=len(unknowns))
    slope = jacobian @ along
    above, below = (forward(unknowns + h * along)[0] for h in (1e-6, -1e-6))
    difference = (above - below) / 2e-6
    error = np.linalg.norm(slope - difference) / np.linalg.norm(difference)
    print(f"The Jacobian differs from finite differences by a share of {error:.1e}.")
    assert error < 1e-2


def regulator(jacobian):
    """Gains, by which the state corrects the angles: linear and quadratic."""
    a, b = jacobian[:14, :14], jacobian[:14, 14:]
    cost = jnp.diag(jnp.asarray(weights[:14]) ** 2)
    found = hj.control.periodic_riccati(a[None], b[None], cost, jnp.eye(b.shape[1]))
    assert found.result == hj.control.RESULTS.successful
    gains = np.asarray(found.K[0])
    free, held = (np.abs(np.linalg.eigvals(m)).max() for m in (a, a - b @ gains))
    print(f"From step to step errors grow by {free:.1f}; held, by {held:.2f}.")
    return gains


def walk(state, found, gains, steps):
    """Times and configurations of steps, one after the other, from a state."""
    ts, qs, way = [], [], 0.0
    for k in range(steps):
        angles = found[14:] - gains @ (state - found[:14])
        _, (after, modes, t, q) = forward(np.concatenate([state, angles]))
        t, after = np.asarray(t), np.asarray(after)
        t, q = t[np.isfinite(t)], np.asarray(q)[np.isfinite(t)]
        # On the other toe, and nothing else touches anything.
        assert (np.flatnonzero(ContactMode.physical(modes)) == [new_toe]).all()
        ts.append(t + k * duration)
        turns = q[:, 2:][:, other] if k % 2 else q[:, 2:]
        qs.append(np.concatenate([q[:, :1] + way, q[:, 1:2], turns], axis=1))
        state, way = after[:14], way + after[14]
        off = np.linalg.norm(weights[:14] * (state - found[:14]))
        print(f"Step {k + 1:2}: {way:.3f} m, {off:.1e} off the gait")
    return np.concatenate(ts), np.concatenate(qs)


#
# The picture
#


def draw(path, log, folder):
    figure, axes = plt.subplots(
        2, 1, figsize=(10, 6), layout="constrained", height_ratios=(2, 1)
    )
    upper, lower = axes
    end = path[1][-1, 0]
    upper.set(xlim=(-0.6, end + 0.6), ylim=(-0.05, 1.6), aspect="equal")
    upper.set(xlabel="distance (m)", ylabel="height (m)")
    upper.axhspan(-0.05, 0, color="0.85")
    figure.canvas.draw()  # lines are as wide as the robot: the axes have to be there
    times = duration * np.arange(0, 10.1, 2.5)
    for q, alpha in zip(at_times(path, times), np.linspace(0.3, 1, 5), strict=True):
        draw_robot(upper, model, q, "C1", alpha)
    lower.semilogy(log, "ko-")
    lower.set(xticks=range(len(log)), xlabel="iteration", ylabel="how far from a gait")
    save(figure, folder / "walker_steps.png")
    qs = at_times(path, np.arange(0, path[0][-1], 0.08))
    film_robot(model, qs, folder / "walker_steps.gif", 80, (-0.8, end + 0.8), "walker")


def main(folder: Path) -> None:
    found, jacobian, log = gait(guess)
    check(found, jacobian)
    gains = regulator(jacobian)
    # Pushed: other angles and rates than those of the gait.
    pushed = found[:14] + 3e-3 * np.random.default_rng(0).normal(size=14)
    path = walk(pushed, found, gains, 10)
    draw(path, log, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
