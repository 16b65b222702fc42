# SPDX-License-Identifier: Apache-2.0
"""The same ring in Python, for machines without a C compiler.

Memory ordering: it stores the payload, then ``head``, with ordinary stores, which x86-64 keeps in order (and CPython's
byte code is no place where a compiler could reorder them). aarch64 does not, and Python has no release store, so
there the C helper is required and :func:`problem` says so. A store and a later load may change places on x86-64
too; therefore the Python ring never tries to save a wake-up: it leaves its ``waiting`` word set, and it rings the
peer's bell with every transfer.
"""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable

from afd.connectors.payload import Header
from afd.connectors.shm import layout
from afd.connectors.shm.layout import Geometry
from afd.connectors.shm.rings import SLICE_S, Ends
from afd.connectors.shm.segment import Segment
from afd.connectors.waits import ABORTED, AGAIN, CLOSED, HEADER, OK, PEER_CLOSED
from afd.errors import ResourceError

_SYS_FUTEX = {"x86_64": 202}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_EVERYBODY = 0x7FFFFFFF
_U32 = 0xFFFFFFFF
_ENOSYS = 38


def problem(machine: str | None = None) -> str | None:
    """Why the Python ring must not be used on this machine; None when it may."""
    machine = machine or platform.machine()
    if machine in ("x86_64", "AMD64", "i686", "i386"):
        return None
    return f"transport shm needs its C helper on {machine} (Python cannot order memory there): install a C compiler"


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Sleep on a word and wake its sleepers; where the system call is not available, short sleeps instead."""

    def __init__(self, machine: str | None = None, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        self._number = _SYS_FUTEX.get(machine or platform.machine())
        self._call: Callable[..., int] | None = None
        if self._number is not None:
            call = ctypes.CDLL(None, use_errno=True).syscall
            pointer = ctypes.c_void_p
            call.argtypes = (
                ctypes.c_long,
                pointer,
                ctypes.c_int,
                ctypes.c_uint32,
                pointer,
                pointer,
                ctypes.c_int,
            )
            call.restype = ctypes.c_long
            ctypes.set_errno(0)
            probe = ctypes.c_uint32(0)
            call(self._number, ctypes.addressof(probe), _FUTEX_WAKE, 1, None, None, 0)
            if ctypes.get_errno() != _ENOSYS:
                self._call = call
        self._slice = _Timespec(int(slice_s), int(slice_s % 1 * 1e9))

    @property
    def polls(self) -> bool:
        """Whether waits are short sleeps because there is no futex."""
        return self._call is None

    def wait(self, address: int, value: int) -> None:
        """Sleep until woken, for one slice at most; not at all when the word is not ``value`` any more."""
        if self._call is None:
            time.sleep(0.0002)
        else:
            self._call(self._number, address, _FUTEX_WAIT, value, ctypes.addressof(self._slice), None, 0)

    def wake(self, address: int) -> None:
        if self._call is not None:
            self._call(self._number, address, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


class PyBells:
    def __init__(self, futex: Futex, segment: Segment, ends: Ends) -> None:
        self._futex = futex
        self._segment = segment
        self._mine, self._peer = ends.mine, ends.peer

    def ring(self, side: int) -> None:
        words = self._segment.words
        words[side // 4] = (words[side // 4] + 1) & _U32
        self._futex.wake(self._segment.address + side)

    def abort(self) -> None:
        self._segment.words[(self._mine + layout.ABORTED) // 4] = 1
        self.ring(self._mine)

    def close(self) -> None:
        self._segment.words[(self._mine + layout.CLOSED) // 4] = 1
        self.ring(self._mine)
        self.ring(self._peer)


class PyRing:
    """The same ring in Python."""

    def __init__(
        self,
        futex: Futex,
        segment: Segment,
        ends: Ends,
        geometry: Geometry,
        *,
        ubatch: int,
        ids: bool,
        spin_us: int,
        poison: bool,
    ) -> None:
        self._futex = futex
        self._bells = PyBells(futex, segment, ends)
        self._segment = segment
        self._words = segment.words
        self._geometry = geometry
        self._ubatch = ubatch
        self._ids = int(ids)
        self._spin_ns = spin_us * 1000
        self._poison = poison
        self._position = segment.words[ends.head // 4]
        self._cells = ends.cells
        self._peer = ends.peer
        self._head, self._tail = ends.head // 4, ends.tail // 4
        self._aborted = (ends.mine + layout.ABORTED) // 4
        self._closed = (ends.mine + layout.CLOSED) // 4
        self._peer_closed = (ends.peer + layout.CLOSED) // 4
        self._bell = ends.mine // 4
        self._bell_address = segment.address + ends.mine
        # Never cleared: a writer in C then always rings, see the module's words on memory ordering.
        self._words[(ends.mine + layout.WAITING) // 4] = 1

    @property
    def cell(self) -> int:
        return self._position % self._geometry.cells

    def _space(self) -> bool:
        return (self._position - self._words[self._tail]) & _U32 < self._geometry.cells

    def _data(self) -> bool:
        return self._words[self._head] != self._position

    def _await(self, ready: Callable[[], bool]) -> int:
        words = self._words
        if words[self._aborted]:
            return ABORTED
        if words[self._closed]:
            return CLOSED
        if ready():
            return OK
        if self._spin_ns:
            end = time.monotonic_ns() + self._spin_ns
            while time.monotonic_ns() < end:
                if ready():
                    return OK
        end_s = time.monotonic() + self._futex.slice_s
        while True:
            bell = words[self._bell]
            if ready():
                return OK
            if words[self._aborted]:
                return ABORTED
            if words[self._closed]:
                return CLOSED
            if words[self._peer_closed]:
                return OK if ready() else PEER_CLOSED
            if time.monotonic() >= end_s:
                return AGAIN
            self._futex.wait(self._bell_address, bell)

    def _cell_at(self) -> int:
        return self._cells + self.cell * self._geometry.stride

    def send(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        code = self._await(self._space)
        if code != OK:
            return code
        geometry, at = self._geometry, self._cell_at()
        Header(geometry.epoch, step, layer, self._ubatch, rows, self._ids).pack_into(self._segment.bytes, at)
        base = self._segment.address + at
        ctypes.memmove(base + layout.HIDDEN_AT, hidden, rows * geometry.row_bytes)
        if self._ids:
            ctypes.memmove(base + geometry.ids_at, ids, rows * geometry.id_bytes)
        self._position = (self._position + 1) & _U32
        self._words[self._head] = self._position
        self._bells.ring(self._peer)
        return OK

    def peek(self, step: int, layer: int, rows: int) -> int:
        code = self._await(self._data)
        if code != OK:
            return code
        expected = (self._geometry.epoch, step, layer, self._ubatch, rows, self._ids)
        return OK if self.header() == expected else HEADER

    def release(self) -> None:
        if self._poison:
            at = self._segment.address + self._cell_at() + layout.HIDDEN_AT
            ctypes.memset(at, 0xFF, self._geometry.stride - layout.HIDDEN_AT)
        self._position = (self._position + 1) & _U32
        self._words[self._tail] = self._position
        self._bells.ring(self._peer)

    def take(self, step: int, layer: int, rows: int, hidden: int, ids: int) -> int:
        code = self.peek(step, layer, rows)
        if code != OK:
            return code
        geometry = self._geometry
        base = self._segment.address + self._cell_at()
        ctypes.memmove(hidden, base + layout.HIDDEN_AT, rows * geometry.row_bytes)
        if self._ids:
            ctypes.memmove(ids, base + geometry.ids_at, rows * geometry.id_bytes)
        self.release()
        return OK

    def header(self) -> Header:
        return Header.unpack_from(self._segment.bytes, self._cell_at())


class PyKit:
    """Makes Python rings. Raises :class:`ResourceError` where they would be wrong."""

    name = "python"

    def __init__(self, futex: Futex | None = None) -> None:
        trouble = problem()
        if trouble is not None:
            raise ResourceError(trouble)
        self._futex = futex or Futex()

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
    ) -> PyRing:
        return PyRing(
            self._futex, segment, ends, geometry, ubatch=ubatch, ids=ids, spin_us=spin_us, poison=poison
        )

    def bells(self, segment: Segment, ends: Ends) -> PyBells:
        return PyBells(self._futex, segment, ends)
