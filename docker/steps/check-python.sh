#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-python.sh VERSION: ends the build on a base whose Python is another than the pinned one, for which the lock was
# made.
set -euo pipefail

found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$1" ]; then
  echo "check-python: the base image has Python $found, the pins and the lock are for $1; choose another base" >&2
  exit 1
fi
