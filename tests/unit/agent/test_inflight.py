# SPDX-License-Identifier: Apache-2.0
"""Counting the requests that an API server is answering, under a real server and by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from afd.agent.inflight import VARIABLE, Inflight, InflightFile, Scope


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InflightFile:
    """The agent's end of the file that the middleware finds through its environment."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "inflight"))
    return InflightFile(tmp_path / "inflight", create=True)


class App:
    """Answers once ``go`` is set: 200 with two chunks, or by raising."""

    def __init__(self, *, fail: bool = False) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.fail = fail

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.entered.set()
        await self.go.wait()
        if self.fail:
            raise ValueError("as the test asked")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": False})


def scope_of(path: str, kind: str = "http", method: str = "POST") -> Scope:
    return {"type": kind, "path": path, "method": method, "headers": []}


async def nothing(*_: Any) -> Any:
    return {"type": "http.disconnect"}


def test_a_request_counts_until_its_answer_is_complete(counter: InflightFile) -> None:
    async def work() -> None:
        app = App()
        middleware = Inflight(app)
        assert counter.count == 0
        paths = ("/v1/completions", "/inference/v1/generate", "/below/v1/completions")
        calls = [asyncio.create_task(middleware(scope_of(path), nothing, nothing)) for path in paths]
        await app.entered.wait()
        await asyncio.sleep(0)
        assert counter.count == 3
        calls[0].cancel()
        await asyncio.gather(calls[0], return_exceptions=True)
        assert counter.count == 2
        app.go.set()
        await asyncio.gather(*calls[1:])
        assert counter.count == 0

    asyncio.run(work())


def test_a_request_that_raises_is_counted_down(counter: InflightFile) -> None:
    async def work() -> None:
        app = App(fail=True)
        app.go.set()
        with pytest.raises(ValueError, match="as the test asked"):
            await Inflight(app)(scope_of("/v1/chat/completions"), nothing, nothing)
        assert counter.count == 0

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/health", "http"), ("/metrics", "http"), ("/v1/realtime", "websocket"), ("", "lifespan")],
)
def test_probes_and_what_is_no_http_request_do_not_count(counter: InflightFile, path: str, kind: str) -> None:
    async def work() -> None:
        app = App()
        call = asyncio.create_task(Inflight(app)(scope_of(path, kind, "GET"), nothing, nothing))
        await app.entered.wait()
        assert counter.count == 0
        app.go.set()
        await call

    asyncio.run(work())


def test_a_client_that_goes_away_is_counted_down_under_a_real_server(counter: InflightFile) -> None:
    async def until(expected: int) -> None:
        for _ in range(500):
            if counter.count == expected:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{counter.count} requests in flight, expected {expected}")

    async def work() -> None:
        app = App()
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        server = uvicorn.Server(uvicorn.Config(Inflight(app), lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve([listener]))
        async with aiohttp.ClientSession() as client:
            lost, kept = (asyncio.create_task(client.post(url, data=b"x")) for _ in range(2))
            await until(2)
            lost.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await lost
            app.go.set()
            async with await kept as response:
                assert await response.text() == "one two"
            await until(0)
        server.should_exit = True
        await asyncio.wait_for(serving, 10)

    asyncio.run(work())


def test_a_new_file_begins_at_zero_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "inflight"
    path.write_bytes(b"\xff" * 64)
    server, agent = InflightFile(path, create=True), InflightFile(path, create=False)
    server.add(2)
    server.add(-1)
    assert agent.count == 1


@pytest.mark.parametrize(
    ("status", "body", "broken"),
    [
        (200, b"fine", 0),
        (400, b"bad request", 0),
        (500, b"the engine is dead", 1),
        (200, b'data: {"error": {"message": "the engine is dead"}}\n\n', 1),
    ],
)
def test_an_error_of_the_server_counts_and_one_of_the_client_does_not(
    counter: InflightFile, status: int, body: bytes, broken: int
) -> None:
    async def answer(scope: Scope, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": body})

    async def work() -> None:
        for _ in range(2):
            await Inflight(answer)(scope_of("/v1/completions"), nothing, nothing)
        assert (counter.count, counter.broken) == (0, 2 * broken)

    asyncio.run(work())


def test_when_the_door_is_closed_what_is_in_flight_goes_on_and_new_requests_get_503(
    counter: InflightFile,
) -> None:
    async def work() -> None:
        app = App()
        middleware = Inflight(app)
        first = asyncio.ensure_future(middleware(scope_of("/v1/completions"), nothing, nothing))
        await app.entered.wait()
        counter.close_door()
        said: list[Any] = []

        async def hear(message: Any) -> None:
            said.append(message)

        await middleware(scope_of("/v1/completions"), nothing, hear)
        assert said[0]["status"] == 503
        assert dict(said[0]["headers"])[b"retry-after"] == b"5"
        assert json.loads(said[1]["body"])["error"]["code"] == 503
        assert counter.count == 1
        await asyncio.wait_for(middleware(scope_of("/health", method="GET"), nothing, hear_nothing(app)), 5)
        await first
        assert counter.count == 0

    asyncio.run(work())


def hear_nothing(app: App) -> Any:
    """Lets the application answer."""
    app.go.set()
    return nothing


def test_the_door_of_a_new_file_is_open(counter: InflightFile, tmp_path: Path) -> None:
    counter.add(3)
    counter.close_door()
    again = InflightFile(tmp_path / "inflight", create=True)
    assert (again.count, again.closed) == (0, False)
