#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ENTRYPOINT of AFD's images: CANN's own environment where there is one, then afd-entrypoint in this process's place.
#
# An image's ENV cannot hold all of it: CANN's base image sources these files in its entry point, which ours replaces.
# They use unset variables and end with codes of their own, so neither -u nor -e while they are read; they may print, and
# standard output belongs to the command.
set +eu

read_set_env() {
  if [ -r "$1" ]; then
    # shellcheck source=/dev/null  # not there when this is checked
    source "$@" >&2
  fi
}

cann="${ASCEND_HOME_PATH:-/usr/local/Ascend/ascend-toolkit/latest}"
root="${ASCEND_HOME_PATH:+${ASCEND_HOME_PATH%/*}}"
root="${root:-/usr/local/Ascend}"
read_set_env "${root}/ascend-toolkit/set_env.sh"
read_set_env "${cann}/share/info/ascendnpu-ir/bin/set_env.sh"
read_set_env "${root}/nnal/atb/set_env.sh" "--cxx_abi=${ATB_CXX_ABI:-1}"

exec afd-entrypoint "$@"
