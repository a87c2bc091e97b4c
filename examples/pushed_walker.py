"""Push a walker: a regulator that goes by the clock, and one that goes by events.

A compass gait walks down a slope so steep that its gait is unstable. Motors at hip and
ankle hold it, by a linear quadratic regulator across the landings. After a push the
foot lands sooner or later than planned. Until both have landed, a reference that goes
by the clock has the legs the other way round: as seen from there, they are far from
where they should be, and strong motors push them about. A reference that goes by the
number of events waits for the foot, or comes along. Weak motors can do less harm: with
them more walkers stay on their feet by the clock, but fewer come back to their gait.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import matplotlib.pyplot as plt
import numpy as np
from _pictures import save
from hybridjax import control
from hybridjax.analysis import continue_orbit, Section
from hybridjax.models import CompassGait
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch


knots, steps = 12, 5  # knots of each step; how many it should walk after the push
pushes = np.linspace(-1.0, 1.0, 14)  # of the hip, downhill, m/s
few: Any = dict(
    max_events=3,
    max_steps=24,
    solver=diffrax.Bosh3(),
    stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
)


#
# The gait, and its regulator
#

# From the slope where it is stable and known: 3 degrees.
branch = continue_orbit(
    lambda slope: CompassGait(slope=slope),
    np.deg2rad(3.0),
    Section(1, max_time=1.5),
    jnp.array([-0.3234, 0.2187, -0.3772, -1.0918]),
    0,
    step=0.02,
    num_attempts=8,
    bounds=(0.0, np.deg2rad(4.9)),
    max_events=3,
    max_steps=512,
    solver=diffrax.Bosh3(),
)
orbit = branch.count - 1
walker, period = CompassGait(slope=branch.parameter[orbit]), branch.period[orbit]
multipliers = np.round(branch.multipliers[orbit].real, 3)
print(f"At {np.rad2deg(walker.slope):.2f} degrees a step takes {period:.4f} s.")
print("The multipliers of the gait without motors:", multipliers)

# Two steps more than what is walked: pushes are at each knot of the first, and the last
# is there so that the end of the regulator is far. The first interval is half as long
# as the others, so that no knot is at a landing.
number = knots * (steps + 2)
ts = period * jnp.maximum(jnp.arange(number + 1) - 0.5, 0) / knots


@jax.jit
def plan():
    still = jnp.zeros((number, 2))
    weights = jnp.eye(4), 0.01 * jnp.eye(2), jnp.eye(4)
    lqr = control.tracking_lqr(walker, ts, branch.x[orbit], 0, still, *weights, **few)
    events, reach = 2 * (steps + 2), 0.4 * period
    return control.extend_reference(walker, lqr, reach, total_events=events, **few)


#
# Pushes
#


def onward(whole, k):
    """The reference from knot `k` on."""
    done, n = whole.counts[k], knots * steps
    cut = jax.lax.dynamic_slice_in_dim
    piece = lambda a: cut(a, done, 2 * steps + 1)
    return control.ExtendedReference(
        ts=cut(whole.ts, k, n + 1),
        xs=cut(piece(whole.xs), k, n + 1, 1),
        us=cut(piece(whole.us), k, n, 1),
        K=cut(piece(whole.K), k, n, 1),
        modes=piece(whole.modes),
        counts=cut(whole.counts, k, n + 1) - done,
    )


def walk(whole, k, push, strength, by):
    """0 for a walker that falls, 1 for one that does not, and 2 for one that is back on
    its gait at the end; and the largest torque."""
    reference = onward(whole, k)
    pushed = reference.xs[0, 0].at[3].add(-push)  # legs are 1 m long
    bounds: Any = dict(lower=-strength, upper=strength)
    mode = reference.modes[0]
    run = control.track(walker, reference, pushed, mode, by=by, **bounds, **few)
    upright = jnp.all(jnp.abs(run.xs[:, 1]) < 1.0)
    in_step = jnp.abs(run.counts[-1] - reference.counts[-1]) <= 2
    walks = upright & in_step
    back = jnp.linalg.norm(run.error[-1]) < 0.05
    return walks.astype(int) + (walks & back), jnp.max(jnp.abs(run.us))


@functools.partial(jax.jit, static_argnames="by")
def walks(whole, strengths, by):
    """For all of these motors, knots of a step, and pushes."""
    ranges = jnp.asarray(strengths), 1 + jnp.arange(knots), jnp.asarray(pushes)
    lanes = [a.ravel() for a in jnp.meshgrid(*ranges, indexing="ij")]
    run = jax.vmap(lambda s, k, push: walk(whole, k, push, s, by))(*lanes)
    return [a.reshape([r.size for r in ranges]) for a in run]


whole, runs = plan(), {}
for by, strengths in (("events", (0.0, 30.0, 100.0)), ("clock", (30.0, 100.0))):
    for strength, ends, torques in zip(
        strengths, *map(np.asarray, walks(whole, strengths, by)), strict=True
    ):
        runs[strength, by] = ends, np.median(torques)

names = {(0.0, "events"): "without motors"}
print(f"\nOf {knots * len(pushes)} pushes it:      walks on     is back on its gait")
for key in sorted(runs):
    strength, by = key
    names.setdefault(key, f"{strength:.0f} N m, by {by}")
    ends, torque = runs[key]
    print(
        f"{names[key]:18} {np.mean(ends > 0):12.0%} {np.mean(ends == 2):15.0%}", end=""
    )
    print(f"   (largest torque, median: {torque:.0f} N m)")


#
# The picture
#

figure, axes = plt.subplots(
    1, len(runs), figsize=(13, 3.6), sharey=True, layout="constrained"
)
colors = ListedColormap(["0.25", "C1", "C0"])
phases = (np.arange(knots) + 0.5) / knots
for axis, key in zip(axes, sorted(runs), strict=True):
    axis.pcolormesh(phases, pushes, runs[key][0].T, cmap=colors, vmin=0, vmax=2)
    axis.set(xlabel="phase of the push", title=names[key], xlim=(0, 1))
axes[0].set_ylabel("push downhill (m/s)")
labels = "falls", "walks on", "is back on its gait"
patches = [Patch(color=colors(i)) for i in range(3)]
figure.legend(patches, labels, ncols=3, loc="outside lower center")
save(figure, "pushed_walker.png")

back = {key: np.mean(ends == 2) for key, (ends, _) in runs.items()}
assert back[0.0, "events"] == 0
for strength in (30.0, 100.0):
    assert back[strength, "events"] > 0.8
    assert back[strength, "events"] > back[strength, "clock"] + 0.1
