"""How a passive walker loses its step: period doubling up to chaos.

A compass gait walks down a slope without a motor. At 3 degrees it takes equal steps. On
a steeper slope every second step is longer, then every fourth, and soon no two are the
same. Its orbits are found by Newton's method and followed by continuation, whether they
are stable or not; the attractor is found by walking. They agree.
"""

from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import matplotlib.pyplot as plt
import numpy as np
from _pictures import save
from hybridjax.analysis import continue_orbit, return_map, Section
from hybridjax.models import CompassGait


few: Any = dict(max_events=8, max_steps=256)
# Who walks 300 steps needs fewer digits than Newton's method.
coarse = diffrax.PIDController(rtol=1e-6, atol=1e-6)
start, end = np.deg2rad([3.0, 5.2])
# Right after a landing: angles of swing and stance leg, and their rates.
x0 = jnp.array([-0.3234, 0.2187, -0.3772, -1.0918])


def walker(slope):
    return CompassGait(slope=slope)


def steps(count):
    """So many make a period: the section is where the swing foot lands."""
    # An array, so that all periods share a program.
    return Section(1, count, max_time=jnp.asarray(1.5 * count))


#
# Orbits
#

branches, doublings = [], []
x, slope, tangent = x0, start, None
for count, length in ((1, 0.01), (2, 0.005), (4, 0.003)):
    branch = continue_orbit(
        walker,
        slope,
        steps(count),
        x,
        0,
        step=length,
        num_attempts=60,
        tangent=tangent,
        bounds=(0.0, end),
        throw=False,
        **few,
    )
    branches.append((count, branch))
    if count == 1:
        print(f"At 3 degrees a step takes {branch.period[0]:.6f} s. Its multipliers,")
        print("beside that of a shift in time:", np.round(branch.multipliers[0], 6))
    found = [b for b in branch.bifurcations() if b.kind == "period_doubling"]
    if not found:
        break
    doublings.append(found[0].parameter)
    print(f"Period {count} doubles at {np.rad2deg(found[0].parameter):.4f} degrees.")
    (x, tangent), slope = branch.doubled(found[0]), found[0].parameter


#
# Walking
#


def step(x, slope):
    after = return_map(
        walker(slope),
        steps(1),
        x,
        0,
        throw=False,
        stepsize_controller=coarse,
        **few,
    )
    return after.x, after.time


@jax.jit
@jax.vmap
def walk(slope, x):
    """The durations of 300 steps; NaN from where it fell."""
    return jax.lax.scan(lambda x, _: step(x, slope), x, None, length=300)[1]


# A little beside the orbit of period 1: where that is not stable, it is left.
_, single = branches[0]
n = int(single.count)
slopes = np.linspace(np.deg2rad(4.2), end, 150)
at = [np.interp(slopes, single.parameter[:n], x) for x in np.asarray(single.x[:n]).T]
times = np.asarray(walk(slopes, np.stack(at, axis=1) * 1.001))
walks = np.isfinite(times).all(axis=1)
print(
    f"{walks.sum()} of {len(slopes)} walkers are still on their feet after 300 steps."
)


#
# The picture
#

figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
last = times[:, -60:]
degrees = np.rad2deg(np.repeat(slopes[:, None], last.shape[1], axis=1))
axis.plot(degrees, last, ".", color="0.55", markersize=1.5, zorder=0)
colors = {1: "C0", 2: "C1", 4: "C3"}
each = jax.jit(jax.vmap(step))
for count, branch in branches:
    # All rows: beyond the last orbit they are NaN, and are not drawn.
    slope, x, own = np.asarray(branch.parameter), branch.x, []
    for _ in range(count):
        x, time = each(x, slope)
        own.append(np.where(np.isfinite(slope), time, np.nan))
    own = np.stack(own, axis=1)
    stable = np.asarray(branch.is_stable)[:, None]
    for shown, style in ((stable, "-"), (~stable, "--")):
        # A line goes on to the orbit at which it changes.
        near = shown | np.roll(shown, 1, axis=0)
        lines = axis.plot(
            np.rad2deg(slope),
            np.where(near, own, np.nan),
            style,
            color=colors[count],
            linewidth=1.3,
        )
        kind = "stable" if style == "-" else "unstable"
        lines[0].set_label(f"period {count}, {kind}")
axis.set(
    xlim=(4.2, 5.22),
    ylim=(0.62, 0.85),
    xlabel="slope (degrees)",
    ylabel="duration of a step (s)",
    title="Compass gait: orbits by continuation, on the attractor by walking",
)
axis.legend(loc="upper left", fontsize=9)
save(figure, "compass_gait.png")


# Where the orbit is stable, by a margin, walks come back to it.
stable = np.asarray(slopes < doublings[0] - np.deg2rad(0.1))
n = int(single.count)
exact = np.interp(slopes, single.parameter[:n], single.period[:n])
error = np.abs(times[:, -1] - exact)[stable].max()
print(f"Steps by walking differ from those of the orbit by {error:.1e} s at most.")
assert error < 1e-4  # not NaN: none of them fell
assert len(doublings) == 3
