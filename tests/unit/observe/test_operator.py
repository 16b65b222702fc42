# SPDX-License-Identifier: Apache-2.0
"""Who may have an agent do something, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import psutil
import pytest

from afd.errors import RoleFailedError
from afd.observe.metrics import Metrics
from afd.observe.operator import Reply
from afd.observe.server import open_server
from tests.unit.observe.samples import READY
from tests.unit.observe.test_server import Source

TOKEN = b"correct horse battery staple"


def outside() -> str:
    """An address of this machine that is not loopback."""
    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family.name == "AF_INET" and not address.address.startswith("127.")
    ]
    assert found, "this test needs a network interface beside loopback"
    return found[0]


def post(
    host: str,
    path: str = "/drain",
    token: bytes | None = None,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> tuple[int, Any, int]:
    """Answer and body of a request to ``host``, and how often the action was taken."""
    taken = 0

    async def action() -> Reply:
        nonlocal taken
        taken += 1
        return Reply(202, {"state": "draining"})

    async def breaks() -> Reply:
        raise RoleFailedError("the profiler broke")

    async def run() -> tuple[int, Any]:
        source = Source(READY)
        actions = {"/drain": action, "/breaks": breaks}
        async with (
            open_server(
                source, Metrics(source.status), host="0.0.0.0", port=0, actions=actions, token=lambda: token
            ) as server,
            aiohttp.ClientSession() as client,
            client.request(method, f"http://{host}:{server.port}{path}", headers=headers) as response,
        ):
            return response.status, await response.json()

    code, body = asyncio.run(run())
    return code, body, taken


def test_who_is_on_the_same_host_may_act_with_and_without_a_token() -> None:
    for token in (None, TOKEN):
        assert post("127.0.0.1", token=token) == (202, {"state": "draining"}, 1)


def test_others_need_the_token() -> None:
    right = {"Authorization": f"Bearer {TOKEN.decode()}"}
    assert post(outside(), token=TOKEN, headers=right) == (202, {"state": "draining"}, 1)


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN.decode()}", "Bearer \u00e4\u00f6", "x" * 5000],
)
def test_others_without_it_are_turned_away_and_nothing_happens(given: str | None) -> None:
    code, body, taken = post(
        outside(), token=TOKEN, headers={"Authorization": given} if given is not None else {}
    )
    assert (code, body["error"], taken) == (401, "unauthorized", 0)
    assert TOKEN.decode() not in str(body)


def test_without_a_token_nobody_else_may_act_and_the_answer_says_what_to_set() -> None:
    code, body, taken = post(outside())
    assert (code, taken) == (403, 0)
    assert "--afd-auth-token-file" in body["reason"]


def test_a_web_page_may_not_act_not_even_one_that_a_browser_on_this_host_shows() -> None:
    code, _, taken = post("127.0.0.1", headers={"Origin": "http://127.0.0.1:9300"})
    assert (code, taken) == (403, 0)


def test_an_action_that_fails_says_why() -> None:
    code, body, _ = post("127.0.0.1", "/breaks")
    assert (code, body) == (500, {"error": "failed", "reason": "the profiler broke"})


def test_an_action_is_taken_by_post_only() -> None:
    code, body, taken = post("127.0.0.1", method="GET")
    assert (code, taken) == (404, 0)
    assert "POST /drain" in body["reason"]
