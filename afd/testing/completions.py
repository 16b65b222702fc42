# SPDX-License-Identifier: Apache-2.0
"""Real prompts through an OpenAI-compatible API, with the tokens and log-probabilities that came back.

Used to ask native vLLM and AFD the same questions. It only speaks HTTP; it knows neither role.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from afd.agent.readiness import REPLICA_HEADER
from afd.errors import PeerLostError


@dataclass(frozen=True)
class Question:
    """One request. ``prompt`` is text or token ids, for ``chat`` what the user says.

    ``temperature`` None leaves it to the server's default (1). ``stop`` is a text that ends the answer.
    """

    name: str
    prompt: str | tuple[int, ...]
    max_tokens: int = 16
    temperature: float | None = 0.0
    seed: int | None = None
    stream: bool = False
    logprobs: int | None = 5
    chat: bool = False
    stop: str | None = None

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, model: str) -> dict[str, Any]:
        """The JSON body for :attr:`path`."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": self.stream,
        }
        if self.chat:
            body["messages"] = [
                {"role": "system", "content": "Answer in short words."},
                {"role": "user", "content": self.prompt},
            ]
            body["logprobs"], body["top_logprobs"] = self.logprobs is not None, self.logprobs or 0
        else:
            body["prompt"] = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
            body["logprobs"] = self.logprobs
        for name, value in (("temperature", self.temperature), ("seed", self.seed), ("stop", self.stop)):
            if value is not None:
                body[name] = value
        return body


@dataclass
class Answer:
    """What came back: token ids, the log-probability of each, and per position those of the likeliest tokens.

    ``finish`` is why it ended: "length", "stop" or "" while it has not.
    """

    name: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[float]] = field(default_factory=list)
    text: str = ""
    finish: str = ""

    def add(self, choice: dict[str, Any]) -> None:
        """Append one chunk (or the whole) of a completion, of a chat or not."""
        said = choice.get("message") or choice.get("delta")
        self.text += choice["text"] if said is None else said.get("content") or ""
        self.tokens += choice.get("token_ids") or []
        self.finish = choice["finish_reason"] or ""
        detail = choice["logprobs"]
        if detail is None:
            return
        if said is None:
            self.logprobs += detail["token_logprobs"]
            self.top += [sorted(position.values(), reverse=True) for position in detail["top_logprobs"]]
            return
        for position in detail["content"]:
            self.logprobs.append(position["logprob"])
            self.top.append(sorted((other["logprob"] for other in position["top_logprobs"]), reverse=True))


async def ask(
    session: aiohttp.ClientSession, url: str, model: str, question: Question, answer: Answer | None = None
) -> Answer:
    """Send one request and collect its whole answer, in ``answer`` when it is given: what has arrived of a stream so
    far can be seen there.

    Raises PeerLostError, with the server's words, when it answers with an error, in the middle of a stream too, and
    when a stream stops before its end; :class:`aiohttp.ClientError` when there is no server or it breaks off.
    """
    answer = answer or Answer(question.name)
    async with session.post(f"{url}{question.path}", json=question.body(model)) as response:
        if response.status != 200:
            raise PeerLostError(f"{url} answered {response.status}: {(await response.text())[:400]}")
        if not question.stream:
            answer.add((await response.json())["choices"][0])
            return answer
        async for raw in response.content:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                return answer
            if not line.startswith("data: "):
                continue
            event = json.loads(line[len("data: ") :])
            if "error" in event:
                raise PeerLostError(f"{url} ended the stream: {event['error']}")
            if event["choices"]:
                answer.add(event["choices"][0])
    raise PeerLostError(f"{url} stopped in the middle of a stream, after {len(answer.tokens)} tokens")


async def ask_all(
    url: str,
    model: str,
    questions: Sequence[Question],
    *,
    concurrency: int,
    timeout_s: float,
    replica: int | None = None,
) -> list[Answer]:
    """Ask every question, at most ``concurrency`` at a time, each within ``timeout_s``. Answers in order.

    ``replica`` is the data-parallel replica that is to answer; by default vLLM chooses one for each question.
    """
    limit = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    headers = {} if replica is None else {REPLICA_HEADER: str(replica)}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:

        async def one(question: Question) -> Answer:
            async with limit:
                return await ask(session, url, model, question)

        return list(await asyncio.gather(*(one(question) for question in questions)))
