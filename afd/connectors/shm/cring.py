# SPDX-License-Identifier: Apache-2.0
"""The ring of ring.c, called through ctypes."""

from __future__ import annotations

import ctypes

from afd.connectors.payload import Header
from afd.connectors.shm import layout
from afd.connectors.shm.helper import Library, RingState
from afd.connectors.shm.layout import Geometry
from afd.connectors.shm.rings import SLICE_S, Ends
from afd.connectors.shm.segment import Segment


class CBells:
    def __init__(self, library: Library, segment: Segment, ends: Ends) -> None:
        self._library = library
        self._segment = segment
        self._mine = segment.address + ends.mine
        self._peer = segment.address + ends.peer

    def abort(self) -> None:
        self._library.abort(self._mine)

    def close(self) -> None:
        self._library.close(self._mine, self._peer)


class CRing:
    """The ring of ring.c."""

    def __init__(
        self,
        library: Library,
        segment: Segment,
        ends: Ends,
        geometry: Geometry,
        *,
        ubatch: int,
        ids: bool,
        spin_us: int,
        poison: bool,
        slice_s: float,
    ) -> None:
        base = segment.address
        self._segment = segment
        self._cells = ends.cells
        self._stride = geometry.stride
        self._count = geometry.cells
        self._state = RingState(
            mine=base + ends.mine,
            peer=base + ends.peer,
            head=base + ends.head,
            tail=base + ends.tail,
            cells=base + ends.cells,
            stride=geometry.stride,
            hidden_at=layout.HIDDEN_AT,
            ids_at=geometry.ids_at,
            row_bytes=geometry.row_bytes,
            id_bytes=geometry.id_bytes if ids else 0,
            epoch=geometry.epoch,
            spin_ns=spin_us * 1000,
            slice_ns=int(slice_s * 1e9),
            count=geometry.cells,
            ubatch=ubatch,
            position=segment.words[ends.head // 4],
            poison=poison,
        )
        self._at = ctypes.addressof(self._state)
        self._send, self._peek, self._take = library.send, library.peek, library.take
        self._release = library.release

    @property
    def cell(self) -> int:
        return int(self._state.position) % self._count

    def send(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        return self._send(self._at, step, layer, rows, hidden, ids)  # type: ignore[no-any-return]

    def peek(self, step: int, layer: int, rows: int) -> int:
        return self._peek(self._at, step, layer, rows)  # type: ignore[no-any-return]

    def take(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        return self._take(self._at, step, layer, rows, hidden, ids)  # type: ignore[no-any-return]

    def release(self) -> None:
        self._release(self._at)

    def header(self) -> Header:
        return Header.unpack_from(self._segment.bytes, self._cells + self.cell * self._stride)


class CKit:
    """Makes C rings."""

    name = "c"

    def __init__(self, library: Library, slice_s: float = SLICE_S) -> None:
        self._library = library
        self._slice_s = slice_s

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
    ) -> CRing:
        return CRing(
            self._library,
            segment,
            ends,
            geometry,
            ubatch=ubatch,
            ids=ids,
            spin_us=spin_us,
            poison=poison,
            slice_s=self._slice_s,
        )

    def bells(self, segment: Segment, ends: Ends) -> CBells:
        return CBells(self._library, segment, ends)
