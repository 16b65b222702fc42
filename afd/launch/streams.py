# SPDX-License-Identifier: Apache-2.0
"""The output of a process that was forked from a role's process: two streams of its own to the agent.

Several processes that write to one pipe cut each other's lines. The agent names the rank before each line, so whoever
is a rank says so first, in its streams (:mod:`afd.agent.streams` reads them).
"""

from __future__ import annotations

import os
import socket
import sys

from afd.agent.launch_protocol import NAMES_A_RANK, OUTPUT_VARIABLE

CONNECT_S = 1.0
"""An agent that accepts nothing for so long is stopped; then the parent's streams have to do."""


def take_own_streams() -> None:
    """Right after a fork: write to streams of one's own, when the agent listens for them."""
    address = os.environ.get(OUTPUT_VARIABLE)
    if not address:
        return
    for descriptor in (1, 2):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(CONNECT_S)
            try:
                stream.connect("\0" + address.removeprefix("@"))
            except OSError:  # the agent ends, and so will this process
                return
            stream.setblocking(True)
            os.dup2(stream.fileno(), descriptor)


def name_rank(rank: str) -> None:
    """Every line from here on is of ``rank``, in both streams. Only for a process that has streams of its own."""
    if not os.environ.get(OUTPUT_VARIABLE):
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.write(descriptor, f"{NAMES_A_RANK}{rank}\n".encode())
