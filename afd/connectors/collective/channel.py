# SPDX-License-Identifier: Apache-2.0
"""Payloads between two ranks, both ways and in order, for one ubatch.

Receives are posted before their payload is sent, so that it crosses in one go instead of being announced, asked for and
sent. There are two buffers for them, so that one payload may be read in place while the next arrives, and one to send
from: by the time of the next send the last one has long been received.
"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

from torch import Tensor

from afd.connectors.base import ConnectorSpec
from afd.connectors.collective.group import Group
from afd.connectors.collective.message import Message
from afd.connectors.payload import Header, epoch_hash
from afd.connectors.waits import AGAIN, CLOSED, PEER_CLOSED, Patience
from afd.topology import Rank, Role

if TYPE_CHECKING:
    from torch.distributed import Work

DEPTH = 2
"""Receives that are posted."""


class Channel:
    """This rank's end of the path to ``peer``, which is member ``place`` of ``group``. One thread at a time uses it."""

    def __init__(self, spec: ConnectorSpec, ubatch: int, peer: Rank, group: Group, place: int) -> None:
        attention = spec.rank.role is Role.ATTENTION
        self._epoch, self._ubatch = epoch_hash(spec.epoch), ubatch
        self._ids_out, self._ids_in = spec.ids and attention, spec.ids and not attention
        self._abort, self._poison = spec.abort, spec.poison
        self._step_s = spec.step_s
        self._limit = datetime.timedelta(seconds=spec.step_s)
        self._patience = Patience(spec, peer, ubatch)
        self._group, self._place = group, place
        self._outbox = Message(spec, self._ids_out)
        self._inbox = [Message(spec, self._ids_in) for _ in range(DEPTH)]
        self._send: Work | None = None
        self._receives: list[Work | None] = [None] * DEPTH
        self._in = 0
        self._broken = False
        for at in range(DEPTH):
            self._post(at)

    def begin(self, rows: int) -> None:
        """Payloads from here on have ``rows`` rows."""
        for message in (self._outbox, *self._inbox):
            message.shape(rows)

    def send(
        self, step: int, layer: int, rows: int, hidden: Tensor, token_ids: Tensor | None, doing: str
    ) -> None:
        """Copy ``hidden`` [rows, hidden] (and ids [rows]) and post them; waits while the last send is still out."""
        self._abort.check()
        if self._broken or self._send is not None:
            self._wait(self._send, doing, step, layer)
            self._send = None
        message = self._outbox
        message.header = Header(self._epoch, step, layer, self._ubatch, rows, int(self._ids_out))
        message.hidden.copy_(hidden)
        if token_ids is not None and message.ids is not None:
            message.ids.copy_(token_ids)
        try:
            self._send = self._group.send(message.filled, self._place)
        except RuntimeError:
            # The peer is gone. What it sent before may still be read, so the next wait says so, not this send.
            self._broken = True

    def receive(self, step: int, layer: int, rows: int, doing: str) -> Message:
        """Wait for the next payload and check its header. It is this side's until :meth:`release`.

        Raises :class:`afd.errors.MisuseError` for a payload that is not the one that must come now.
        """
        at = self._in
        self._wait(self._receives[at], doing, step, layer)
        self._receives[at] = None
        message = self._inbox[at]
        expected = Header(self._epoch, step, layer, self._ubatch, rows, int(self._ids_in))
        if (found := message.header) != expected:
            raise self._patience.mismatch(expected, found)
        return message

    def release(self) -> None:
        """End the life of what :meth:`receive` returned."""
        at = self._in
        self._in = (at + 1) % DEPTH
        if self._poison:
            self._inbox[at].poison()
        self._post(at)

    def _post(self, at: int) -> None:
        try:
            self._receives[at] = self._group.receive(self._inbox[at].buffer, self._place)
        except RuntimeError:
            self._broken = True  # the wait for this receive says so

    def _wait(self, work: Work | None, doing: str, step: int, layer: int) -> None:
        error: Exception | None = None
        started = time.monotonic()
        if work is not None:
            try:
                work.wait(self._limit)
                return
            except RuntimeError as raised:
                error = raised
        late = time.monotonic() - started >= self._step_s
        code = CLOSED if self._group.closed else AGAIN if late else PEER_CLOSED
        raise self._patience.end(code, doing, step, layer) from error
