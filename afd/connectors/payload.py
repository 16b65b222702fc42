# SPDX-License-Identifier: Apache-2.0
"""What every payload says about itself, over every transport that writes its own bytes."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_HEADER = struct.Struct("<QQiIII")


class Header(NamedTuple):
    """The place of a payload in the run. A receiver compares it with the one that the schedule says."""

    epoch: int
    step: int
    layer: int
    ubatch: int
    rows: int
    ids: int

    def pack_into(self, buffer: memoryview, offset: int) -> None:
        _HEADER.pack_into(buffer, offset, *self)

    @classmethod
    def unpack_from(cls, buffer: memoryview, offset: int) -> Header:
        return cls(*_HEADER.unpack_from(buffer, offset))


HEADER_BYTES = _HEADER.size


def epoch_hash(epoch: str) -> int:
    """64 bits that stand for an epoch in a header."""
    return int.from_bytes(hashlib.blake2b(epoch.encode(), digest_size=8).digest(), "little")
