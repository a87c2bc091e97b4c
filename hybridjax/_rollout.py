"""Many simulations: over the devices of a mesh, and in chunks that fit in memory."""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ._jax.errors import clean_errors
from ._jax.tracing import is_traced


def rollout(
    fn: Callable[[PyTree], PyTree],
    batch: PyTree,
    *,
    mesh: Mesh | None = None,
    chunk_size: int | None = None,
    progress_meter: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
) -> PyTree:
    """`jax.vmap(fn)(batch)`, for batches that are spread over devices, or do not fit in
    memory.

    Every device loops over its own lanes for as long as these need, and waits for no
    other: there is no communication between them. Differentiable like `jax.vmap`, also
    with respect to what `fn` closes over.

    !!! example

        ```python
        def energy(x0):
            return jnp.sum(hj.simulate(system, 0.0, 10.0, x0, 0).x1 ** 2)

        mesh = jax.make_mesh((jax.device_count(),), ("lanes",))
        energies = hj.rollout(energy, x0s, mesh=mesh, chunk_size=10_000)
        ```

    **Arguments:**

    - `fn`: a function of one lane, which calls `hj.simulate` and returns a
        pytree of arrays.
    - `batch`: a pytree of arrays of shape `(lanes, ...)`.
    - `mesh`: the devices; the lanes are divided among all of them. `None` is the
        default device; or all CPUs, if JAX has several of them
        (`jax.config.update("jax_num_cpu_devices", n)`, before anything is computed),
        unless a default device or a mesh has been set, or `batch` has been put on
        devices. For devices of several hosts, see `docs/how_to/batches.md`.
    - `chunk_size`: how many lanes a device works on at a time; `None` is all of its
        own. The work space is that of one chunk, also in reverse mode, for which every
        chunk is then simulated once more.
    - `progress_meter`: one of diffrax's, told after each chunk. With several devices,
        of the first of them.

    **Returns:**

    What `fn` returns, with an axis of size `lanes` in front.

    **Raises:**

    - `ValueError` if the arrays of `batch` do not share the size of their first axis,
        or `chunk_size` is not a positive integer.
    - What `fn` raises; `hj.SimulationError` if any lane fails that has
        `throw=True`.
    """
    arrays = jtu.tree_leaves(batch)
    sizes = {jnp.shape(leaf)[0] if jnp.ndim(leaf) > 0 else None for leaf in arrays}
    if len(sizes) != 1 or None in sizes or sizes == {0}:
        raise ValueError(
            "Argument `batch` must be a pytree of arrays that all have the same number "
            f"of lanes, at least one, as their first axis, but these are {sizes}. Let "
            "`fn` close over what all lanes share."
        )
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size > 0):
        raise ValueError(
            f"Argument `chunk_size` must be a positive integer or None, but it is "
            f"{chunk_size!r}."
        )
    if mesh is None:
        (lanes,) = sizes
        mesh = _all_cpus(arrays, lanes)
    return clean_errors(lambda: _rollout(fn, batch, mesh, chunk_size, progress_meter))


def _all_cpus(arrays, lanes) -> Mesh | None:
    """All CPUs, if there are several, and nobody has said what to compute on."""
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return None
    devices = jax.devices()[:lanes]
    said = jax.config.jax_default_device is not None  # pyright: ignore
    said = said or not jax.sharding.get_abstract_mesh().empty
    known = [a for a in arrays if isinstance(a, jax.Array) and not is_traced(a)]
    said = said or any(a.committed for a in known)
    if said or len(devices) == 1:
        return None
    return Mesh(np.array(devices), ("lanes",))


@eqx.filter_jit
def _rollout(fn, batch, mesh, chunk_size, progress_meter):
    lanes = jnp.shape(jtu.tree_leaves(batch)[0])[0]
    share = lambda batch, first: _in_chunks(
        fn, batch, chunk_size, progress_meter, first
    )
    if mesh is None:
        return share(batch, jnp.asarray(True))

    def on_device(batch):
        index = sum(lax.axis_index(name) for name in mesh.axis_names)
        return share(batch, index == 0)

    spec = PartitionSpec(mesh.axis_names)
    # The loops of different devices do not know of each other: nothing to check.
    sharded = jax.shard_map(
        on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    more = -lanes % mesh.size
    out = sharded(_place(_pad(batch, more), mesh, spec))
    if more == 0:
        return out
    # What is left cannot be divided evenly.
    out = _place(out, mesh, PartitionSpec())
    return jtu.tree_map(lambda a: a[:lanes], out)


def _place(tree, mesh: Mesh, spec: PartitionSpec):
    """On meshes whose axes are part of the types of arrays, JAX wants to be told."""
    if AxisType.Explicit not in mesh.axis_types:
        return tree
    return jtu.tree_map(lambda a: jax.reshard(a, NamedSharding(mesh, spec)), tree)


def _pad(batch, more: int):
    """The last lane `more` times again."""
    if more == 0:
        return batch
    return jtu.tree_map(
        lambda a: jnp.concatenate([a, jnp.broadcast_to(a[-1], (more, *a.shape[1:]))]),
        batch,
    )


def _in_chunks(fn, batch, chunk_size, progress_meter, first):
    lanes = jnp.shape(jtu.tree_leaves(batch)[0])[0]
    if chunk_size is None or chunk_size >= lanes:
        chunk_size = lanes
    chunks = -(-lanes // chunk_size)
    batch = jtu.tree_map(
        lambda a: a.reshape(chunks, chunk_size, *a.shape[1:]),
        _pad(batch, chunks * chunk_size - lanes),
    )
    run = jax.vmap(fn) if chunk_size > 1 else _alone(fn)
    if chunks > 1:
        run = jax.checkpoint(run)
    meter = _OnFirst(progress_meter, first)

    def body(carry, chunk):
        i, state = carry
        out = run(chunk)
        state = meter.step(state, ((i + 1) / chunks).astype(float), out)
        return (i + 1, state), out

    (_, state), out = lax.scan(body, (jnp.asarray(0, jnp.int32), meter.init()), batch)
    meter.close(state)
    return jtu.tree_map(lambda a: a.reshape(-1, *a.shape[2:])[:lanes], out)


def _alone(fn):
    """`jax.vmap(fn)` of one lane, as a program that has no lanes."""
    only = lambda chunk: jtu.tree_map(lambda a: a[0], chunk)
    return lambda chunk: jtu.tree_map(lambda a: a[None], fn(only(chunk)))


class _OnFirst:
    """A progress meter that is seen on the first device only."""

    def __init__(self, meter: dfx.AbstractProgressMeter, first):
        self.meter, self.first = meter, first

    def init(self) -> Any:
        struct = eqx.filter_eval_shape(self.meter.init)
        nothing = lambda: jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), struct)
        return lax.cond(self.first, self.meter.init, nothing)

    def step(self, state, progress, out):
        # Not before the chunk is done.
        leaves = [leaf.ravel()[:1] for leaf in jtu.tree_leaves(out)]
        leaves, progress = lax.optimization_barrier((leaves, progress))
        step = lambda: self.meter.step(state, lax.stop_gradient(progress))
        return lax.cond(self.first, step, lambda: state)

    def close(self, state):
        def close():
            self.meter.close(state)

        lax.cond(self.first, close, lambda: None)
