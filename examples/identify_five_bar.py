"""Identify a mechanism from noisy measurements, through its impacts.

The height of point 2 of the five-bar mechanism is measured while it bounces on the
ground. What are the natural lengths of its two springs, and the coefficient of
restitution? Levenberg-Marquardt of optimistix fits them, from guesses 10 % off, to all
sides; its Jacobians are derivatives of `hj.simulate` through impacts, whose number
differs from one iteration to the next.

A guess with the wrong number of impacts is on the wrong hill. So the first fit is to
0.15 s, before the first impact, and each one after it to twice that time, from where
the last one ended.

Prints the estimate, its covariance, and how far it is from the truth; saves a picture:
`python examples/identify_five_bar.py [folder]`.
"""

import functools
import itertools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optimistix as optx


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from _pictures import save
from hybridjax.models import five_bar, five_bar_start


jit = functools.partial(
    jax.jit, compiler_options=hj.compiler_options("fast_to_compile")
)


names = ("L01 (m)", "L02 (m)", "e")
truth = jnp.array([5.0**0.5, 4.25**0.5, 0.8])
times = jnp.linspace(0.0, 2.4, 121)[1:]
horizons = (0.15, 0.3, 0.6, 1.2, 2.4)
noise = 2e-3  # standard deviation, m


def heights(parameters, until):
    """Of point 2, at all times up to `until`, and the number of impacts."""
    sol = hj.simulate(
        five_bar(parameters[:2], parameters[2]),
        0.0,
        until,
        five_bar_start(),
        "moving",
        stepsize_controller=diffrax.PIDController(rtol=1e-7, atol=1e-7),
        saveat=diffrax.SaveAt(ts=jnp.minimum(times, until)),
        max_steps=1024,
        max_events=32,
        throw=False,  # A step that is too bold gives NaN, and is not taken.
    )
    (q, _), count = sol.xs, sol.events.count
    return q[:, 3], count


def unbounded(parameters):
    """The restitution is between 0 and 1."""
    return parameters.at[2].set(jax.scipy.special.logit(parameters[2]))


def bounded(unknowns):
    return unknowns.at[2].set(jax.nn.sigmoid(unknowns[2]))


def residuals(unknowns, data):
    measured, until = data
    model, _ = heights(bounded(unknowns), until)
    return jnp.where(times <= until, (model - measured) / noise, 0.0)


@jit
@jax.vmap
def fit(unknowns, measured, until):
    solver = optx.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
    data = measured, until
    found = optx.least_squares(
        residuals, solver, unknowns, data, max_steps=100, throw=False
    )
    return found.value, found.stats["num_steps"]


@jit
def linearised(parameters):
    (model, count), push = jax.linearize(lambda p: heights(p, times[-1]), parameters)
    return model, count, jax.vmap(lambda e: push(e)[0], out_axes=1)(jnp.eye(3))


def main(folder):
    clean, impacts, _ = linearised(truth)
    rng = np.random.default_rng(0)
    measured = clean + noise * jnp.asarray(rng.standard_normal(len(times)))
    print(f"{len(times)} heights up to {times[-1]} s, through {impacts} impacts,")
    print(f"with a noise of {1e3 * noise} mm")

    signs = np.array(list(itertools.product((-1, 1), repeat=3)))
    guesses = truth * (1 + 0.1 * jnp.asarray(signs))
    unknowns = jax.vmap(unbounded)(guesses)
    every = lambda a: jnp.broadcast_to(a, (len(guesses),) + jnp.shape(a))
    for until in horizons:
        unknowns, steps = fit(unknowns, every(measured), every(until))
        print(f"fit up to {until} s: at most {jnp.max(steps)} iterations")
    estimates = jax.vmap(bounded)(unknowns)
    estimate = estimates[0]
    spread = jnp.max(jnp.abs(estimates - estimate[None]))
    print(f"the {len(guesses)} guesses end within {spread:.1e} of each other")

    model, _, jacobian = linearised(estimate)
    covariance = noise**2 * jnp.linalg.inv(jacobian.T @ jacobian)
    deviations = jnp.sqrt(jnp.diagonal(covariance))
    for name, value, deviation, true in zip(
        names, estimate, deviations, truth, strict=True
    ):
        print(f"{name:8} {value:.5f} +- {deviation:.5f}, in truth {true:.5f}")
    print("covariance:")
    for row in covariance:
        print("  " + " ".join(f"{entry:10.2e}" for entry in row))
    misfit = jnp.sum(((model - measured) / noise) ** 2)
    print(f"sum of squares, over the noise: {misfit:.1f} ({len(times) - 3} expected)")
    assert spread < 1e-5
    assert jnp.all(jnp.abs(estimate - truth) < 4 * deviations)

    guess, _, _ = linearised(guesses[2])
    draw(folder, measured, model, guess, estimate, covariance)


def draw(folder, measured, model, guess, estimate, covariance):
    figure, (motion, region) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1))
    motion.plot(times, measured, "k.", ms=4, label="measured")
    motion.plot(times, guess, "C7--", label="a guess")
    motion.plot(times, model, "C0", label="fit")
    motion.set_xlabel("time (s)")
    motion.set_ylabel("height of point 2 (m)")
    motion.legend(loc="upper right")

    circle = np.stack([f(np.linspace(0, 2 * np.pi, 200)) for f in (np.cos, np.sin)])
    factor = np.linalg.cholesky(np.asarray(covariance)[:2, :2])
    for size in (1, 2):
        offset = 1e3 * size * factor @ circle
        region.plot(*offset, "C0", lw=2 / size, label=f"{size} standard deviations")
    region.plot(*(1e3 * (truth - estimate)[:2]), "k+", ms=10, label="truth")
    region.set_xlabel("$L_{01}$ - estimate (mm)")
    region.set_ylabel("$L_{02}$ - estimate (mm)")
    region.legend(loc="upper left")
    figure.tight_layout()
    save(figure, Path(folder) / "identify_five_bar.png")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
