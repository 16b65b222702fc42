# SPDX-License-Identifier: Apache-2.0
"""Two agents that claim one place in a group, with ``on_loss=rejoin``.

The later one is put off while the earlier one gives signs of life. One that was restarted is never put off for long:
the connection of the agent before it has closed, or falls silent within three heartbeats, and either ends the epoch.
If the later one took the place instead, an agent started by mistake would end a healthy group, and the two would take
the place from each other until both give up.
"""

from __future__ import annotations

import logging

from afd.control.handshake import names, ranks_of
from afd.control.messages import Hello, Refusal

log = logging.getLogger(__name__)


class Rivals:
    """The root's memory of who was put off, so that its log tells it once although they try again every second."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()

    def put_off(self, newcomer: Hello, holder: Hello, age_s: float) -> Refusal:
        """The answer to ``newcomer``, whose place is taken by ``holder``, last heard of ``age_s`` seconds ago."""
        here, there = newcomer.host, holder.host
        text = (
            f"{names(ranks_of(newcomer))} is taken by the agent with pid {there.pid} on {there.name}, which gave a "
            f"sign of life {age_s:.1f} s ago"
        )
        if (here.name, here.pid) not in self._known:
            self._known.add((here.name, here.pid))
            log.warning("put off the agent with pid %d on %s: %s", here.pid, here.name, text)
        return Refusal(kind="retry", message=text)
