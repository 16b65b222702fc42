#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in CANN's environment, as the base image's own entry point sets it. With --without-driver, CANN's stubs
# stand in for the driver's libraries, which a host brings and no build has.
set +eu

without_driver=
if [ "$1" = --without-driver ]; then
  without_driver=1
  shift
fi

for file in /usr/local/Ascend/ascend-toolkit/set_env.sh \
  "${ASCEND_HOME_PATH:-/usr/local/Ascend/ascend-toolkit/latest}/share/info/ascendnpu-ir/bin/set_env.sh"; do
  if [ -r "$file" ]; then
    # shellcheck source=/dev/null  # in CANN's image, not here
    source "$file"
  else
    echo "with-cann: there is no $file; is this CANN's base image?" >&2
    exit 1
  fi
done
# shellcheck source=/dev/null  # the same
source /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi="${ATB_CXX_ABI:-1}" || exit 1
if [ -n "$without_driver" ]; then
  machine=$(uname -m)
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}${ASCEND_HOME_PATH}/${machine}-linux/devlib"
fi
exec "$@"
