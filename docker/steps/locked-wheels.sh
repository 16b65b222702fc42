#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# locked-wheels.sh LOCK WHEELS BUILD: downloads every package of the lock as a wheel, with its hash checked, and makes an
# environment BUILD that has them, for the builds that follow. Triton Ascend, and torch for amd64, are in indexes of
# their own; their hashes are arguments of the image, and empty where nobody has written one down yet.
set -euo pipefail

lock=$1 wheels=$2 build=$3

get() {
  python3 -m pip wheel --no-cache-dir --no-deps --only-binary :all: --wheel-dir "$wheels" "$@"
}

# one REQUIREMENT SHA256 INDEX
one() {
  local requirement=$1 sha256=$2 index=$3 file
  file=$(mktemp)
  if [ -n "$sha256" ]; then
    printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" >"$file"
    get --require-hashes --index-url "$index" --requirement "$file"
  else
    echo "locked-wheels: warning: $requirement has no SHA-256 in afd/pins.toml; this takes what the index has" >&2
    get --index-url "$index" "$requirement"
  fi
  rm -f "$file"
}

wanted=$(mktemp)
if [ "$ARCH" = amd64 ]; then
  # The lock's torch for amd64 is the one for another accelerator: leave out its lines, hashes and all.
  sed '/^torch==/,/[^\\]$/d' "$lock" >"$wanted"
  one "torch==${TORCH}+cpu" "$TORCH_SHA256" "${TORCH_INDEX:?an index with the CPU-only build of torch}"
else
  cp "$lock" "$wanted"
fi
get --require-hashes --requirement "$wanted"
one "triton-ascend==${TRITON_ASCEND}" "$TRITON_ASCEND_SHA256" "$TRITON_ASCEND_INDEX"
rm -f "$wanted"

# CANN's own Python packages stay visible: its compilers use them.
python3 -m venv --system-site-packages "$build"
"$build/bin/pip" install --no-cache-dir --no-deps --no-index "$wheels"/*.whl
