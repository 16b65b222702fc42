# SPDX-License-Identifier: Apache-2.0
"""The agent port over real HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest

from afd.errors import ConfigError
from afd.observe.door import MOST
from afd.observe.metrics import Metrics
from afd.observe.server import open_server
from afd.observe.status import Status, not_ready, timestamp
from tests.unit.observe.samples import READY, status

T = TypeVar("T")


class Source:
    def __init__(self, shown: Status = READY) -> None:
        self.shown = shown
        self.dead: str | None = None

    def status(self) -> Status:
        return self.shown

    def not_live(self) -> str | None:
        return self.dead

    def not_ready(self) -> str | None:
        return not_ready(self.shown)


Answer = tuple[int, Any, str]
Ask = Callable[[str, str], Awaitable[Answer]]


def with_server(source: Source, work: Callable[[Ask], Awaitable[T]]) -> T:
    async def run() -> T:
        async with (
            open_server(source, Metrics(source.status), host="127.0.0.1", port=0) as server,
            aiohttp.ClientSession() as client,
        ):

            async def ask(method: str, path: str) -> Answer:
                async with client.request(method, f"http://127.0.0.1:{server.port}{path}") as response:
                    body = await response.read()
                    return (
                        response.status,
                        msgspec.json.decode(body) if response.content_type == "application/json" else body,
                        response.headers["Content-Type"],
                    )

            return await work(ask)

    return asyncio.run(run())


def get(source: Source, path: str, method: str = "GET") -> Answer:
    return with_server(source, lambda ask: ask(method, path))


def test_status_has_every_field_of_the_contract() -> None:
    code, body, _ = get(Source(), "/status")
    assert code == 200
    assert set(body) == {
        *("version", "image", "role", "rank", "ranks", "epoch", "state", "since", "waiting_for", "peers"),
        *("topology", "connector", "transport", "runner", "model", "config_revision", "graphs", "steps"),
        *("last_step_age_s", "restarts", "last_restart_s", "last_error"),
    }
    assert set(body["peers"][0]) == {"role", "rank", "host", "state", "last_seen_s"}
    assert set(body["graphs"]) == {"captured", "replayed"}
    assert msgspec.convert(body, Status) == READY


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": "loading"}, "state is loading"),
        ({"state": "rendezvous", "waiting_for": ("A0", "A1")}, "state is rendezvous, waiting for A0, A1"),
        ({"state": "failed", "last_error": "A0: gone"}, "state is failed: A0: gone"),
        ({"peers": (msgspec.structs.replace(READY.peers[0], state="lost"),)}, "A0 on h is lost"),
    ],
)
def test_not_ready_is_503_with_the_reason(change: dict[str, Any], reason: str) -> None:
    code, body, _ = get(Source(status(**change)), "/readyz")
    assert (code, body) == (503, {"state": body["state"], "reason": reason})


def test_ready_is_200_and_so_is_a_peer_that_is_ready_to_warm() -> None:
    assert get(Source(), "/readyz")[:2] == (200, {"state": "ready"})
    warm = status(peers=(msgspec.structs.replace(READY.peers[0], state="ready-to-warm"),))
    assert get(Source(warm), "/readyz")[0] == 200


def test_a_step_without_progress_is_not_ready_and_an_idle_role_is() -> None:
    assert (
        not_ready(READY, stuck_s=61.0)
        == "requests are in flight, and nothing was computed for 61.0 s (bound: 60 s)"
    )
    assert not_ready(READY, stuck_s=2.0) is None
    assert not_ready(status(last_step_age_s=1e6)) is None


def test_liveness_is_the_sources_word() -> None:
    source = Source(status(state="loading"))
    assert get(source, "/livez")[:2] == (200, {"state": "loading"})
    source.dead = "the engine (pid 12) is gone"
    assert get(source, "/livez")[:2] == (503, {"state": "loading", "reason": "the engine (pid 12) is gone"})


def test_metrics_are_in_prometheus_text_format() -> None:
    code, body, kind = get(Source(), "/metrics")
    assert code == 200
    assert kind.startswith("text/plain")
    assert b'afd_state{role="ffn",state="ready"} 1.0' in body


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/health"), ("POST", "/livez"), ("GET", "/drain")]
)
def test_anything_else_is_404_and_names_what_there_is(method: str, path: str) -> None:
    code, body, _ = get(Source(), path, method)
    assert code == 404
    assert body["reason"].startswith(f"no {method} {path}; there are /livez")


@pytest.mark.parametrize("said", [b"AFD\x01\x00\x10\x00\x00\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
def test_who_speaks_no_http_gets_400_and_no_word_in_the_log(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> bytes:
        source = Source()
        async with open_server(source, Metrics(source.status), host="127.0.0.1", port=0) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(said)
            answer = await asyncio.wait_for(reader.readline(), 10)
            writer.close()
            return answer

    assert b" 400 " in asyncio.run(run())
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == [
        record for record in caplog.records if record.message.startswith("agent port")
    ]


def test_a_port_in_use_is_named_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]

        async def run() -> None:
            async with open_server(Source(), Metrics(status), host="127.0.0.1", port=number):
                pass

        expected = (
            rf"the agent port needs 127.0.0.1:{number}, which is in use by pid {os.getpid()} \(.*--agent-port"
        )
        with pytest.raises(ConfigError, match=expected):
            asyncio.run(run())


def test_time_stamps_are_iso_8601_in_utc() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000+00:00"


def test_probes_are_answered_while_strangers_hold_connections_and_say_nothing() -> None:
    """A few hundred would use up the file descriptors of a role, and it would end."""
    source = Source()

    async def run() -> tuple[int, int]:
        async with open_server(source, Metrics(source.status), host="127.0.0.1", port=0) as server:
            before = len(os.listdir("/proc/self/fd"))
            strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
            try:
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
                    async with client.get(f"http://127.0.0.1:{server.port}/livez") as response:
                        held = len(os.listdir("/proc/self/fd")) - before - len(strangers)
                        return response.status, held
            finally:
                for stranger in strangers:
                    stranger.close()

    code, held = asyncio.run(run())
    assert code == 200
    assert held <= MOST + 4  # and what the client itself needs
