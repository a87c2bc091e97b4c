"""What the examples with planar robots share: splines, and pictures of the robots."""

import itertools

import jax.numpy as jnp
import numpy as np


def spline(knots, t, spacing):
    """Cubic B-splines, with the first knot at `t = -spacing`."""
    s = jnp.abs(t / spacing + 1 - jnp.arange(knots.shape[0]))
    near, far = 2 / 3 - s**2 + s**3 / 2, jnp.maximum(2 - s, 0.0) ** 3 / 6
    return jnp.where(s < 1, near, far) @ knots


def points(q, lengths):
    """Head and hip, and then knee and foot of each leg: shape `(..., points, 2)`."""
    torso, thigh, shank = lengths
    down = jnp.stack([jnp.sin(q[..., 2:]), -jnp.cos(q[..., 2:])], axis=-1)
    hip = q[..., None, :2]
    knees = hip + thigh * down[..., 1::2, :]
    legs = jnp.stack([knees, knees + shank * down[..., 2::2, :]], axis=-2)
    legs = legs.reshape(*q.shape[:-1], -1, 2)
    return jnp.concatenate([hip - torso * down[..., :1, :], hip, legs], axis=-2)


def _parts(points):
    """The lines of torso and legs."""
    legs = [[1, foot - 1, foot] for foot in range(3, points.shape[-2], 2)]
    return [points[part] for part in ([0, 1], *legs)]


def draw_robot(axes, points, colour, **style):
    style = dict(color=colour, linewidth=2, markersize=4, **style)
    return [axes.plot(*part.T, "o-", **style)[0] for part in _parts(points)]


def film(figure, robots, paths, file):
    """Saves a film in which robots, the lines of each, go along their paths: five times
    slower than in reality, of paths with 100 points in a second, and then a pause."""
    from PIL import Image

    # All but the robots is drawn once, not for each frame.
    figure.set_dpi(70)
    canvas = figure.canvas
    for line in itertools.chain(*robots):
        line.set_animated(True)
    canvas.draw()
    scenery, frames = canvas.copy_from_bbox(figure.bbox), []
    for i in [*range(0, len(paths[0]), 2), len(paths[0]) - 1]:
        canvas.restore_region(scenery)
        for lines, path in zip(robots, paths, strict=True):
            for line, part in zip(lines, _parts(path[i]), strict=True):
                line.set_data(*part.T)
                line.axes.draw_artist(line)
        frames.append(Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB"))
    shown = [100] * (len(frames) - 1) + [800]  # ms
    frames[0].save(
        file, save_all=True, append_images=frames[1:], duration=shown, loop=0
    )
    print(f"The film is in {file}.")
