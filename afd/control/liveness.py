# SPDX-License-Identifier: Apache-2.0
"""Who has been silent for too long, without blaming others for one's own pauses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

PEER = TypeVar("PEER")
MISSED = 3
"""Heartbeats that a peer may miss."""


@dataclass
class _Watch:
    seen: float
    limit_s: float


class Silence(Generic[PEER]):
    """Ages of the last sign of life of some peers.

    :meth:`tick` must run every ``interval_s``. When it runs late, this process (or the whole machine) was stopped:
    what peers said meanwhile is still unread, so that time is not counted against them.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._watches: dict[PEER, _Watch] = {}
        self._ticked: float | None = None

    def watch(self, peer: PEER, heartbeat_s: float) -> None:
        """Expect a sign of life of ``peer`` every ``heartbeat_s`` from now on."""
        self._watches[peer] = _Watch(self._clock(), MISSED * heartbeat_s - self.interval_s)

    def beat(self, peer: PEER) -> None:
        if peer in self._watches:
            self._watches[peer].seen = self._clock()

    def forget(self, peer: PEER) -> None:
        self._watches.pop(peer, None)

    def age(self, peer: PEER) -> float:
        """Seconds since the last sign of life; 0 for a peer that is not watched."""
        return max(0.0, self._clock() - self._watches[peer].seen) if peer in self._watches else 0.0

    def tick(self) -> tuple[list[PEER], float]:
        """Peers silent for too long, and for how many seconds this process was stopped since the last tick."""
        now = self._clock()
        gap = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        stopped = gap - self.interval_s if gap > 2 * self.interval_s else 0.0
        silent = []
        for peer, watch in self._watches.items():
            watch.seen = min(now, watch.seen + stopped)
            if now - watch.seen >= watch.limit_s:
                silent.append(peer)
        return silent, stopped
