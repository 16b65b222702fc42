# SPDX-License-Identifier: Apache-2.0
"""One direction of a lane: the interface that the C ring and the Python ring share. ``ring.c`` explains the protocol.

Rings work on addresses, so that a transfer is one call. A call waits for at most one slice and returns a code; what
to do about a code other than :data:`afd.connectors.waits.OK` is decided there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from afd.connectors.payload import Header
from afd.connectors.shm import layout
from afd.connectors.shm.layout import Geometry
from afd.connectors.shm.segment import Segment

SLICE_S = 0.1
"""Longest sleep in one call: what bounds the delay of a signal, and of a wake-up that was lost."""

SPIN_US = 20
"""Polling before sleeping when there are cores to spare; a wake-up costs about 7 µs per direction."""


def spin_us(processes: int) -> int:
    """How long waits may poll, in microseconds, when ``processes`` busy processes share this host.

    Not at all unless more cores than processes are there: servers and agents need one too, and on a shared core a
    poller only delays what it waits for.
    """
    return SPIN_US if len(os.sched_getaffinity(0)) > processes else 0


@dataclass(frozen=True)
class Ends:
    """Where the words of one ring are, seen from one process (offsets in the segment)."""

    mine: int
    peer: int
    head: int
    tail: int
    cells: int


def to_ffn(geometry: Geometry, attention: bool) -> Ends:
    """The ring Attention → FFN as the Attention process (or the FFN process) sees it."""
    sides = (layout.ATTENTION_SIDE, layout.FFN_SIDE)
    mine, peer = sides if attention else sides[::-1]
    return Ends(mine, peer, layout.TO_FFN_HEAD, layout.TO_FFN_TAIL, geometry.to_ffn)


def to_attention(geometry: Geometry, attention: bool) -> Ends:
    """The ring FFN → Attention as the Attention process (or the FFN process) sees it."""
    sides = (layout.ATTENTION_SIDE, layout.FFN_SIDE)
    mine, peer = sides if attention else sides[::-1]
    return Ends(mine, peer, layout.TO_ATTENTION_HEAD, layout.TO_ATTENTION_TAIL, geometry.to_attention)


class Ring(Protocol):
    """One direction. The writer only sends, the reader only peeks, takes and releases; one thread at a time."""

    @property
    def cell(self) -> int:
        """Index of the cell that the next send or peek is about."""
        ...

    def send(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        """Write one payload from two addresses (``ids`` is not looked at when ids do not cross)."""
        ...

    def peek(self, step: int, layer: int, rows: int) -> int:
        """Wait for the next payload and check its header; its cell stays this side's until :meth:`release`."""
        ...

    def take(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        """Peek, copy to two addresses, release."""
        ...

    def release(self) -> None: ...

    def header(self) -> Header:
        """The header in the current cell, after :data:`HEADER`."""
        ...


class Bells(Protocol):
    """Wakes the waiters of a segment from any thread."""

    def abort(self) -> None:
        """Make waits of this process return :data:`ABORTED`, now and from now on."""
        ...

    def close(self) -> None:
        """Make waits of this process return :data:`CLOSED` and, when nothing is left to read, the peer's too."""
        ...


class Kit(Protocol):
    """Makes the rings and bells of one kind. With ``ids`` a ring's payloads carry token ids."""

    @property
    def name(self) -> str: ...

    def ring(
        self,
        segment: Segment,
        ends: Ends,
        geometry: Geometry,
        *,
        ubatch: int,
        ids: bool,
        spin_us: int = 0,
        poison: bool = False,
    ) -> Ring: ...

    def bells(self, segment: Segment, ends: Ends) -> Bells: ...
