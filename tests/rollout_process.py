"""One of the two processes of `test_two_processes`."""

import sys

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from helpers import bouncing_ball
from hybridjax import models
from jax.sharding import NamedSharding, PartitionSpec


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
address, process = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, num_processes=2, process_id=process)


def lane(height):
    x0 = jnp.stack([height, 0 * height])
    sol = hj.simulate(models.BouncingBall(9.81, 0.8), 0.0, 2.0, x0, 0, max_steps=64)
    return sol.x1[0]


mesh = jax.make_mesh((jax.device_count(),), ("lanes",))
mine = np.linspace(0.5, 1.5, 16)[process * 8 : (process + 1) * 8]
heights = jax.make_array_from_process_local_data(
    NamedSharding(mesh, PartitionSpec("lanes")), mine
)
out, slopes = hj.rollout(jax.value_and_grad(lane), heights, mesh=mesh)

# By closed form: another program, without `rollout`, would take as long to compile.
exact = np.vectorize(lambda height: bouncing_ball(height, 0.8, 2.0)[0])
slope = (exact(mine + 1e-6) - exact(mine - 1e-6)) / 2e-6
for got, here in zip((out, slopes), (exact(mine), slope), strict=True):
    shards = sorted(got.addressable_shards, key=lambda s: s.index[0].start)
    local = np.concatenate([np.asarray(s.data) for s in shards])
    np.testing.assert_allclose(local, here, rtol=0, atol=1e-7)
print(f"{jax.device_count()} devices, {local.size} of {out.size} lanes are here")
