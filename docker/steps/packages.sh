#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a stage of an image needs of the operating system: packages.sh OS runtime|build. Triton Ascend compiles while it
# runs, so a compiler belongs to the runtime of NPU images; the CPU image has none.
set -euo pipefail

usage() {
  echo "packages: no list for OS '$1', stage '$2'; the lists are in docker/steps/packages.sh" >&2
  exit 1
}

install_apt() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -q -y --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
}

install_dnf() {
  dnf install -y --setopt=install_weak_deps=False "$@"
  dnf clean all
  rm -rf /var/cache/dnf /var/cache/yum
}

# A base that has them all needs no network here.
install_missing_apt() {
  local package missing=()
  for package in "$@"; do
    dpkg-query --show --showformat '${Status}\n' "$package" 2>/dev/null | grep -qx 'install ok installed' ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    install_apt "${missing[@]}"
  fi
}

# The preload of another allocator is a choice (docs/images.md), and its file has one name in every image.
allocator() {
  local library
  library=$(find "$@" -name 'libjemalloc.so.2' -print -quit)
  if [ -z "$library" ]; then
    echo "packages: libjemalloc.so.2 is not below $*" >&2
    exit 1
  fi
  ln -s "$library" /usr/local/lib/libafd-allocator.so
}

case "$1 $2" in
  "ubuntu22.04 runtime")
    install_apt ca-certificates clang-15 g++ libhiredis0.14 libibverbs1 libjemalloc2 libnuma1 net-tools numactl
    update-alternatives --install /usr/bin/clang clang /usr/bin/clang-15 20
    update-alternatives --install /usr/bin/clang++ clang++ /usr/bin/clang++-15 20
    allocator /usr/lib
    ;;
  "ubuntu22.04 build") install_apt gcc git libhiredis-dev libibverbs-dev libnuma-dev make patch ;;
  "openeuler24.03 runtime")
    install_dnf ca-certificates clang gcc-c++ hiredis jemalloc libibverbs net-tools numactl numactl-libs
    allocator /usr/lib64
    ;;
  "openeuler24.03 build") install_dnf gcc git hiredis-devel libibverbs-devel make numactl-devel patch ;;
  "debian12 runtime") install_missing_apt ca-certificates libgomp1 libnuma1 python3 python3-venv ;;
  "debian12 build") install_missing_apt gcc libc6-dev ;;
  *) usage "$1" "$2" ;;
esac
