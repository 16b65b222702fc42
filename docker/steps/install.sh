#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh PYTHON PREFIX FOLDER...: an environment with every wheel of the folders and nothing else, compiled to
# bytecode in the same layer. Bytecode is not checked against the time of its source: layers change times, and in a
# container nobody can write it anew.
set -euo pipefail
shopt -s nullglob

python=$1 prefix=$2
shift 2
wheels=()
for folder in "$@"; do
  wheels+=("$folder"/*.whl)
done
"$python" -m venv --system-site-packages "$prefix"
"$prefix/bin/pip" install --no-cache-dir --no-deps --no-index --no-compile "${wheels[@]}"
# Some packages ship files that are no Python: each is told, and the end is 1, which is no fault here. The verify stage
# counts what has no bytecode. Any other end is one. pip is compiled already, and no role uses it.
"$prefix/bin/python" -m compileall -q -j 0 -x '/site-packages/pip/' --invalidation-mode unchecked-hash "$prefix/lib" ||
  { code=$? && [ "$code" -eq 1 ] || exit "$code"; }
