# SPDX-License-Identifier: Apache-2.0
"""How many requests vLLM's API server is answering now, and how many it broke, told to the agent through a shared file.

An agent that ends a broken role waits until every request in flight has had its error, and one that stops says whether
all were answered. The API server runs this as ASGI middleware (``--middleware``); the agent maps the same file, named
by ``AFD_INFLIGHT``.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

VARIABLE = "AFD_INFLIGHT"
_COUNTS = struct.Struct("=qq")
"""Requests in flight, and requests that were answered with an error of the server."""
_STREAM_ERROR = b'data: {"error"'
"""How the error in the middle of a stream begins, whose status has been sent as 200 long before."""

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class InflightFile:
    """The shared counters. One process writes (the API server's event loop), one reads."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(_COUNTS.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNTS.size)

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

    def _read(self) -> tuple[int, int]:
        count, broken = _COUNTS.unpack_from(self._map)
        return int(count), int(broken)


class Inflight:
    """Counts HTTP POST requests from their first byte to the last byte of the answer."""

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
