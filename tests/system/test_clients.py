# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for what cannot be, or come in crowds: the server answers as native vLLM does, and goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from afd.testing.compare import compare_all
from afd.testing.completions import Answer, Question, ask_all
from afd.testing.questions import MAX_MODEL_LEN
from afd.testing.reference import Reference
from afd.topology import Role
from tests.system.conftest import Groups, layout
from tests.system.interview import READY_S, crossed, reasons, report
from tests.system.rig import SERVED, Client, decoding, differences, start

LAYERS = 4
CROWD = 200

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]

_PLAIN: dict[str, Any] = {"model": SERVED, "prompt": "Attention keeps", "max_tokens": 4, "temperature": 0}
_IDS = [5 + 7 * i % 500 for i in range(MAX_MODEL_LEN + 100)]

BODIES: dict[str, Any] = {
    "no JSON": "{",
    "not UTF-8": b"\xff\xfe{}",
    "a list": [],
    "nothing": b"",
    "no prompt": {"model": SERVED},
    "empty prompt": {**_PLAIN, "prompt": ""},
    "empty list of prompts": {**_PLAIN, "prompt": []},
    "an empty prompt among others": {**_PLAIN, "prompt": [[5, 6], []]},
    "prompt one token too long": {**_PLAIN, "prompt": _IDS[: MAX_MODEL_LEN + 1], "max_tokens": 1},
    "prompt that fills the context": {**_PLAIN, "prompt": _IDS[:MAX_MODEL_LEN], "max_tokens": 1},
    "prompt and answer too long": {**_PLAIN, "prompt": _IDS[:500], "max_tokens": 100},
    "a megabyte of text": {**_PLAIN, "prompt": "keep " * 200_000},
    "token id out of the vocabulary": {**_PLAIN, "prompt": [10**6]},
    "negative token id": {**_PLAIN, "prompt": [-1]},
    "token id that is no integer": {**_PLAIN, "prompt": [1.5]},
    "no tokens": {**_PLAIN, "max_tokens": 0},
    "negative tokens": {**_PLAIN, "max_tokens": -1},
    "too many tokens": {**_PLAIN, "max_tokens": 10**9},
    "another model": {**_PLAIN, "model": "nobody"},
    "two answers": {**_PLAIN, "n": 2, "temperature": 1, "seed": 3},
    "no answers": {**_PLAIN, "n": 0},
    "many answers": {**_PLAIN, "n": 20, "temperature": 1, "seed": 4},
    "log-probabilities": {**_PLAIN, "logprobs": 5},
    "too many log-probabilities": {**_PLAIN, "logprobs": 10**4},
    "log-probabilities of the prompt": {**_PLAIN, "prompt_logprobs": 2},
    "echo": {**_PLAIN, "echo": True, "logprobs": 1},
    "hot": {**_PLAIN, "temperature": 1e9},
    "cold": {**_PLAIN, "temperature": -1},
    "wrong type": {**_PLAIN, "max_tokens": "many"},
    "penalties": {**_PLAIN, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.5},
    "biased": {**_PLAIN, "logit_bias": {"7": 100}},
    "two prompts": {**_PLAIN, "prompt": ["Attention keeps", "experts keep"]},
    "minimum of tokens": {**_PLAIN, "min_tokens": 4, "stop": ["a"]},
    "allowed tokens": {**_PLAIN, "allowed_token_ids": [7, 8]},
}


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    """Status, and the texts of the answers or the type of the error."""
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    async with session.post(
        f"{url}/v1/completions", data=data, headers={"Content-Type": "application/json"}
    ) as response:
        text = await response.text()
    try:
        found = json.loads(text)
    except ValueError:
        return response.status, text[:200]
    choices = found.get("choices")
    return response.status, [c["text"] for c in choices] if choices else found.get("error", found)


def bodies(runner: str) -> dict[str, Any]:
    """vLLM's own V1 runner fails on CPU when the prompt of a seeded request is cut into steps, and what it samples
    depends on what else is in the batch."""
    return {
        name: body
        for name, body in BODIES.items()
        if runner == "v2" or not (isinstance(body, dict) and "seed" in body)
    }


async def post_all(url: str, runner: str) -> dict[str, tuple[int, Any]]:
    # The server closes the connection of a request that it answers with 500.
    connector, timeout = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        return {name: await post(session, url, body) for name, body in bodies(runner).items()}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_strange_requests_beside_a_decode_are_answered_as_by_native_vllm(
    runner: str,
    groups: Groups,
    proofs: Proofs,
    launchers: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chosen = layout(runner)

    async def native() -> dict[str, tuple[int, Any]]:
        reference = await Reference.start(chosen, tmp_path_factory.mktemp("native"), launchers(runner))
        try:
            await reference.ready(READY_S)
            return await post_all(reference.url, runner)
        finally:
            await reference.close()

    expected = asyncio.run(native())
    group = groups(chosen)
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention, 2)
    found = asyncio.run(post_all(group.attention.api_url, runner))
    statuses = {name: status for name, (status, _) in found.items()}
    print(f"\n{statuses}")
    assert found == expected
    assert [len(answer.tokens) for answer in client.answers(60)] == [q.max_tokens for q in client.questions]
    assert differences(group.attention.api_url, *proofs(runner)) == []
    tokens = crossed(group, LAYERS)
    assert tokens.computed == tokens.sent * LAYERS > 0
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(240)
def test_two_hundred_connections_at_once_get_the_tokens_of_native_vllm(
    groups: Groups, proofs: Proofs
) -> None:
    questions, native = proofs("v2")
    # Greedy ones: which requests share a step decides nothing, whoever comes first.
    pairs = [(q, a) for q, a in zip(questions, native, strict=True) if q.temperature == 0.0]
    crowd = [replace(pairs[i % len(pairs)][0], name=f"client {i}", stream=i % 3 == 0) for i in range(CROWD)]
    expected = [replace(pairs[i % len(pairs)][1], name=f"client {i}") for i in range(CROWD)]
    group = groups()
    start(group)
    answers = asyncio.run(ask_all(group.attention.api_url, SERVED, crowd, concurrency=CROWD, timeout_s=120))
    comparison = compare_all(crowd, expected, answers)
    report(f"{CROWD} clients at once", comparison)
    assert comparison.agrees, reasons(comparison)
    tokens = crossed(group, LAYERS)
    assert tokens.computed == tokens.sent * LAYERS > 0
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
