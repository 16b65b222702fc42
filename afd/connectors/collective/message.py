# SPDX-License-Identifier: Apache-2.0
"""The bytes of one payload: a header, the hidden states of its rows and, in ids mode, their token ids.

A buffer always has room for the most rows, so that a payload that is not the expected one can be received, read and
named. (Gloo ends the process when a message is longer than the buffer that waits for it.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from afd.connectors.base import ConnectorSpec
from afd.connectors.payload import HEADER_BYTES, Header

ALIGNED = 64
"""Hidden states and ids begin at multiples of this, for vector loads."""
HIDDEN_AT = -(-HEADER_BYTES // ALIGNED) * ALIGNED


class Message:
    """One buffer for payloads of up to ``spec.max_tokens`` rows, with token ids when ``ids``."""

    def __init__(self, spec: ConnectorSpec, ids: bool) -> None:
        self._hidden_size, self._dtype, self._ids_dtype = spec.hidden_size, spec.dtype, spec.ids_dtype
        self._row_bytes = spec.hidden_size * spec.dtype.itemsize
        self._id_bytes = spec.ids_dtype.itemsize if ids else 0
        self.buffer = torch.empty(self._size(spec.max_tokens), dtype=torch.uint8)
        self._header = self.buffer[:HIDDEN_AT].numpy().data
        self.rows = -1
        self.filled = self.hidden = self.buffer
        self.ids: Tensor | None = None
        self.shape(0)

    def _ids_at(self, rows: int) -> int:
        return -(-(HIDDEN_AT + rows * self._row_bytes) // ALIGNED) * ALIGNED

    def _size(self, rows: int) -> int:
        if self._id_bytes:
            return self._ids_at(rows) + rows * self._id_bytes
        return HIDDEN_AT + rows * self._row_bytes

    def shape(self, rows: int) -> None:
        """Cut the views for ``rows`` rows: ``filled`` [bytes], ``hidden`` [rows, hidden], ``ids`` [rows] or None."""
        if rows == self.rows:
            return
        self.rows = rows
        self.filled = self.buffer[: self._size(rows)]
        end = HIDDEN_AT + rows * self._row_bytes
        self.hidden = self.buffer[HIDDEN_AT:end].view(self._dtype).view(rows, self._hidden_size)
        if self._id_bytes:
            first = self._ids_at(rows)
            self.ids = self.buffer[first : first + rows * self._id_bytes].view(self._ids_dtype)

    @property
    def header(self) -> Header:
        return Header.unpack_from(self._header, 0)

    @header.setter
    def header(self, header: Header) -> None:
        header.pack_into(self._header, 0)

    def poison(self) -> None:
        """Overwrite what a view that is not valid any more would show."""
        self.buffer[HIDDEN_AT:].fill_(0xFF)
