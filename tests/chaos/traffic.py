# SPDX-License-Identifier: Apache-2.0
"""Requests in flight: what is asked, how far the answers have come, and how they end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence

import aiohttp

from afd.errors import PeerLostError
from afd.testing.compare import compare
from afd.testing.completions import Answer, Question, ask
from afd.testing.questions import one_at_a_time, sampled

SERVED = "afd"
TOTAL_S = 120.0
"""After which a client of the driver gives up. Experiments end long before."""

DECODE = tuple(
    Question(f"long {i}", text, max_tokens=440, stream=i % 2 == 0)
    for i, text in enumerate(
        (
            "Attention keeps the cache,",
            "experts keep the weights.",
            "One token crosses,",
            "one token returns.",
        )
    )
)
"""Short prompts and long answers: after a step or two all that is computed is decode."""
PREFILL = tuple(
    Question(
        f"prompt {i}", tuple(5 + (37 * i + 7 * j) % 240 for j in range(440)), max_tokens=1, stream=i % 2 == 0
    )
    for i in range(24)
)
"""Long prompts, of which no two begin alike, and one token each: all that is computed is prefill."""
PROOFS = (*one_at_a_time()[:2], sampled()[0])
"""Short ones that show a group to be healthy."""
EVERY = (*DECODE, *PREFILL, *PROOFS)


class Traffic:
    """Clients that ask in a thread. ``answers`` are what has arrived so far, ``ends`` when each ended, in monotonic
    seconds, and ``errors`` how those ended that have no answer."""

    def __init__(self, url: str, questions: Sequence[Question]) -> None:
        self.questions = tuple(questions)
        self.answers = {question.name: Answer(question.name) for question in questions}
        self.errors: dict[str, Exception] = {}
        self.ends: dict[str, float] = {}
        self._url = url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TOTAL_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(self._ask(session, question) for question in self.questions))

    async def _ask(self, session: aiohttp.ClientSession, question: Question) -> None:
        try:
            await ask(session, self._url, SERVED, question, self.answers[question.name])
        except (PeerLostError, aiohttp.ClientError, asyncio.TimeoutError) as error:
            self.errors[question.name] = error
        self.ends[question.name] = time.monotonic()

    @property
    def tokens(self) -> int:
        """Tokens that have arrived in streams."""
        return sum(len(self.answers[question.name].tokens) for question in self.questions if question.stream)

    @property
    def over(self) -> bool:
        return len(self.ends) == len(self.questions)

    def open_at(self, at: float) -> int:
        """Requests that had no end at a time."""
        return sum(self.ends.get(question.name, at) >= at for question in self.questions)

    def join(self, timeout_s: float) -> None:
        self._thread.join(max(0.0, timeout_s))

    @property
    def hanging(self) -> list[str]:
        """Requests that have neither an answer nor an error."""
        return [question.name for question in self.questions if question.name not in self.ends]

    def wrong(self, native: Mapping[str, Answer]) -> list[str]:
        """Complete answers that are not those of native vLLM."""
        done = [q for q in self.questions if q.name in self.ends and q.name not in self.errors]
        verdicts = [
            compare(question, native[question.name], self.answers[question.name]) for question in done
        ]
        return [f"{verdict.name}: {verdict.reason}" for verdict in verdicts if not verdict.agrees]

    def __str__(self) -> str:
        """ "2 answers, 2 errors"."""
        return f"{len(self.ends) - len(self.errors)} answers, {len(self.errors)} errors"
