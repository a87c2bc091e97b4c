"""Value and gradient of a simulation, in a process of its own, with JAX's persistent
cache of compiled programs in the folder that is its argument. Prints how many programs
were found there and how many were not, and the gradient."""

import sys
from collections import Counter

import jax


_events = Counter()


def _count(event, **_):
    _events[event.rsplit("/", 1)[-1]] += 1


jax.monitoring.register_event_listener(_count)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

import hybridjax as hj
import jax.numpy as jnp
from hybridjax.models import BouncingBall


def height(z, throw):
    ball = BouncingBall(gravity=9.81, restitution=z[1])
    x0 = jnp.stack([z[0], 0.0])
    sol = hj.simulate(ball, 0.0, 1.0, x0, 0, max_steps=64, max_events=4, throw=throw)
    return sol.x1[0]


z = jnp.array([1.0, 0.8])
# Within a `jax.jit`, and as it comes, with `throw=True`.
inside = jax.jit(jax.value_and_grad(lambda z: height(z, False)))(z)
value = height(z, True)
print(_events["cache_hits"], _events["cache_misses"], *map(float, inside[1]), value)
