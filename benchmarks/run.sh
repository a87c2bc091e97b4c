#!/usr/bin/env bash
# Compares hybridjax with its peers, each in an environment of its own, and writes
# benchmarks/results.md and benchmarks/results.png. Needs Python 3.11 or newer, a package
# index and gcc (for CasADi), and takes less than 20 minutes on two cores.
#
#     benchmarks/run.sh [--problems P1 P5]
#
# The environments go to $BENCHMARK_ENVIRONMENTS and are used again if they are there;
# without it they are temporary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV XLA_FLAGS

if [[ -n ${BENCHMARK_ENVIRONMENTS:-} ]]; then
    environments=$(mkdir -p "$BENCHMARK_ENVIRONMENTS" && cd "$BENCHMARK_ENVIRONMENTS" && pwd)
else
    environments=$(mktemp -d)
    trap 'rm -rf "$environments"' EXIT
fi

# environment NAME PACKAGES...: one folder, finished if it has the file `done`.
environment() {
    local folder=$environments/$1
    shift
    [[ -e $folder/done ]] && return
    rm -rf "$folder"
    python3 -m venv "$folder"
    for packages in "$@"; do
        # shellcheck disable=SC2086 # Several packages in one word.
        "$folder/bin/python" -m pip install --quiet $packages
    done
    touch "$folder/done"
}

environment hybridjax "-e ..[bench]"
environment casadi "casadi==3.8.2 numpy"
environment jaxonomy "jaxonomy==3.4.1 numpy"
# First torch by itself: left to torchdiffeq, another build may be chosen.
environment torchdiffeq "torch==2.13.0" "torchdiffeq==0.2.5 numpy"

# What peers share with the other benchmarks is in this folder.
export PYTHONPATH=$PWD
"$environments/hybridjax/bin/python" peers/compare.py \
    --python "hybridjax=$environments/hybridjax/bin/python" \
    --python "diffrax=$environments/hybridjax/bin/python" \
    --python "jaxonomy=$environments/jaxonomy/bin/python" \
    --python "torchdiffeq=$environments/torchdiffeq/bin/python" \
    --python "casadi=$environments/casadi/bin/python" \
    --python "scipy=$environments/hybridjax/bin/python" \
    --out . "$@"
