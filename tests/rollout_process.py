"""One of the two processes of `test_two_processes`."""

import sys

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax import models
from jax.sharding import NamedSharding, PartitionSpec


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
address, process = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, num_processes=2, process_id=process)


def lane(height):
    x0 = jnp.stack([height, 0 * height])
    sol = hj.simulate(models.BouncingBall(), 0.0, 2.0, x0, 0, max_steps=64)
    return sol.x1[0]


mesh = jax.make_mesh((jax.device_count(),), ("lanes",))
mine = np.linspace(0.5, 1.5, 16)[process * 8 : (process + 1) * 8]
heights = jax.make_array_from_process_local_data(
    NamedSharding(mesh, PartitionSpec("lanes")), mine
)
out, slopes = hj.rollout(jax.value_and_grad(lane), heights, mesh=mesh)

expected = jax.vmap(jax.value_and_grad(lane))(jnp.asarray(mine))
for got, here in zip((out, slopes), expected, strict=True):
    shards = sorted(got.addressable_shards, key=lambda s: s.index[0].start)
    local = np.concatenate([np.asarray(s.data) for s in shards])
    np.testing.assert_allclose(local, here, rtol=1e-13, atol=1e-13)
print(f"{jax.device_count()} devices, {local.size} of {out.size} lanes are here")
