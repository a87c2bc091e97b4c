"""Estimate where a ball is that bounces, from noisy measurements of its height.

A Kalman filter needs to know what an impact makes of uncertainty. Often the Jacobian of
the reset is taken for that: the ball bounces back with a part of its speed, so that
errors of the speed become smaller. But a ball that is higher than one thinks also lands
later, and flies down for longer where the estimate flies up again. The saltation matrix
knows that. With measurements that are few, it is the difference between a filter that
knows how wrong it is, and one that is too sure of itself.
"""

from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import matplotlib.pyplot as plt
import numpy as np
from _pictures import save
from hybridjax.estimation import kalman_filter
from hybridjax.models import BouncingBall


ball = BouncingBall(restitution=0.8)
mean, spread = jnp.array([3.0, 0.0]), jnp.array([0.15, 0.3])  # m, m/s
noise = 0.1  # m, of a measurement
trials, until = 300, 3.0
ts = jnp.array([0.25, 0.5, 1.1, 1.5, 1.9, 2.5, 3.0])
few: Any = dict(max_steps=64, max_events=8, throw=False)


def draw(key):
    """A ball, and measurements of its height."""
    start, measurements = jax.random.split(key)
    x0 = mean + spread * jax.random.normal(start, (2,))
    saveat = diffrax.SaveAt(ts=ts)
    sol = hj.simulate(ball, 0.0, until, x0, 0, saveat=saveat, **few)
    ys = sol.xs[:, :1] + noise * jax.random.normal(measurements, (ts.size, 1))
    return x0, sol.xs, ys


def estimate(ys, saltation):
    return kalman_filter(
        ball,
        0.0,
        ts,
        ys,
        mean,
        jnp.diag(spread),
        0,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=noise * jnp.eye(1),
        saltation=saltation,
        **few,
    )


@jax.jit
def experiment(keys):
    """Errors, and squared errors in units of what the filters expect (NEES)."""
    _, xs, ys = jax.vmap(draw)(keys)
    results = []
    for saltation in (True, False):
        found = jax.vmap(lambda ys, s=saltation: estimate(ys, s))(ys)
        error = found.xs - xs
        white = jax.vmap(jax.vmap(jnp.linalg.solve))(found.roots, error)
        results.append((error, jnp.sum(white**2, axis=-1), found.xs, found.roots))
    return xs, ys, results


xs, ys, results = jax.tree.map(
    np.asarray, experiment(jax.random.split(jax.random.key(1), trials))
)
names = "saltation matrix", "Jacobian of the reset"
# Where a ball and its estimate are on different sides of an impact they are far apart
# at equal times, however good the estimate: those are left out.
speeds = np.stack([error[..., 1] for error, *_ in results])
apart = np.all(np.abs(speeds) < 3.0, axis=0)

print(
    f"{trials} balls, {ts.size} measurements each. At the end, after three impacts:\n"
)
print(f"{'':24}  rms error of height  of speed   mean NEES (2 is right)")
for name, (error, nees, _, _) in zip(names, results, strict=True):
    last = apart[:, -1]
    rms = np.sqrt(np.mean(error[last, -1] ** 2, axis=0))
    print(
        f"{name:24} {rms[0]:18.3f} m {rms[1]:7.3f} m/s {np.mean(nees[last, -1]):12.2f}"
    )
left_out = np.sum(~apart[:, -1])
print(f"\n{left_out} balls are left out, between their impact and the estimate's.")


#
# The picture
#

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
trial = 3
times = jnp.linspace(0, until, 400)
x0 = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), trials))[0][trial]
truth = hj.simulate(ball, 0.0, until, x0, 0, **few).evaluate(times)
left.plot(times, truth[:, 0], color="0.6", linewidth=1, label="the ball")
left.plot(ts, ys[trial, :, 0], "kx", markersize=5, label="measured")
for name, color, offset, (_, _, found, roots) in zip(
    names, ("C0", "C3"), (-0.015, 0.015), results, strict=True
):
    height, root = found[trial, :, 0], roots[trial, :, 0]
    left.errorbar(
        ts + offset,
        height,
        2 * np.linalg.norm(root, axis=-1),
        fmt="o",
        markersize=3,
        capsize=3,
        color=color,
        label=name,
    )
left.set(xlabel="time (s)", ylabel="height (m)", title="One ball, and two deviations")
left.legend(fontsize=8)
for name, color, (_, nees, _, _) in zip(names, ("C0", "C3"), results, strict=True):
    mean_nees = [np.mean(n[a]) for n, a in zip(nees.T, apart.T, strict=True)]
    right.plot(ts, mean_nees, "o-", color=color, label=name)
# Of the mean of so many samples of chi squared with two degrees of freedom.
band = 2 + 1.96 * 2 / np.sqrt(trials) * np.array([-1, 1])
right.axhspan(*band, color="0.85", zorder=0, label="95 % of consistent filters")
right.set(
    xlabel="time (s)",
    ylabel="normalised squared error of the state",
    title=f"Mean over {trials} balls",
)
right.legend(fontsize=8)
save(figure, "salted_filter.png")

salted, naive = (np.mean(nees[apart[:, -1], -1]) for _, nees, _, _ in results)
assert 1.5 < salted < 2.7 and naive > 4
