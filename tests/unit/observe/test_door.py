# SPDX-License-Identifier: Apache-2.0
"""Silent strangers do not use up the connections of an agent."""

from __future__ import annotations

import asyncio

from afd.observe.door import Door


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"x")
    try:
        return await asyncio.wait_for(reader.read(1), 5) == b"x"
    except ConnectionError:
        return False


def run(most: int, first_word_s: float, *deeds: str) -> list[str]:
    """Open connections that are silent, or that talk; what became of each in the end."""

    async def work() -> list[str]:
        door = Door(most, first_word_s)
        server = await asyncio.get_running_loop().create_server(lambda: door.visit(Echo()), "127.0.0.1", 0)
        opened = []
        for deed in deeds:
            connection = await _open(server.sockets[0].getsockname()[1])
            opened.append(connection)
            if deed == "talk":
                await _answers(*connection)
            await asyncio.sleep(0.02)
        if first_word_s < 1:
            await asyncio.sleep(2 * first_word_s)
        found = ["answered" if await _answers(*connection) else "closed" for connection in opened]
        for _, writer in opened:
            writer.close()
        server.close()
        return found

    return asyncio.run(work())


def test_the_one_that_is_silent_for_longest_makes_room_for_a_new_one() -> None:
    assert run(2, 60, "be silent", "talk", "be silent", "talk") == [
        "closed",
        "answered",
        "closed",
        "answered",
    ]


def test_when_all_talk_a_new_one_has_to_go() -> None:
    assert run(2, 60, "talk", "talk", "talk") == ["answered", "answered", "closed"]


def test_one_that_says_nothing_for_a_while_is_closed() -> None:
    assert run(9, 0.2, "be silent", "talk") == ["closed", "answered"]
