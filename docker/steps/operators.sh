#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# operators.sh A2E CAM OUT: what an image has of operators, below OUT:
#   root/     files at their place in the image (a2e and e2a in /opt/afd/operators, CAM where its installer puts it)
#   wheels/   packages to install
# A2E is "built" or "none". CAM is "user" or "none"; its files are in /src/cam with the hashes they were checked against.
set -euo pipefail
shopt -s nullglob

a2e=$1 cam=$2 out=$3
mkdir -p "$out/root/opt/afd/operators" "$out/wheels"

if [ "$a2e" = built ]; then
  # The wheel is taken apart: its plugin for vLLM has the name of ours.
  built=$(mktemp -d)
  SETUPTOOLS_SCM_PRETEND_VERSION=0 /build/bin/pip wheel --no-deps --no-index --no-build-isolation \
    --wheel-dir "$built" /src/operators
  /build/bin/python -m zipfile -e "$built"/*.whl "$built/files"
  extension=("$built"/files/afd_plugin/_C_ascend*.so)
  vendors=$built/files/afd_plugin/_cann_ops_custom/vendors
  if [ ${#extension[@]} -ne 1 ] || [ ! -d "$vendors" ]; then
    echo "operators: the build for SOC_VERSION=$SOC_VERSION made no operators, though it ended well" >&2
    exit 1
  fi
  mkdir -p "$out/root/opt/afd/operators/lib"
  cp "${extension[0]}" "$out/root/opt/afd/operators/lib/"
  cp -a "$vendors" "$out/root/opt/afd/operators/vendors"
  rm -rf "$built"
fi

if [ "$cam" = user ]; then
  cd /src/cam
  sha256sum --check --strict SHA256SUMS
  bash ./*.run
  cp -a --parents "${ASCEND_HOME_PATH}/opp/vendors/CAM" "$out/root/"
  cp ./*.whl "$out/wheels/"
fi
