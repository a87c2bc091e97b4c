"""Learn how a ball flies and bounces from noisy positions: the force of the air, the
shape of the ground and the restitution, none of which is known.

Air and ground are neural networks. `jax.grad` goes through the bounces of the flights
of a minibatch, and optax follows, in float32, while the horizon grows from the first
fall to all that was measured: `t1` is traced, so that all horizons are one program.
Impacts reverse the rate of the gap, whatever the ground is (`models.BallOnGround`).

Beside it, with the same data, batches, horizons, optimiser and number of updates, and
at least as many parameters: a neural ODE, one smooth field for flight and bounce alike;
and a smoothed guard, the same networks for air and ground with a damped spring in the
place of impacts, whose stiffness, damping and width are learnt.

Prints the errors on flights that were not learnt from, and saves a picture:
`python examples/learn_ball.py [picture.png]`.
"""

import functools
import sys
import time

import diffrax
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _pictures import save
from hybridjax.models import BallOnGround


t1 = 1.5  # s
times = jnp.linspace(0, t1, 46)[1:]
noise = 0.005  # m, standard deviation of measured positions
lanes = 8  # flights in a minibatch
num_learnt, num_held_out = 128, 32
num_updates = 600
horizons = np.array([0.7, t1, t1])  # s, an equal number of updates each
gravity = 9.81


#
# What is true
#

truth = BallOnGround(
    ground=lambda x: 0.1 * jnp.sin(2 * x),
    force=lambda q, v: -0.1 * jnp.sqrt(jnp.sum(v**2) + 1e-6) * v,
    restitution=0.8,
)


def throws(seed, n):
    """States at the start: positions (m) and velocities (m/s)."""
    low, high = [-0.8, 0.8, -0.5, -1.0], [0.8, 1.6, 0.5, 1.0]
    x = np.random.default_rng(seed).uniform(low, high, (n, 4)).astype(np.float32)
    return x[:, :2], x[:, 2:]


#
# Three models. Each has the positions of a flight at `times`, up to a horizon
#


def network(inputs, outputs, width, seed):
    return eqx.nn.MLP(
        inputs, outputs, width, 1, activation=jnp.tanh, key=jax.random.key(seed)
    )


class Hybrid(eqx.Module):
    air: eqx.nn.MLP = eqx.field(default_factory=lambda: network(2, 2, 16, 0))
    surface: eqx.nn.MLP = eqx.field(default_factory=lambda: network(1, 1, 16, 1))
    bounce: jax.Array = eqx.field(default_factory=lambda: jnp.zeros(()))

    def system(self):
        return BallOnGround(
            ground=lambda x: self.surface(x[None])[0],
            force=lambda q, v: self.air(v),
            gravity=gravity,
            restitution=jax.nn.sigmoid(self.bounce),
        )

    def fly(self, x0, horizon):
        return fly(self.system(), x0, horizon)


def fly(system, x0, horizon):
    return hj.simulate(
        system,
        0.0,
        horizon,
        x0,
        0,
        saveat=diffrax.SaveAt(ts=jnp.minimum(times, horizon)),
        max_steps=128,
        max_events=8,
        throw=False,
    )


class NeuralODE(eqx.Module):
    field: eqx.nn.MLP = eqx.field(default_factory=lambda: network(4, 2, 24, 0))

    def acceleration(self, q, v):
        return self.field(jnp.concatenate([q, v]))

    def fly(self, x0, horizon):
        return fly_smoothly(self.acceleration, x0, horizon)


class Smoothed(eqx.Module):
    air: eqx.nn.MLP = eqx.field(default_factory=lambda: network(2, 2, 16, 0))
    surface: eqx.nn.MLP = eqx.field(default_factory=lambda: network(1, 1, 16, 1))
    # Logarithms of stiffness (1/s²), damping (s/m) and width (m).
    contact: jax.Array = eqx.field(
        default_factory=lambda: jnp.log(jnp.array([3000.0, 0.1, 0.01]))
    )

    def acceleration(self, q, v):
        gap = lambda q: q[1] - self.surface(q[:1])[0]
        stiffness, damping, width = jnp.exp(self.contact)
        a, n = jax.value_and_grad(gap)(q)
        depth = width * jax.nn.softplus(-a / width)
        # Hunt and Crossley's damping: no force where there is no contact.
        push = stiffness * depth * jnp.maximum(1 - damping * jnp.sum(n * v), 0)
        return self.air(v) + push * n - jnp.array([0.0, gravity])

    def fly(self, x0, horizon):
        return fly_smoothly(self.acceleration, x0, horizon)


def fly_smoothly(acceleration, x0, horizon):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, x, args: (x[1], acceleration(*x))),
        diffrax.Tsit5(),
        0.0,
        horizon,
        None,
        x0,
        saveat=diffrax.SaveAt(ts=jnp.minimum(times, horizon)),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
        max_steps=1024,
        throw=False,
    )


#
# Learning
#


def error(sol, measured, horizon):
    """Of positions, which are continuous, at fixed times; up to the horizon."""
    q, _ = sol.xs if hasattr(sol, "xs") else sol.ys
    seen = (times <= horizon * 1.0001)[:, None]
    squares = jnp.where(seen, (q - measured) ** 2, 0)
    return jnp.sum(squares) / (2 * jnp.sum(seen))


def mean_error(model, x0, measured, horizon):
    sols = jax.vmap(lambda x0: model.fly(x0, horizon))(x0)
    one = lambda sol, measured: error(sol, measured, horizon)
    if isinstance(model, Hybrid):
        return hj.mean_over_successful(one, sols, measured), sols.xs[0]
    return jnp.mean(jax.vmap(one)(sols, measured)), sols.ys[0]


schedule = optax.cosine_decay_schedule(0.03, num_updates, 0.01)
optimiser = optax.apply_if_finite(
    optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b2=0.99)), 20
)


def learn(model, x0, measured):
    """The model after all updates, and how long it took to compile and to run."""
    params, static = eqx.partition(model, eqx.is_array)

    @functools.partial(jax.jit, compiler_options=hj.compiler_options())
    def loss(params, *batch):
        of = lambda params: mean_error(eqx.combine(params, static), *batch)
        return jax.value_and_grad(of, has_aux=True)(params)

    @functools.partial(jax.jit, compiler_options=hj.compiler_options())
    def update(params, state, gradient):
        moves, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, moves), state

    pick = lambda i: jax.tree.map(lambda a: a[i], (x0, measured))
    begin = time.perf_counter()
    jax.block_until_ready(loss(params, *pick(np.arange(lanes)), horizons[0]))
    compiled = time.perf_counter() - begin

    state, rng = optimiser.init(params), np.random.default_rng(0)
    for horizon in horizons:
        for _ in range(num_updates // len(horizons)):
            batch = pick(rng.choice(num_learnt, lanes, replace=False))
            (value, _), gradient = loss(params, *batch, horizon)
            params, state = update(params, state, gradient)
    jax.block_until_ready(params)
    seconds = time.perf_counter() - begin - compiled
    # One program for all horizons.
    assert loss._cache_size() == 1  # pyright: ignore
    evaluate = lambda *batch: loss(params, *batch, horizons[-1])[0]
    return eqx.combine(params, static), evaluate, compiled, seconds


def held_out_error(evaluate, x0, positions):
    """Root mean square over all flights, in m, and the flights, a minibatch each."""
    squares, flights = [], []
    for some in np.split(np.arange(num_held_out), num_held_out // lanes):
        batch = jax.tree.map(lambda a, some=some: a[some], (x0, positions))
        square, flight = evaluate(*batch)
        squares.append(square)
        flights.append(flight)
    return float(np.sqrt(np.mean(squares))), np.concatenate(flights)


def main(path):
    x0, x0_held_out = throws(0, num_learnt), throws(1, num_held_out)
    once = hj.compiler_options("fast_to_compile")
    data = jax.jit(jax.vmap(lambda x0: fly(truth, x0, t1)), compiler_options=once)
    everything = jax.tree.map(lambda *a: np.concatenate(a), x0, x0_held_out)
    sols = data(everything)
    assert sols.successful.all()
    positions, counts = np.asarray(sols.xs[0]), np.asarray(sols.events.count)
    print(f"{num_learnt} flights with {counts.min()} to {counts.max()} bounces.")
    rng = np.random.default_rng(2)
    measured = positions[:num_learnt]
    measured = measured + noise * rng.standard_normal(measured.shape, np.float32)
    held_out = positions[num_learnt:]
    print("model          parameters  compile (s)  learn (s)  held-out error (m)")
    errors, flights = {}, {}
    for model in (Hybrid(), NeuralODE(), Smoothed()):
        name = type(model).__name__
        size = sum(a.size for a in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
        learnt, evaluate, compiled, seconds = learn(model, x0, measured)
        errors[name], flights[name] = held_out_error(evaluate, x0_held_out, held_out)
        print(
            f"{name:14} {size:10d}  {compiled:11.1f}  {seconds:9.1f}"
            f"  {errors[name]:18.4f}"
        )
        if isinstance(learnt, Hybrid):
            e = jax.nn.sigmoid(learnt.bounce)
            print(f"    restitution {e:.4f}, in truth {truth.restitution:.4f}")
    assert errors["Hybrid"] < min(errors["NeuralODE"], errors["Smoothed"])
    draw(held_out, flights, path)


def draw(held_out, flights, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("There is no picture, because matplotlib is not installed.")
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    far = np.argsort(held_out[:, -1, 0])[[0, -1]]  # two flights that end far apart
    x = np.linspace(*left.set_xlim(held_out[..., 0].min(), held_out[..., 0].max()))
    left.fill_between(x, truth.ground(x), -0.2, color="0.8", label="ground")
    left.plot(*held_out[far].transpose(2, 1, 0), "k.", markersize=4)
    for (name, flight), colour in zip(flights.items(), ("C3", "C0", "C2"), strict=True):
        left.plot(*flight[far].transpose(2, 1, 0), color=colour, label=name)
        errors = np.sqrt(np.mean((flight - held_out) ** 2, axis=(0, 2)))
        right.semilogy(times, errors, color=colour, label=name)
    left.set(
        xlabel="distance (m)", ylabel="height (m)", title="Flights not learnt from"
    )
    right.set(xlabel="time (s)", ylabel="error (m)", title="Root mean square errors")
    handles, labels = left.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    right.legend(unique.values(), unique.keys(), frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "learn_ball.png")
