"""Throw a box on a table so that it comes to rest in a given pose, in three dimensions.

The box is tilted, turns, and is thrown sideways. It lands on a corner, then on another,
goes to and fro between them, lies down, and slides until friction stops it: after some
25 events it rests on four of its eight corners. Newton's method finds the velocity and
the spin of the throw that bring it to a place and a heading on the table. It needs the
derivative of the pose at rest by the throw, through all of this, and converges as
quadratically as on a smooth problem: from 75 cm to nanometres in five steps.

The box is a file of MuJoCo's, as text. Prints the iterations; saves a picture and a
film: `python examples/box_throw.py [folder]`.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from _pictures import save
from matplotlib.animation import FuncAnimation
from mpl_toolkits.mplot3d.art3d import Poly3DCollection


sides = np.array([0.15, 0.1, 0.05])  # half of each, m
model = f"""
<mujoco>
  <worldbody>
    <geom name="table" type="plane" size="1 1 .1"/>
    <body name="box">
      <freejoint/>
      <geom type="box" size="{" ".join(map(str, sides))}" mass="1"/>
    </body>
  </worldbody>
</mujoco>
"""
robot = hj.robots.from_mjcf(model, friction=0.4)
ts = jnp.linspace(0, 1.2, 61)
tilt = np.concatenate([[np.cos(0.15)], np.sin(0.15) * np.array([0.6, 0.8, 0.0])])
target = np.array([0.5, 0.2, np.pi / 4])  # m, m, rad
guess = np.array([1.0, 0.3, 1.0])  # m/s, m/s, rad/s


def at_rest(throw):
    """Place and heading of the box in the end, given its velocity and its spin. And
    once more, with its path, and how it ends."""
    place = jnp.array([0.0, 0.0, 0.25])
    velocity = jnp.array([0.0, 0.0, 0.0, 1.0, -1.5, 0.0])
    sol = hj.simulate(
        robot.system,
        0.0,
        ts[-1],
        (jnp.concatenate([place, tilt]), velocity.at[np.array([0, 1, 5])].set(throw)),
        saveat=diffrax.SaveAt(ts=ts),
        max_events=64,
        throw=False,
    )
    q, v = sol.x1
    heading = 2 * jnp.arctan2(q[6], q[3])
    pose = jnp.append(q[:2], heading)
    return pose, (pose, sol.xs[0], v, sol.mode1, sol.events.count)


push = jax.jit(
    jax.jacfwd(at_rest, has_aux=True),
    compiler_options=hj.compiler_options("fast_to_compile"),
)


def newton(throw):
    """All iterates, with what becomes of them."""
    path = []
    while True:
        jacobian, (pose, qs, v, mode, count) = push(throw)
        away = np.asarray(pose) - target
        print(
            f"{len(path)}: {count} events, {np.linalg.norm(away):.1e} from the target"
        )
        path.append((throw, np.asarray(qs), np.linalg.norm(away)))
        assert np.isfinite(away).all() and len(path) < 12
        if path[-1][-1] < 1e-8:
            assert np.abs(v).max() < 1e-6
            assert (mode == hj.mechanics.ContactMode.STICKING).sum() == 4
            return path
        throw = throw - np.linalg.solve(jacobian, away)


#
# The picture
#

_corners = np.array(list(itertools.product((-1, 1), repeat=3)))
_faces = [_corners[:, i] == side for i in range(3) for side in (-1, 1)]
# Around a face, and not across.
_around = np.array([0, 1, 3, 2])


def draw_box(axes, q, colour, alpha):
    w, x, y, z = q[3:]
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turn = np.eye(3) + 2 * w * cross + 2 * cross @ cross
    corners = q[:3] + (_corners * sides) @ turn.T
    faces = [corners[face][_around] for face in _faces]
    shade: Any = dict(facecolor=colour, edgecolor="k", linewidth=0.5, alpha=alpha)
    return axes.add_collection3d(Poly3DCollection(faces, **shade))


def table(axes, title):
    half = target[2] / 2
    aim = np.concatenate([target[:2], sides[2:], [np.cos(half), 0, 0, np.sin(half)]])
    draw_box(axes, aim, "none", 1.0)
    axes.set(xlim=(-0.2, 0.7), ylim=(-0.25, 0.4), zlim=(0, 0.4), title=title)
    axes.set(xlabel="x (m)", ylabel="y (m)", zlabel="z (m)")
    axes.set(zticks=[0, 0.2, 0.4])
    axes.set_box_aspect((0.9, 0.65, 0.4))
    axes.view_init(28, -65)


def draw(path, folder):
    figure = plt.figure(figsize=(12, 4.2), layout="constrained")
    for i, (k, name) in enumerate([(0, "first guess"), (-1, "found")], start=1):
        axes: Any = figure.add_subplot(1, 3, i, projection="3d")
        table(axes, name)
        qs = path[k][1]
        for j in (0, 5, 9, 12):
            draw_box(axes, qs[j], f"C{i - 1}", 0.15)
        draw_box(axes, qs[-1], f"C{i - 1}", 0.6)
        axes.plot(*qs[:, :3].T, "k:", linewidth=1)
    log = figure.add_subplot(1, 3, 3)
    log.semilogy([away for *_, away in path], "ko-")
    log.set(xlabel="iteration", title="distance from the target (m, rad)")
    save(figure, folder / "box_throw.png")

    figure = plt.figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(projection="3d")
    table(axes, "half as fast as it is")
    shown = []

    def show(j):
        while shown:
            shown.pop().remove()
        shown.append(draw_box(axes, path[0][1][j], "C0", 0.15))
        shown.append(draw_box(axes, path[-1][1][j], "C1", 0.6))

    film = FuncAnimation(figure, show, frames=range(0, len(ts), 2), interval=80)
    film.save(folder / "box_throw.gif", dpi=70)
    print(f"The film is in {folder / 'box_throw.gif'}.")


if __name__ == "__main__":
    path = newton(guess)
    vx, vy, spin = path[-1][0]
    print(f"To be thrown at {vx:.3f}, {vy:.3f} m/s, with a spin of {spin:.3f} rad/s")
    draw(path, Path(sys.argv[1] if len(sys.argv) > 1 else "."))
