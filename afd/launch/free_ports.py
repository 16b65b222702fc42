# SPDX-License-Identifier: Apache-2.0
"""TCP ports that are still free a moment later, each given once.

Asking the kernel for port 0 and closing the socket is not enough: the kernel may give the same number again, to
the next caller or to an outgoing connection, before whoever the port is for listens on it.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535
_TRIES = 1000
_given: set[int] = set()


def free_port() -> int:
    """A TCP port that nobody listens on at any address now, and that this process was not given before.

    It lies below the range from which the kernel takes ports of outgoing connections where there is room, so that
    none of them takes it before it is used. Raises OSError when no port is found.
    """
    ports = candidates(*map(int, _OUTGOING.read_text().split()))
    for _ in range(_TRIES):
        port = random.SystemRandom().choice(ports)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"found no free TCP port between {ports.start} and {ports.stop - 1} in {_TRIES} tries")


def free_ports(count: int = 5) -> list[int]:
    """``count`` ports for vLLM, which lets its data-parallel ranks listen on them seconds after it has chosen them."""
    return [free_port() for _ in range(count)]


def candidates(first_outgoing: int, last_outgoing: int) -> range:
    """The wider range beside that of outgoing connections, or every port when those leave fewer than 1000."""
    below, above = range(_LOWEST, first_outgoing), range(last_outgoing + 1, _HIGHEST + 1)
    widest = max(below, above, key=len)
    return widest if len(widest) >= 1000 else range(_LOWEST, _HIGHEST + 1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
