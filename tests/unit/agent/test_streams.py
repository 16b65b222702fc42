# SPDX-License-Identifier: Apache-2.0
"""Whose output is taken: that of the processes below a role's, and of nobody else."""

from __future__ import annotations

import asyncio
import os
import socket

from afd.agent.launch_protocol import NAMES_A_RANK
from afd.agent.streams import Streams


def heard(ours: bool, *lines: str) -> tuple[list[tuple[str, str]], list[tuple[int, str]], bool]:
    """What arrives of a process that says ``lines``: with the ranks of it, the names it gave, and whether the
    connection was closed at once."""
    said: list[tuple[str, str]] = []
    named: list[tuple[int, str]] = []

    async def run() -> bool:
        streams = Streams(
            lambda rank, line: said.append((rank, line)),
            lambda pid: ours and pid == os.getpid(),
            lambda pid, rank: named.append((pid, rank)),
        )
        await streams.start()
        with socket.socket(socket.AF_UNIX) as stream:
            stream.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stream, "\0" + streams.address[1:])
            await loop.sock_sendall(stream, "".join(f"{line}\n" for line in lines).encode())
            stream.shutdown(socket.SHUT_WR)
            try:
                await asyncio.wait_for(loop.sock_recv(stream, 1), 5)
                closed = not said
            except ConnectionResetError:
                closed = True
        await streams.close(1.0)
        return closed

    return said, named, asyncio.run(run())


def test_lines_of_our_own_process_have_the_rank_that_it_gave() -> None:
    said, named, _ = heard(True, "before", f"{NAMES_A_RANK}A1", "after")
    assert said == [("", "before"), ("A1", "after")]
    assert named == [(os.getpid(), "A1")]


def test_a_stranger_is_not_listened_to() -> None:
    assert heard(False, f"{NAMES_A_RANK}A0", "forged") == ([], [], True)
