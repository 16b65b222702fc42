# SPDX-License-Identifier: Apache-2.0
"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """ "was killed by SIGKILL" or "exited with code 3"; ``code`` as in subprocess."""
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        hint = " (a full /dev/shm does that; see afd doctor)" if -code == signal.SIGBUS else ""
        return f"was killed by {known.get(-code, f'signal {-code}')}{hint}"
    return f"exited with code {code}"
