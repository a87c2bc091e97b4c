"""Batches over the devices of a mesh, and in chunks: the same as `jax.vmap`."""

import functools
import pathlib
import re
import socket
import subprocess
import sys

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from jax.sharding import AxisType

from .helpers import same_rounding


# `tests.flags` makes eight devices of a CPU.
on_cpus = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="The devices are those of a CPU."
)


def _mesh():
    return jax.make_mesh((jax.device_count(),), ("lanes",))


def _grid():
    types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((4, 2), ("hosts", "devices"), axis_types=types)


def _lane(restitution):
    def lane(height):
        sol = hj.simulate(
            models.BouncingBall(9.81, restitution),
            0.0,
            2.0,
            jnp.stack([height, 0 * height]),
            0,
            max_steps=64,
            max_events=8,
        )
        return dict(x1=sol.x1, count=sol.events.count)

    return lane


# Not a multiple of the number of devices, nor of the size of a chunk.
_HEIGHTS = jnp.linspace(0.5, 1.5, 21)


_OPTIONS = {
    "all CPUs": lambda: dict(),
    "mesh": lambda: dict(mesh=_mesh()),
    "chunks": lambda: dict(chunk_size=4),
    "one by one": lambda: dict(mesh=jax.make_mesh((1,), ("lanes",)), chunk_size=1),
    "both": lambda: dict(
        mesh=jax.make_mesh(
            (4, 2), ("hosts", "devices"), axis_types=(AxisType.Auto,) * 2
        ),
        chunk_size=2,
    ),
}


def _loss_and_gradient(of):
    def loss(restitution, heights):
        out = of(_lane(restitution), heights)
        return jnp.sum(out["x1"][:, 0] ** 2), out

    # Also with respect to what all lanes share, which the function closes over.
    both = jax.value_and_grad(loss, (0, 1), has_aux=True)
    both = jax.jit(both, compiler_options=same_rounding())
    return both(jnp.asarray(0.8), _HEIGHTS)


@functools.cache
def _expected():
    return _loss_and_gradient(lambda fn, batch: jax.vmap(fn)(batch))


# The one with both is tried always.
_each = [
    name if name == "both" else pytest.param(name, marks=pytest.mark.thorough)
    for name in _OPTIONS
]


@on_cpus
@pytest.mark.parametrize("name", _each)
def test_equal_to_vmap(name):
    assert jax.device_count() == 8
    options = _OPTIONS[name]()
    rollout = lambda fn, batch: hj.rollout(fn, batch, **options)

    got, expected = _loss_and_gradient(rollout), _expected()
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
    jax.tree.map(same, got, expected)
    (_, out), _ = got
    assert len(set(out["count"].tolist())) > 1


@on_cpus
def test_devices_do_not_wait_for_each_other():
    fn = jax.jit(lambda q: hj.rollout(_lane(0.8), q, mesh=_mesh()))
    heights = jnp.linspace(0.5, 1.5, 16)
    text = str(fn.lower(heights).compile().as_text())
    collective = r"all-reduce|all-gather|all-to-all|collective-permute"
    assert "while" in text and re.search(collective, text) is None
    out = fn(heights)["x1"]
    assert len(out.sharding.device_set) == 8


@on_cpus
def test_which_devices():
    # All CPUs, unless something else was said; not more than there are lanes.
    devices = lambda out: len(out.sharding.device_set)
    fn = lambda q: hj.rollout(lambda q: 2 * q, q)
    assert devices(fn(_HEIGHTS)) == 8
    assert devices(fn(_HEIGHTS[:3])) == 3
    first, second = jax.devices()[:2]
    assert fn(jax.device_put(_HEIGHTS, second)).sharding.device_set == {second}
    with jax.default_device(first):
        assert fn(np.asarray(_HEIGHTS)).sharding.device_set == {first}


@on_cpus
def test_progress_meter(capfd):
    meter = dfx.TextProgressMeter(minimum_increase=0.01)
    out = hj.rollout(
        _lane(0.8), _HEIGHTS, mesh=_mesh(), chunk_size=1, progress_meter=meter
    )
    jax.block_until_ready(out)
    jax.effects_barrier()
    # Of one device only: it has three lanes.
    lines = capfd.readouterr().out.split()
    assert lines == ["0.00%", "33.33%", "66.67%", "100.00%"]


def test_errors():
    with pytest.raises(ValueError, match="Argument `batch`"):
        hj.rollout(_lane(0.8), (jnp.ones(3), jnp.ones(4)))
    with pytest.raises(ValueError, match="Argument `batch`"):
        hj.rollout(_lane(0.8), (jnp.ones(3), 1.0))
    with pytest.raises(ValueError, match="Argument `chunk_size`"):
        hj.rollout(_lane(0.8), _HEIGHTS, chunk_size=0)
    with pytest.raises(hj.SimulationError, match="max_events"):
        short = lambda q: hj.simulate(
            models.BouncingBall(), 0.0, 2.0, jnp.stack([q, 0 * q]), 0, max_events=1
        )
        hj.rollout(lambda q: short(q).x1, _HEIGHTS)


@pytest.mark.thorough
def test_two_processes():
    # Two hosts of a cluster, on one machine.
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    program = pathlib.Path(__file__).parent / "rollout_process.py"
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), f"localhost:{port}", str(k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "4 devices, 8 of 16 lanes are here" in output
