# SPDX-License-Identifier: Apache-2.0
"""Everything that the API offers is answered as by native vLLM, and no question ends anything.

vLLM's own V2 runner ends its engine on CPU at the first request with a grammar (it pins memory), and AFD's does not:
there native V1 is what to compare with.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from afd.testing.completions import Answer, Question
from afd.testing.reference import Reference
from afd.testing.stack import Group, Layout, metrics
from afd.topology import Role
from tests.system.api import GREEDY, PARTS, TEMPLATE, Ask, Reply, differences, metric_families, part, send_all
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.interview import READY_S, crossed
from tests.system.rig import SERVED, start
from tests.system.rig import differences as token_differences

LAYERS = 4
RUNNERS = [pytest.param("v2", marks=pytest.mark.pairwise), "v1"]

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Native:
    """What native vLLM answers, and what it counts."""

    replies: dict[str, Reply]
    families: dict[str, str]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Layout]:
    """The layout for a runner: with a chat template that knows tools, and a parser for the calls that come back."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    grammars = json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})
    return lambda runner: layout(
        runner,
        vllm_args=(
            *VLLM_ARGS,
            *("--chat-template", str(template), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--structured-outputs-config", grammars),
        ),
    )


@pytest.fixture(scope="module")
def native(
    chosen: Callable[[str], Layout],
    launchers: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Native]:
    """Native vLLM on a runner, asked once everything that it survives."""
    known: dict[str, Native] = {}

    async def interview(runner: str) -> Native:
        reference = await Reference.start(
            chosen(runner), tmp_path_factory.mktemp("native"), launchers(runner)
        )
        try:
            await reference.ready(READY_S)
            replies = await send_all(reference.url, [GREEDY])
            for name in PARTS:
                asked = part(name, replies[GREEDY.name])
                survived = [ask for ask in asked if (ask.v1 if runner == "v1" else not ask.grammar)]
                replies |= await send_all(reference.url, survived)
            return Native(replies, await metric_families(reference.url))
        finally:
            await reference.close()

    def of(runner: str) -> Native:
        if runner not in known:
            known[runner] = asyncio.run(interview(runner))
        return known[runner]

    return of


@pytest.fixture(scope="module", params=RUNNERS)
def group(
    request: pytest.FixtureRequest,
    chosen: Callable[[str], Layout],
    native: Callable[[str], Native],
    launchers: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Group]:
    """One group for all questions. Native was asked before: only one of them runs at a time."""
    runner = request.param
    native(runner)
    native("v1")
    with Group(chosen(runner), tmp_path_factory.mktemp("group"), launchers(runner)) as made:
        start(made)
        yield made
        assert made.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.parametrize("name", PARTS)
def test_this_part_of_the_api_is_answered_as_by_native_vllm(
    name: str, group: Group, native: Callable[[str], Native]
) -> None:
    runner = group.layout.runner
    replies, grammatical = native(runner).replies, native("v1").replies
    asked = [ask for ask in part(name, replies[GREEDY.name]) if ask.v1 or runner == "v2"]
    found = asyncio.run(send_all(group.attention.api_url, asked))
    expected = {ask.name: (grammatical if ask.grammar else replies)[ask.name] for ask in asked}
    print(f"\n{name}, runner {runner}: {len(asked)} requests, {[found[ask.name].status for ask in asked]}")
    wrong = [line for ask in asked for line in differences(found[ask.name], expected[ask.name], ask.name)]
    assert not wrong, "\n".join(wrong)


def test_what_is_asked_exercises_what_it_is_named_for(native: Callable[[str], Native]) -> None:
    replies = native("v1").replies

    def choice(name: str) -> dict[str, object]:
        found: dict[str, object] = replies[name].content["choices"][0]
        return found

    plain = str(replies[GREEDY.name].content["choices"][0]["text"])
    assert all(replies[ask.name].status >= 400 for ask in part("errors", replies[GREEDY.name]))
    assert [choice(f"stop {what}")["finish_reason"] for what in ("string", "strings", "token")] == [
        "stop"
    ] * 3
    for name in ("top k, seeded", "min p, seeded", "biased", "forbidden words", "allowed tokens"):
        assert not plain.startswith(str(choice(name)["text"]))
    penalised = {
        str(choice(f"{kind} penalty")["logprobs"]) for kind in ("presence", "frequency", "repetition")
    }
    assert len(penalised) == 3
    for name in ("tools, required", "tools, named"):
        calls = replies[name].content["choices"][0]["message"]["tool_calls"]
        assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls) and calls
    assert json.loads(str(choice("schema")["text"])).keys() == {"x", "name"}
    assert len(replies["three answers"].content["choices"]) == 3
    assert replies["streamed"].content["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_leaves_is_given_up_and_the_next_answer_is_right(
    stream: bool, group: Group, proofs: Proofs
) -> None:
    url = group.attention.api_url
    body = {
        "model": SERVED,
        "prompt": "Attention keeps",
        "max_tokens": 480,
        "ignore_eos": True,
        "stream": stream,
    }

    async def running() -> float:
        return (await metrics(url))["vllm:num_requests_running"]

    async def reaches(number: int, within_s: float) -> float:
        begun = time.monotonic()
        while await running() != number:
            assert time.monotonic() - begun < within_s, f"not {number} requests running within {within_s:g} s"
            await asyncio.sleep(0.05)
        return time.monotonic() - begun

    async def leave() -> float:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            asking = asyncio.create_task(session.post(f"{url}/v1/completions", json=body))
            await reaches(1, 20)
            if stream:
                response = await asking
                await response.content.readline()
                response.close()
            else:
                asking.cancel()
        return await reaches(0, 5)

    before = asyncio.run(metrics(url))["vllm:generation_tokens_total"]
    seconds = asyncio.run(leave())
    generated = asyncio.run(metrics(url))["vllm:generation_tokens_total"] - before
    print(f"\nstream {stream}: given up after {seconds:.2f} s and {generated:.0f} tokens")
    assert generated < body["max_tokens"]
    assert token_differences(url, *proofs(group.layout.runner)) == []


def test_everything_that_native_vllm_counts_is_counted(group: Group, native: Callable[[str], Native]) -> None:
    found = asyncio.run(metric_families(group.attention.api_url))
    assert found == native(group.layout.runner).families
    assert sum(name.startswith("vllm:") for name in found) > 40


def test_every_token_of_these_requests_was_computed_once_by_each_layer(group: Group) -> None:
    tokens = crossed(group, LAYERS)
    assert tokens.computed == tokens.sent * LAYERS > 0


def test_health_answers_after_everything(group: Group) -> None:
    after = [Ask("health", "/health"), GREEDY]
    assert [r.status for r in asyncio.run(send_all(group.attention.api_url, after)).values()] == [200, 200]
