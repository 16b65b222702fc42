# SPDX-License-Identifier: Apache-2.0
"""Requests with a grammar. vLLM's own V2 runner cannot answer them on CPU, so native V1 is what to compare with."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from afd.testing.completions import Answer, Question
from afd.testing.reference import Reference
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import layout
from tests.system.rig import differences, start

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
COMPLETIONS: tuple[dict[str, Any], ...] = (
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"regex": "[ab]{5}"}},
    {},
)
CHATS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}},
)


def answers(url: str) -> list[Any]:
    """What a server answers to all of them, greedily."""

    def ask(path: str, body: dict[str, Any]) -> Any:
        whole = {"model": "afd", "max_tokens": 24, "temperature": 0.0, **body}
        request = urllib.request.Request(
            url + path, json.dumps(whole).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            choice = json.load(response)["choices"][0]
        found = choice.get("text") or choice["message"]
        return {key: found[key] for key in ("content", "role")} if isinstance(found, dict) else found

    texts = [ask("/v1/completions", {"prompt": "Attention keeps", **body}) for body in COMPLETIONS]
    message = [{"role": "user", "content": "hi"}]
    return texts + [ask("/v1/chat/completions", {"messages": message, **body}) for body in CHATS]


@pytest.fixture(scope="module")
def native(launchers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    async def interview() -> list[Any]:
        directory = tmp_path_factory.mktemp("native")
        reference = await Reference.start(layout("v1"), directory, launchers("v1"))
        try:
            await reference.ready(60)
            return await asyncio.to_thread(answers, reference.url)
        finally:
            await reference.close()

    return asyncio.run(interview())


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_structured_output_is_that_of_native_vllm_and_ends_nothing(
    groups: Callable[..., Group],
    proofs: Callable[[str], tuple[list[Question], list[Answer]]],
    native: list[Any],
    runner: str,
) -> None:
    group = groups(layout(runner))
    start(group)
    found = answers(group.attention.api_url)
    print(found)
    assert found == native
    assert found[0] in ("yes", "no") and set(found[1]) <= {"a", "b"}
    assert differences(group.attention.api_url, *proofs(runner)) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
