#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# user.sh UID: a user with an entry in /etc/passwd, and a home that any user may write to. CANN's image may have a user
# with this number already; then it stays.
set -euo pipefail

if ! getent passwd "$1" >/dev/null; then
  echo "afd:x:$1:$1:AFD:/home/afd:/bin/bash" >>/etc/passwd
  getent group "$1" >/dev/null || echo "afd:x:$1:" >>/etc/group
fi
mkdir -p /home/afd /etc/afd
chmod 1777 /home/afd
