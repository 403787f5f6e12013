#!/usr/bin/env bash
# Checks and measures a GPU that is there for a few minutes, without a way to a package index.
#
#   tests/gpu_check/short_run.sh FOLDER [OPTION...]
#
# Writes versions, logs and figures into FOLDER as they come. Options are gpu_check's. It needs torch
# and Triton. Packages that are missing beside them are installed from the wheels in .whl:
#
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 -d .whl pydantic==2.14.4 pydantic-core==2.50.5 \
#     annotated-types typing-inspection typing-extensions
set -uo pipefail
if [ $# -lt 1 ]; then
  echo "usage: short_run.sh FOLDER [OPTION...]" >&2
  exit 2
fi
mkdir -p "$1" && folder=$(cd "$1" && pwd) || exit 2
shift
cd "$(dirname "$0")/../.." || exit 2
export PYTHONUNBUFFERED=1 CUDA_MODULE_LOADING=LAZY
if compgen -G '.whl/*.whl' >/dev/null; then
  site=$(mktemp -d)
  python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
{
  date --utc
  uname -a
  nproc
  python3 --version
  python3 -m pip list 2>/dev/null | grep -iE '^(torch|triton|numpy|pydantic|safetensors|fbgemm)'
  nvidia-smi
} >"$folder/machine.txt" 2>&1
set -o pipefail
python3 -m tests.gpu_check --out "$folder/benchmarks-gpu.json" "$@" 2>&1 | tee "$folder/log.txt"
