#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cpu-wheels.sh LOCK WHEELS BUILD: downloads every package of the lock as a wheel, with its hash checked, and makes an
# environment BUILD that can build ours. With TORCH_INDEX, torch is the CPU-only build of the same version from there,
# and what only the other build needs is left out; the lock has no hash of it, so it is taken with a warning.
set -euo pipefail

lock=$1 wheels=$2 build=$3

python3 -m venv "$build"

get() {
  "$build/bin/pip" wheel --no-cache-dir --no-deps --only-binary :all: --wheel-dir "$wheels" "$@"
}

if [ -n "${TORCH_INDEX:-}" ]; then
  echo "cpu-wheels: warning: torch ${TORCH}+cpu has no SHA-256 in the lock; this takes what ${TORCH_INDEX} has" >&2
  wanted=$(mktemp)
  sed -E '/^(torch|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/,/[^\\]$/d' "$lock" >"$wanted"
  get --index-url "$TORCH_INDEX" "torch==${TORCH}+cpu"
  get --require-hashes --requirement "$wanted"
  rm -f "$wanted"
else
  get --require-hashes --requirement "$lock"
fi
# Some distributions put an older one into every environment.
"$build/bin/pip" install --no-cache-dir --no-deps --no-index --upgrade --find-links "$wheels" setuptools
