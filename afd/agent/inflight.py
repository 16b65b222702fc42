# SPDX-License-Identifier: Apache-2.0
"""How many requests the API server is answering now, how many it broke, and whether it takes new ones: a shared file.

An agent that ends a broken role waits until every request in flight has had its error. One that stops closes the door
first, and says whether all were answered. The API server runs this as ASGI middleware (``--middleware``); the agent
maps the same file, named by ``AFD_INFLIGHT``.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

VARIABLE = "AFD_INFLIGHT"
_COUNTS = struct.Struct("=qq")
"""Requests in flight, and requests that were answered with an error of the server."""
_DOOR = struct.Struct("=q")
"""Not 0 when new requests are turned away. The agent writes it; the counts are the API server's."""
_STREAM_ERROR = b'data: {"error"'
"""How the error in the middle of a stream begins, whose status has been sent as 200 long before."""

_BODY = json.dumps(
    {
        "error": {
            "message": "this server is draining: it takes no new requests",
            "type": "ServiceUnavailableError",
            "param": None,
            "code": 503,
        }
    }
).encode()
_BUSY = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_BODY)).encode()),
    (b"retry-after", b"5"),
    (b"connection", b"close"),
]

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class InflightFile:
    """The shared words. The API server's event loop writes the counts, the agent closes the door."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(_COUNTS.size + _DOOR.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNTS.size + _DOOR.size)

    @property
    def count(self) -> int:
        """Requests in flight."""
        return self._read()[0]

    @property
    def broken(self) -> int:
        """Requests since the start that the server answered with an error of its own."""
        return self._read()[1]

    def add(self, change: int, broken: int = 0) -> None:
        count, before = self._read()
        _COUNTS.pack_into(self._map, 0, count + change, before + broken)

    @property
    def closed(self) -> bool:
        """Whether new requests are turned away."""
        return bool(_DOOR.unpack_from(self._map, _COUNTS.size)[0])

    def close_door(self) -> None:
        """From now on new requests are turned away."""
        _DOOR.pack_into(self._map, _COUNTS.size, 1)

    def _read(self) -> tuple[int, int]:
        count, broken = _COUNTS.unpack_from(self._map)
        return int(count), int(broken)


class Inflight:
    """Counts HTTP POST requests from their first byte to the last byte of the answer; 503 when the door is closed."""

    def __init__(self, app: ASGI) -> None:
        self._app = app
        self._file = InflightFile(Path(os.environ[VARIABLE]), create=False)

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        # Whatever generates is a POST, under /v1, under other paths and below any --root-path.
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._file.closed:
            # Closing a connection with something unread in it resets it, and the answer may be lost.
            while (await receive()).get("more_body", False):
                pass
            await send({"type": "http.response.start", "status": 503, "headers": _BUSY})
            await send({"type": "http.response.body", "body": _BODY})
            return
        self._file.add(1)
        broken = False

        async def watched(message: Any) -> None:
            nonlocal broken
            kind = message["type"]
            broken |= kind == "http.response.start" and message["status"] >= 500
            broken |= kind == "http.response.body" and message.get("body", b"").startswith(_STREAM_ERROR)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._file.add(-1, broken=int(broken))
