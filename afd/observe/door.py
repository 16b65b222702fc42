# SPDX-License-Identifier: Apache-2.0
"""Who may keep a connection to the agent's port: anybody can reach it, and its file descriptors are the role's."""

from __future__ import annotations

import asyncio

MOST = 64
"""Connections at a time. Probes, a scraper and some people with curl need less than ten."""
FIRST_WORD_S = 5.0
"""How long a new connection may say nothing."""


class Door:
    """Lets in at most :data:`MOST` connections. When there are more, the one that has said nothing for longest has to
    go, or else the new one. Belongs to the event loop."""

    def __init__(self, most: int = MOST, first_word_s: float = FIRST_WORD_S) -> None:
        self._most, self._first_word_s = most, first_word_s
        self._inside: dict[Visit, bool] = {}
        """Whether each has said something; the oldest comes first."""

    def visit(self, handler: asyncio.Protocol) -> Visit:
        """The protocol of a new connection, which ``handler`` serves."""
        return Visit(self, handler)

    def enter(self, visit: Visit) -> bool:
        if len(self._inside) >= self._most:
            silent = next((one for one, spoke in self._inside.items() if not spoke), None)
            if silent is None:
                return False
            silent.turn_out()
        self._inside[visit] = False
        asyncio.get_running_loop().call_later(self._first_word_s, self._listen, visit)
        return True

    def spoke(self, visit: Visit) -> None:
        if visit in self._inside:
            self._inside[visit] = True

    def leave(self, visit: Visit) -> None:
        self._inside.pop(visit, None)

    def _listen(self, visit: Visit) -> None:
        if self._inside.get(visit) is False:
            visit.turn_out()


class Visit(asyncio.Protocol):
    """One connection: hands everything on to what serves it, once it was let in."""

    def __init__(self, door: Door, handler: asyncio.Protocol) -> None:
        self._door, self._handler = door, handler
        self._transport: asyncio.BaseTransport | None = None

    def turn_out(self) -> None:
        """Close the connection without a word."""
        self._door.leave(self)
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._door.enter(self):
            self._handler.connection_made(transport)
        else:
            self._handler = asyncio.Protocol()
            self.turn_out()

    def data_received(self, data: bytes) -> None:
        self._door.spoke(self)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self._handler.connection_lost(exc)
