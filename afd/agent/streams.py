# SPDX-License-Identifier: Apache-2.0
"""What the processes below a role's process say: each of them has two streams of its own to the agent
(:mod:`afd.launch.streams`), so no line is cut by another process, and each has the name of its rank."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from afd.agent.launch_protocol import NAMES_A_RANK

_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED gives: process, user and group."""
LONGEST = 1 << 20
"""Bytes of a line. What has arrived of a longer one is dropped."""


async def read_lines(stream: asyncio.StreamReader, said: Callable[[str], None]) -> None:
    """Hand each line to ``said``, without its end, until the stream ends."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # too long
            continue
        if not line:
            return
        said(line.decode(errors="replace").rstrip("\n"))


class _Peer(NamedTuple):
    pid: int
    user: int


def _peer(writer: asyncio.StreamWriter) -> _Peer:
    """The process at the other end and its user, as the kernel knows them."""
    connection: socket.socket = writer.get_extra_info("socket")
    pid, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return _Peer(pid, user)


class Streams:
    """Listens for the streams of processes at ``address``. Belongs to the event loop."""

    def __init__(
        self,
        said: Callable[[str, str], None],
        begun: Callable[[int], bool],
        named: Callable[[int, str], None],
    ) -> None:
        """``said`` gets the name of a rank, "" when the process is none, and one line; ``begun`` the number of a
        process that has just been forked, and says whether it is one of ours; ``named`` that of one with the name of
        the rank that it is."""
        self._said, self._begun, self._named = said, begun, named
        self._server: asyncio.AbstractServer | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self.address = f"@afd-output-{os.getpid()}-{secrets.token_hex(8)}"

    async def start(self) -> None:
        """Listen."""
        path = "\0" + self.address[1:]
        self._server = await asyncio.start_unix_server(self._serve, path=path, limit=LONGEST)

    async def close(self, timeout_s: float) -> None:
        """Read what the processes have left, for at most ``timeout_s``. Twice is fine."""
        if self._server is not None:
            self._server.close()
        if self._readers:
            await asyncio.wait(self._readers, timeout=timeout_s)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        rank = ""
        peer = _peer(writer)
        pid: int = peer.pid
        if peer.user not in (0, os.getuid()) or not self._begun(pid):  # the address is no secret
            self._readers.discard(task)
            writer.close()
            return

        def said(line: str) -> None:
            nonlocal rank
            if line.startswith(NAMES_A_RANK):
                rank = line.removeprefix(NAMES_A_RANK)
                self._named(pid, rank)
            else:
                self._said(rank, line)

        try:
            await read_lines(reader, said)
        except (asyncio.CancelledError, OSError):
            return  # the agent ends, or the process was killed
        finally:
            self._readers.discard(task)
            writer.close()
