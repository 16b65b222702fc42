# SPDX-License-Identifier: Apache-2.0
"""Asking a server: whole answers and streams, and every way in which it can fail to answer. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from afd.errors import PeerLostError
from afd.testing.completions import Answer, Question, ask, ask_all

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def choice(*tokens: int, finish: str | None = "length") -> dict[str, Any]:
    """One choice of a completion."""
    return {
        "text": "".join(chr(97 + token) for token in tokens),
        "token_ids": list(tokens),
        "finish_reason": finish,
        "logprobs": {
            "token_logprobs": [-0.5] * len(tokens),
            "top_logprobs": [{"x": -2.0, "y": -0.5, "z": -1.0} for _ in tokens],
        },
    }


def asked(
    handler: Handler, *questions: Question, path: str = "/v1/completions", **options: Any
) -> list[Answer]:
    """The answers of a server that answers with ``handler``."""

    async def run() -> list[Answer]:
        app = web.Application()
        app.router.add_post(path, handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            given = {"concurrency": 4, "timeout_s": 20.0, **options}
            return await ask_all(url, "m", questions, **given)
        finally:
            await runner.cleanup()

    return asyncio.run(asyncio.wait_for(run(), 30))


async def stream(request: web.Request, *events: Any, done: bool = True) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    if done:
        await response.write(b"data: [DONE]\n\n")
    return response


def test_a_whole_answer_has_tokens_and_log_probabilities() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [choice(1, 2, 3)]})

    (found,) = asked(handler, Question("q", "hello"))
    assert (found.name, found.tokens, found.text, found.finish) == ("q", [1, 2, 3], "bcd", "length")
    assert found.logprobs == [-0.5] * 3
    assert found.top == [[-0.5, -1.0, -2.0]] * 3


def test_a_stream_is_put_together_in_order() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert (await request.json())["stream"] is True
        return await stream(
            request, {"choices": [choice(1, finish=None)]}, {"choices": []}, {"choices": [choice(2, 3)]}
        )

    (found,) = asked(handler, Question("q", "hello", stream=True))
    assert (found.tokens, found.text, found.finish, len(found.top)) == ([1, 2, 3], "bcd", "length", 3)


def test_a_chat_is_asked_and_read_as_one() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["messages"][-1] == {"role": "user", "content": "hello"}
        assert (body["logprobs"], body["top_logprobs"], body["stop"]) == (True, 5, "end")
        said = {
            "message": {"content": "hi"},
            "token_ids": [4, 5],
            "finish_reason": "stop",
            "logprobs": {
                "content": [{"logprob": -0.5, "top_logprobs": [{"logprob": -1.0}, {"logprob": -0.5}]}] * 2
            },
        }
        return web.json_response({"choices": [said]})

    (found,) = asked(handler, Question("q", "hello", chat=True, stop="end"), path="/v1/chat/completions")
    assert (found.tokens, found.text, found.finish) == ([4, 5], "hi", "stop")
    assert (found.logprobs, found.top) == ([-0.5, -0.5], [[-0.5, -1.0]] * 2)


def test_the_body_says_what_the_question_says_and_leaves_the_rest_to_the_server() -> None:
    body = Question("q", (1, 2), max_tokens=3, seed=7, temperature=0.5).body("m")
    assert body == {
        **{"model": "m", "prompt": [1, 2], "max_tokens": 3, "seed": 7, "temperature": 0.5, "logprobs": 5},
        **{"ignore_eos": True, "return_token_ids": True, "stream": False},
    }
    default = Question("q", "text", temperature=None).body("m")
    assert default["prompt"] == "text"
    assert not {"temperature", "seed", "stop"} & set(default)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_is_told_with_the_words_of_the_server(streamed: bool) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "the engine is dead"}, status=500)

    with pytest.raises(PeerLostError, match=r"answered 500: .*the engine is dead"):
        asked(handler, Question("q", "x", stream=streamed))


def test_an_error_in_the_middle_of_a_stream_is_told() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(
            request, {"choices": [choice(1, finish=None)]}, {"error": {"message": "F0 is gone"}}
        )

    with pytest.raises(PeerLostError, match=r"ended the stream: .*F0 is gone"):
        asked(handler, Question("q", "x", stream=True))


def test_a_stream_that_stops_before_its_end_is_no_answer() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, {"choices": [choice(1, 2, finish=None)]}, done=False)

    with pytest.raises(PeerLostError, match="stopped in the middle of a stream, after 2 tokens"):
        asked(handler, Question("q", "x", stream=True))


def test_a_server_that_breaks_off_is_an_error_of_the_connection() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request, {"choices": [choice(1, finish=None)]}, done=False)
        assert request.transport is not None
        request.transport.abort()
        return response

    with pytest.raises(aiohttp.ClientError):
        asked(handler, Question("q", "x", stream=True))


def test_a_server_that_does_not_answer_in_time_is_given_up() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(20)
        return web.Response()

    with pytest.raises(asyncio.TimeoutError):
        asked(handler, Question("q", "x"), timeout_s=0.2)


def test_no_more_questions_are_open_than_allowed_and_answers_keep_their_order() -> None:
    running = most = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        number = int((await request.json())["prompt"])
        await asyncio.sleep(0.02 * (5 - number))
        running -= 1
        return web.json_response({"choices": [choice(number)]})

    questions = [Question(str(number), str(number)) for number in range(5)]
    found = asked(handler, *questions, concurrency=2)
    assert [answer.name for answer in found] == ["0", "1", "2", "3", "4"]
    assert [answer.tokens for answer in found] == [[0], [1], [2], [3], [4]]
    assert most == 2


def test_what_has_arrived_of_a_stream_that_breaks_off_is_in_the_answer_that_was_given() -> None:
    answer = Answer("q")

    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, {"choices": [choice(1, 2, finish=None)]}, done=False)

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                await ask(session, url, "m", Question("q", "hello", stream=True), answer)
        finally:
            await runner.cleanup()

    with pytest.raises(PeerLostError, match="in the middle of a stream, after 2 tokens"):
        asyncio.run(asyncio.wait_for(run(), 30))
    assert answer.tokens == [1, 2]
