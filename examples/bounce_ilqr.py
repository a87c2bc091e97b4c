"""Push a ball so that it comes to a target: bounces are found, not prescribed.

A ball starts at a height of 4 m, and should hang still at 1 m after a second, with
little force. The first guess pushes it down hard, and it bounces three times. Hybrid
iLQR linearises the trajectory through its bounces, and after a few iterations one is
left. Adam, given the gradients of the same cost, is still far away after 300 steps.
"""

from typing import Any

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
import matplotlib.pyplot as plt
import numpy as np
import optax
from _pictures import save
from hybridjax import control
from hybridjax.models import PushedBall


n, dt, effort, weight, goal = 126, 8e-3, 2.5e-4, 100.0, 1.0
ts = dt * jnp.arange(n + 1)
# The force is part of the state, and its rate is the control: it is linear from knot to
# knot. A force that jumps at knots would have its optimum where an impact meets one.
ball = control.with_rates(PushedBall(restitution=0.7))
x0 = jnp.array([4.0, 0.0]), jnp.zeros(1)
guess = jnp.zeros((n, 1)).at[0].set(-100.0 / dt)
options: Any = dict(solver=diffrax.Bosh3(), max_events=4, max_steps=32)


def running(t, x, rate):
    return effort * jnp.sum(x[1] ** 2)


def terminal(t, x):
    miss = x[0] - jnp.array([goal, 0.0])
    return weight * jnp.sum(miss**2) + effort * jnp.sum(x[1] ** 2)


#
# iLQR
#

problem = (ball, ts, x0, 0, guess, running, terminal)
found = control.ilqr(*problem, exact_hessians=True, max_iterations=60, **options)
log, count = found.log, int(found.log.count)
print("iteration      cost   gradient    step   other bounces")
for k in range(count):
    row = f"{k:9} {log.cost[k]:9.4f} {log.gradient_norm[k]:10.2e} {log.step[k]:7.3f}"
    print(row + ("   yes" if log.sequence_changed[k] else ""))
print(f"Bounces at the end: {np.sum(found.event >= 0)}.")


#
# Adam, on the same controls
#

# Forces at knots; their rates are large numbers.
forces = jnp.full((n,), -100.0)


@jax.jit
def cost(forces):
    rates = jnp.diff(jnp.append(0.0, forces))[:, None] / dt
    system, _, x0, mode0, *_ = problem

    def step(carry, inputs):
        x, mode = carry
        t0, t1, rate = inputs
        sol = hj.simulate(system, t0, t1, x, mode, rate, throw=False, **options)
        return (sol.x1, sol.mode1), running(t0, x, rate)

    start = (x0, jnp.asarray(mode0))
    (x1, _), spent = jax.lax.scan(step, start, (ts[:-1], ts[1:], rates))
    return jnp.sum(spent) + terminal(ts[-1], x1)


steps = 300
# Of rates from 0.5 to 15 N, the best.
optimizer = optax.adam(optax.cosine_decay_schedule(5.0, steps))


@jax.jit
def adam(forces):
    def step(carry, _):
        forces, state = carry
        value, gradient = jax.value_and_grad(cost)(forces)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(forces, updates), state), value

    carry = forces, optimizer.init(forces)
    (forces, _), costs = jax.lax.scan(step, carry, None, length=steps)
    return forces, costs


_, costs = adam(forces)
print(f"\niLQR: {found.cost:.4f}. Adam, {steps} steps: {costs[-1]:.4f}.")


#
# The picture
#

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
rates, fine = jnp.stack([guess, found.us]), jnp.linspace(0, 1, 9)[1:]


@jax.jit
@jax.vmap
def heights(rates):
    def step(carry, inputs):
        x, mode = carry
        t0, t1, rate = inputs
        inner = t0 + fine * (t1 - t0)
        saveat = diffrax.SaveAt(ts=jnp.minimum(inner, t1))
        sol = hj.simulate(ball, t0, t1, x, mode, rate, saveat=saveat, **options)
        return (sol.x1, sol.mode1), (inner, sol.xs[0][:, 0])

    start = (x0, jnp.asarray(0))
    return jax.lax.scan(step, start, (ts[:-1], ts[1:], rates))[1]


times, paths = (np.asarray(a).reshape(2, -1) for a in heights(rates))
for time, path, style, label in zip(
    times, paths, ("--", "-"), ("first guess", "iLQR"), strict=True
):
    left.plot(time, path, style, label=label)
left.plot(ts[-1], goal, "k*", markersize=10, label="target")
left.set(xlabel="time (s)", ylabel="height (m)")
left.legend()
right.semilogy(np.asarray(log.cost[:count]), "o-", color="C1", label="iLQR")
right.semilogy(costs, color="C2", label="Adam")
right.set(xlabel="iteration", ylabel="cost", xscale="symlog")
right.legend()
save(figure, "bounce_ilqr.png")

assert found.result == control.RESULTS.successful
assert found.cost < 2.14 and count < 30
