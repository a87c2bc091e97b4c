#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: runs `benchmarks/gpu.py` there, which writes
# benchmarks/results_gpu.md, and then the tests. A Python whose JAX sees a GPU is used as
# it is, with what it has installed; otherwise an environment is made, which needs
# Python 3.11 or newer and a package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset XLA_FLAGS

python=python3
sees_gpu='import jax; assert jax.default_backend() == "gpu", jax.devices()'
if ! python3 -c "$sees_gpu" 2>/dev/null; then
    unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    python3 -m venv "$environment"
    python=$environment/bin/python
    "$python" -m pip install --quiet -e '.[test]' 'jax[cuda12]'
    "$python" -c "$sees_gpu"
fi

# Processes of the tests share the memory of the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# The batches first: they say most, and the tests take long.
"$python" benchmarks/gpu.py --out benchmarks/results_gpu.md "$@"
# Warnings are errors in tests, also those of plugins that happen to be installed.
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "$python" -m pytest -p xdist.plugin -n auto -q
