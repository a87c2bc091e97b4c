import gc
import os

from .flags import fast_to_compile


# JAX's traces are many small objects that live on: by default, a tenth of the time of
# the tests goes into looking for garbage among them.
gc.set_threshold(100_000, 50, 100)
# Figures are made without a display, also in the processes that tests start.
os.environ["MPLBACKEND"] = "Agg"
# Tests run side by side, and the threads of OpenBLAS, by which JAX factorises matrices
# on CPUs, wait without sleep: with more of them than cores, what factorises small
# matrices in a loop takes forty times as long.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
fast_to_compile()

import hypothesis
import jax
import pytest


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Enough devices to shard a batch on a machine that has only a CPU.
jax.config.update("jax_num_cpu_devices", 8)

# Compilation takes seconds, so there is no deadline per example. The examples are the
# same in every run: a failure in CI can be repeated by running the test.
hypothesis.settings.register_profile(
    "hybridjax", deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("hybridjax")


@pytest.fixture(autouse=True, scope="module")
def _programs_of_a_module():
    """Programs that no other module calls are forgotten: they would be gigabytes, of
    which each takes time, too."""
    yield
    jax.clear_caches()


def pytest_sessionfinish():
    # What is left ends with the process. pytest would look for garbage in it, twice.
    gc.freeze()


def pytest_collection_modifyitems(items):
    # The longest first, so that at the end no process waits for another.
    items.sort(
        key=lambda item: item.path.stem not in ("test_examples", "test_notebooks")
    )
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and jax.default_backend() != "gpu":
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="There is no GPU."))
