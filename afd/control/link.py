# SPDX-License-Identifier: Apache-2.0
"""A framed connection for asyncio: agent to agent, and agent to its rank processes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque

from afd.control.messages import MAX_BODY, AnyMessage, FrameReader, encode

log = logging.getLogger(__name__)

BACKLOG = 8 << 20
"""Bytes a peer may leave unread before the connection counts as broken."""


class Link:
    """One connection. Any task may send; one task at a time receives."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = MAX_BODY
    ) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(limit)
        self._ready: deque[AnyMessage] = deque()
        self._turn = asyncio.Lock()
        self._eof = False
        self._finishing = False
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = writer.get_extra_info("peername")
        here = writer.get_extra_info("sockname")
        self.local = str(here[0]) if isinstance(here, tuple) else ""
        """The address of this machine that the other side is connected to; "" for a local process."""
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local process"

    async def receive(self) -> AnyMessage | None:
        """The next message; None when the other side is gone.

        Raises :class:`afd.errors.MisuseError` or :class:`afd.errors.MismatchError` for what is no frame.
        """
        async with self._turn:
            while not self._ready:
                data = await self._read()
                if not data:
                    return None
                self._ready.extend(self._frames.feed(data))
            return self._ready.popleft()

    def send(self, message: AnyMessage) -> None:
        """Queue one frame. A connection that is closing or clogged drops it; its reader will see the end."""
        data = encode(message)
        if self._finishing or self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > BACKLOG:
            log.warning("%s reads nothing; closing its connection", self.name)
            self._writer.transport.abort()
            return
        self._writer.write(data)

    async def finish(self, grace_s: float = 1.0) -> None:
        """Close so that everything sent is delivered: end our half, then wait a moment for the other half's end.

        Closing at once could reset the connection, which throws away what the other side has not read yet.
        """
        self._finishing = True
        try:
            if self._writer.can_write_eof():
                self._writer.write_eof()
            await asyncio.wait_for(self._swallow(), grace_s)
        except (OSError, asyncio.TimeoutError):
            pass  # it had its chance to read
        finally:
            self.cut()

    def cut(self) -> None:
        """Close at once."""
        self._writer.close()

    async def _swallow(self) -> None:
        while not self._eof:
            async with self._turn:
                await self._read()

    async def _read(self) -> bytes:
        if self._eof:
            return b""
        try:
            data = await self._reader.read(1 << 16)
        except OSError:  # reset, timed out, unreachable: gone in each case
            data = b""
        self._eof = not data
        return data
