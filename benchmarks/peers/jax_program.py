"""What the peers that use JAX return: a compiled program that can be called again."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from problems import Problem


# Otherwise XLA hands each call to a thread, which takes 20 µs; but for programs with a
# callback, which some of the peers have.
jax.config.update("jax_cpu_enable_async_dispatch", False)


class Program(NamedTuple):
    run: Callable  # what `jax.jit` returned
    theta: jax.Array

    def __call__(self):
        return jax.block_until_ready(self.run(self.theta))


def program(
    problem: Problem, what: str, value: Callable, objective: Callable
) -> Program:
    """From `value(theta)`, the final state of one lane, and the scalar `objective` of
    it: the `value`, value and `gradient`, one tangent of it (`jvp`), or the Jacobian of
    the final state in forward or reverse mode (`jacfwd`, `jacrev`)."""

    def push(theta):
        return jax.jvp(value, (theta,), (jnp.ones_like(theta),))

    run = {
        "value": value,
        "gradient": jax.value_and_grad(lambda theta: objective(value(theta))),
        "jvp": push,
        "jacfwd": jax.jacfwd(value),
        "jacrev": jax.jacrev(value),
    }[what]
    theta = jnp.asarray(problem.theta)
    assert theta.dtype == jnp.float64
    return Program(jax.jit(jax.vmap(run) if problem.batched else run), theta)
