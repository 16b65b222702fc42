#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# reference.sh OUT: what the CPU image brings because no container of it could make it, or not in time:
#   cache/        AFD_CACHE_DIR: every built-in model, and the compiled ring of the shared-memory transport
#   golden.json   what native vLLM answers to the questions of a smoke run
# All of it belongs to root, can be read by any user and written by none: code is loaded from there.
set -euo pipefail

out=$1
export AFD_CACHE_DIR=$out/cache HOME=/tmp
mkdir -p "$AFD_CACHE_DIR"

# The library is named after this source, machine and C library, so a container finds it only when all three are equal.
python -c '
import os, pathlib
from afd.connectors.shm import helper
from afd.testing.tiny.model import BUILTINS
from afd.testing.tiny.store import resolve_builtin

helper.Library(helper.build(pathlib.Path(os.environ["AFD_CACHE_DIR"])))
for name in BUILTINS:
    print("built-in model:", resolve_builtin("builtin:" + name))
'
python -m afd.testing.golden --out "$out/golden.json"
chown -R 0:0 "$out"
chmod -R u=rwX,go=rX "$out"
