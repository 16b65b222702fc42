# SPDX-License-Identifier: Apache-2.0
"""The bytes of a segment. One segment joins one Attention rank, one FFN rank and one ubatch.

    0      preamble: magic, layout version and the geometry, written by the creator, compared by the opener
    128    block of the Attention process: bell, waiting, aborted, closed (u32 each)
    256    block of the FFN process
    384    head, 512 tail     of the ring Attention → FFN
    640    head, 768 tail     of the ring FFN → Attention
    4096   cells of the ring Attention → FFN, then those of the ring FFN → Attention

A cell is a header, the hidden states of up to ``max_rows`` rows and, in ids mode, their token ids. ``ring.c`` explains
the words and the memory ordering; its structs must have the sizes below (the loader compares them).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from afd.errors import MisuseError

MAGIC = b"AFDSHM\0\0"
VERSION = 1

LINE = 128
ATTENTION_SIDE, FFN_SIDE = 1 * LINE, 2 * LINE
TO_FFN_HEAD, TO_FFN_TAIL = 3 * LINE, 4 * LINE
TO_ATTENTION_HEAD, TO_ATTENTION_TAIL = 5 * LINE, 6 * LINE
CELLS = 4096

# Inside a side block.
BELL, WAITING, ABORTED, CLOSED = 0, 4, 8, 12

_PREAMBLE = struct.Struct("<8sIIQQQQ")
HIDDEN_AT = LINE
"""Offset of the hidden states in a cell: after the header, aligned for vector loads."""


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(frozen=True)
class Geometry:
    """Sizes of one segment. Bytes are of one row and of one token id (0: ids do not cross)."""

    epoch: int
    max_rows: int
    row_bytes: int
    id_bytes: int
    cells: int = 2
    """Cells per direction, a power of two: the counters of a ring wrap at 2^32, and the cell that comes next must not
    jump then. Two let one be read in place while the next is written."""

    def __post_init__(self) -> None:
        if self.cells < 1 or self.cells & (self.cells - 1):
            raise MisuseError(f"{self.cells} cells in a ring: it must be a power of two")

    @property
    def ids_at(self) -> int:
        """Offset of the token ids in a cell."""
        return HIDDEN_AT + _aligned(self.max_rows * self.row_bytes, LINE)

    @property
    def stride(self) -> int:
        """Bytes from cell to cell: whole pages."""
        return _aligned(self.ids_at + self.max_rows * self.id_bytes, 4096)

    @property
    def to_ffn(self) -> int:
        """Offset of the first cell of the ring Attention → FFN."""
        return CELLS

    @property
    def to_attention(self) -> int:
        """Offset of the first cell of the ring FFN → Attention."""
        return CELLS + self.cells * self.stride

    @property
    def size(self) -> int:
        """Bytes of the whole segment."""
        return CELLS + 2 * self.cells * self.stride

    def preamble(self) -> bytes:
        """The first bytes of a segment with this geometry."""
        return _PREAMBLE.pack(
            MAGIC, VERSION, self.cells, self.epoch, self.max_rows, self.row_bytes, self.id_bytes
        )

    @classmethod
    def parse(cls, preamble: bytes) -> Geometry | None:
        """The geometry that a segment's first bytes state; None when they are not ours."""
        magic, version, cells, epoch, max_rows, row_bytes, id_bytes = _PREAMBLE.unpack_from(preamble)
        if magic != MAGIC or version != VERSION:
            return None
        return cls(epoch=epoch, max_rows=max_rows, row_bytes=row_bytes, id_bytes=id_bytes, cells=cells)


PREAMBLE_BYTES = _PREAMBLE.size
