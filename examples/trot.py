"""Draw Figure 1 of Pace and Burden, from simulations.

A body falls and lands on two legs, front and rear. On rigid legs its rotational
velocity afterwards, as a function of the rotation before, jumps where both legs touch
down in the same instant: what happens depends on which of them is first. On soft legs,
with feet of their own, the limbs are decoupled through the body, and the outcome is
differentiable, there too.

Prints what `decoupled` and `hj.b_derivative` say of both, and for the soft legs the
derivatives from the left and from the right by `jax.jvp`, with finite differences.
Saves a picture: `python examples/trot.py [folder]`.

Pace, Burden, *Decoupled limbs yield differentiable trajectory outcomes through
intermittent contact in locomotion and manipulation*, Figure 1.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from _pictures import save
from hybridjax.mechanics import decoupled
from hybridjax.models import rigid_trotter, soft_trotter


flight, t1 = jnp.zeros(2, jnp.int32), 0.3
height, half_length, leg_length = 0.7, 0.3, 0.5  # m
tolerances = diffrax.PIDController(rtol=1e-10, atol=1e-10)


def start(theta, soft):
    """In the air, at rest, with soft legs at their natural length."""
    body = jnp.stack([height, theta])
    if not soft:
        return body
    sides = half_length * jnp.array([1.0, -1.0])
    return jnp.concatenate([body, height - leg_length + sides * jnp.sin(theta)])


def outcome(theta, soft):
    """The rotational velocity at the end, in rad/s."""
    system = soft_trotter() if soft else rigid_trotter()
    q = start(theta, soft)
    sol = hj.simulate(
        system,
        0.0,
        t1,
        (q, jnp.zeros_like(q)),
        flight,
        stepsize_controller=tolerances,
        max_steps=256,
        throw=False,
    )
    return sol.x1[1][1]


def main(folder):
    angles = jnp.linspace(-0.3, 0.3, 241)  # has zero in it, where both land at once
    middle = len(angles) // 2
    rigid = jax.jit(jax.vmap(lambda a: outcome(a, False)))(angles)
    # One program for the values, the derivatives from both sides, and differences.
    h = 1e-4
    soft, slopes = jax.jit(
        jax.vmap(lambda a, b: jax.jvp(lambda a: outcome(a, True), (a,), (b,)))
    )(
        jnp.concatenate([angles, jnp.array([0.0, 0.0, -h, h])]),
        jnp.ones(len(angles) + 4).at[-4].set(-1.0),
    )
    left, right = -slopes[-4], slopes[-3]
    below, above = soft[-4] - soft[-2], soft[-1] - soft[-4]

    for system, soft_legs in ((rigid_trotter(), False), (soft_trotter(), True)):
        q = start(0.0, soft_legs).at[0].set(leg_length)
        q = q.at[2:].set(0.0)
        fall = -((2 * 9.81 * (height - leg_length)) ** 0.5)
        v = jnp.full_like(q, fall).at[1].set(0.0)
        corner = hj.b_derivative(system, 0.0, (q, v), flight)
        print("soft legs" if soft_legs else "rigid legs")
        print(f"  decoupled (Assumption 3):   {bool(decoupled(system, q))}")
        print(f"  the outcome jumps:          {bool(corner.is_discontinuous)}")
        if soft_legs:
            print(f"  the B-derivative is linear: {bool(corner.is_linear())}")
            print(f"  derivatives by jvp:         {left:.8f}, {right:.8f}")
            print(f"  differences on both sides:  {below / h:.4f}, {above / h:.4f}")
        else:
            beside = rigid[middle - 1], rigid[middle], rigid[middle + 1]
            values = ", ".join(f"{value:.4f}" for value in beside)
            print(f"  just before, at, after 0:   {values} rad/s")
    draw(folder, np.asarray(angles), np.asarray(rigid), np.asarray(soft[:-4]), right)


def draw(folder, angles, rigid, soft, slope):
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072B2", "#D55E00", "0.6"
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    middle = len(angles) // 2
    for part in (slice(None, middle), slice(middle + 1, None)):
        axes[0].plot(angles[part], rigid[part], color=blue)
    axes[0].plot(0, rigid[middle], "o", color=blue, label="both legs at once")
    axes[0].set_title("rigid legs: the outcome jumps")
    axes[1].plot(angles, soft, color=blue)
    near = np.abs(angles) < 0.12
    axes[1].plot(
        angles[near],
        soft[middle] + slope * angles[near],
        "--",
        color=orange,
        label="derivative at zero",
    )
    axes[1].set_title("soft legs: differentiable")
    for ax in axes:
        ax.axvline(0, color=grey, linewidth=0.8, zorder=0)
        ax.set_xlabel("initial rotation θ(0) (rad)")
        ax.legend(frameon=False)
    axes[0].set_ylabel("final rotational velocity (rad/s)")
    save(fig, folder / "trot.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
