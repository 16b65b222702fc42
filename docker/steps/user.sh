#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# user.sh UID: a user with an entry in /etc/passwd, and a home that any user may write to. CANN's image may have a user
# with this number already; then it stays.
set -euo pipefail

if ! getent passwd "$1" >/dev/null; then
  echo "afd:x:$1:$1:AFD:/var/lib/afd:/bin/bash" >>/etc/passwd
  getent group "$1" >/dev/null || echo "afd:x:$1:" >>/etc/group
fi
mkdir -p /var/lib/afd /etc/afd
chmod 1777 /var/lib/afd
