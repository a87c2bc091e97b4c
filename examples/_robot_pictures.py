"""How examples draw robots from files: in the plane of a figure, and as a film."""

import importlib
import os
import sys
from typing import Any


# MuJoCo reads it when it is imported. Without it, it looks for a screen.
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation
from PIL import Image


# Its names are those of a compiled module, which checkers do not see.
mujoco: Any = importlib.import_module("mujoco")


def at_times(path, times):
    """Configurations at these times, linear between steps of the solver: of a path, its
    times and configurations."""
    ts, qs = path
    return np.stack([np.interp(times, ts, q) for q in qs.T], axis=1)


def draw_robot(axes, model, q, colour, alpha=1.0):
    """Its capsules, seen along y, as lines as wide as they are on paper."""
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    inch = axes.get_figure().dpi_scale_trans.transform((1, 1))[0]
    metre = np.diff(axes.transData.transform([(0, 0), (1, 0)])[:, 0])[0]
    lines: list[Any] = []
    for i in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE):
        radius, half = model.geom_size[i, :2]
        along = half * data.geom_xmat[i].reshape(3, 3)[:, 2]
        ends = np.stack([data.geom_xpos[i] - along, data.geom_xpos[i] + along])
        width = 72 * 2 * radius * metre / inch
        style = dict(color=colour, alpha=alpha, linewidth=width)
        lines += axes.plot(*ends[:, [0, 2]].T, solid_capstyle="round", **style)
    return lines


def film_robot(model, qs, path, interval, xlim, name):
    """A GIF with a frame for each of `qs`, every `interval` ms: by MuJoCo's renderer,
    where there is an OpenGL, else drawn in the plane."""
    try:
        frames = _rendered(model, qs, xlim)
    # What is missing, and what it raises, depends on the platform.
    except Exception as error:
        print(f"MuJoCo does not render here ({type(error).__name__}): drawn instead.")
        _drawn(model, qs, path, interval, xlim, name)
    else:
        frames[0].save(
            path, save_all=True, append_images=frames[1:], duration=interval, loop=0
        )
    print(f"The film is in {path}.")


def _rendered(model, qs, xlim):
    data, camera = mujoco.MjData(model), mujoco.MjvCamera()
    camera.azimuth, camera.elevation = 90, -8
    camera.lookat[:] = [np.mean(xlim), 0, 0.75]
    # As wide as the limits, by the angle of view, which is that of the height.
    width, height = 480, 270
    tangent = np.tan(np.deg2rad(model.vis.global_.fovy) / 2)
    camera.distance = np.ptp(xlim) / 2 * height / width / tangent
    frames = []
    with mujoco.Renderer(model, height, width) as renderer:
        # A mirror takes longer to draw than all the rest.
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        for q in qs:
            data.qpos[:] = q
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            frames.append(Image.fromarray(renderer.render()))
    return frames


def _drawn(model, qs, path, interval, xlim, name):
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    axes.set(xlim=xlim, ylim=(-0.1, 1.7), aspect="equal", title=name)
    axes.axhspan(-0.1, 0, color="0.85")
    figure.canvas.draw()
    shown = []

    def show(k):
        while shown:
            shown.pop().remove()
        shown.extend(draw_robot(axes, model, qs[k], "C1"))

    film = FuncAnimation(figure, show, frames=len(qs), interval=interval)
    film.save(path, dpi=80)
