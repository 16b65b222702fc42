# SPDX-License-Identifier: Apache-2.0
"""What the launcher and its clients share, importable without vLLM."""

from __future__ import annotations

import ctypes
import os
import signal

LAUNCHER_VARIABLE = "AFD_LAUNCHER"
MAX_MESSAGE = 1 << 17
"""Bytes of one request or event: a whole environment fits."""
OUTPUT_VARIABLE = "AFD_OUTPUT_SOCKET"
"""Where processes that are forked from a role's process write: the name of a socket, "@…"."""
NAMES_A_RANK = "\0rank "
"""How a line begins that says whose lines the ones after it are."""
ERROR = "afd: error: "
"""How the last line of a process begins that ended with an AFDError."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # now: loading a library in a forked process may wait for ever


def die_with_parent(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when the thread that forked it is gone (Linux).

    ``parent`` is the process that forked, as it said itself: when it is gone already, this process ends here.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
