#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: runs the tests and `benchmarks/gpu.py` there, and
# writes benchmarks/results_gpu.md. Needs Python 3.11 or newer and a package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV XLA_FLAGS

environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet -e '.[test]' 'jax[cuda12]'
"$environment/bin/python" -c 'import jax; assert jax.default_backend() == "gpu", jax.devices()'

# The batches first: they say most, and the tests take long.
XLA_PYTHON_CLIENT_PREALLOCATE=false "$environment/bin/python" benchmarks/gpu.py \
    --out benchmarks/results_gpu.md "$@"
XLA_PYTHON_CLIENT_PREALLOCATE=false "$environment/bin/python" -m pytest -q
