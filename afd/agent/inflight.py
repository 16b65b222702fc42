# SPDX-License-Identifier: Apache-2.0
"""How many requests vLLM's API server is answering now, told to the agent through eight bytes of shared file.

An agent that ends a broken role waits until every request in flight has had its error. The API server runs this
as ASGI middleware (``--middleware``); the agent maps the same file, named by ``AFD_INFLIGHT``.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

VARIABLE = "AFD_INFLIGHT"
_COUNT = struct.Struct("=q")

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class InflightFile:
    """The shared counter. One process writes (the API server's event loop), one reads."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(_COUNT.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNT.size)

    @property
    def count(self) -> int:
        number: int = _COUNT.unpack_from(self._map)[0]
        return number

    def add(self, change: int) -> None:
        _COUNT.pack_into(self._map, 0, self.count + change)


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
        try:
            await self._app(scope, receive, send)
        finally:
            self._file.add(-1)
