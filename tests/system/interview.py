# SPDX-License-Identifier: Apache-2.0
"""The same questions to native vLLM and to AFD, and what vLLM itself says about the steps that answered them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from afd.testing import questions as smoke
from afd.testing.compare import Comparison, compare_all
from afd.testing.completions import Answer, Question, ask_all
from afd.testing.reference import Reference
from afd.testing.stack import Group, Layout, metrics
from afd.topology import Role

READY_S = 150.0
ANSWER_S = 90.0
SETTLE_S = 5.0

ITERATIONS = "--enable-logging-iteration-details"
_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens"
)


@dataclass(frozen=True)
class Script:
    """What to ask: ``single`` one after another, then ``together`` all at once.

    ``stop_at`` names a single question that is asked once more with a piece of native's own answer as stop string.
    """

    single: tuple[Question, ...]
    together: tuple[Question, ...] = ()
    stop_at: str = ""


@dataclass(frozen=True)
class Steps:
    """What vLLM logged about one step: requests and tokens that are prompts, and that are generation."""

    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int

    @property
    def mixed(self) -> bool:
        return self.prompts > 0 and self.decodes > 0


@dataclass(frozen=True)
class Interview:
    """Questions with their answers, in order, and what the server's engine did meanwhile."""

    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    steps: tuple[Steps, ...]
    prefix_hits: int

    def answer(self, name: str) -> Answer:
        return next(answer for answer in self.answers if answer.name == name)

    def against(self, native: Interview) -> Comparison:
        """Judge these answers by ``native``'s."""
        assert self.questions == native.questions
        return compare_all(self.questions, native.answers, self.answers)

    def part(self, *names: str) -> Interview:
        """Only the questions of these names."""
        kept = [index for index, question in enumerate(self.questions) if question.name in names]
        return replace(
            self,
            questions=tuple(self.questions[index] for index in kept),
            answers=tuple(self.answers[index] for index in kept),
        )


def full_script(runner: str) -> Script:
    """Everything that a runner must get right: prefill in one and several steps, decode, prefix-cache hits, streaming,
    sampling with a seed, chats, prompts of token ids, a stop string; then 24 requests at once.

    vLLM's own V1 runner crashes on CPU for a seeded request whose prompt is prefilled in chunks, so V1 gets none.
    """
    chunked = smoke.one_at_a_time()[-1]
    single = [*smoke.one_at_a_time(), *smoke.again(), *smoke.sampled(), *chats(), *ids()]
    together = smoke.together()
    if runner == "v2":
        single.append(replace(chunked, name="seeded, chunked prefill", temperature=None, seed=3))
        together[1] = replace(together[1], name="seeded, among others", temperature=None, seed=5)
    return Script(tuple(single), tuple(together), stop_at="single 1")


def short_script() -> Script:
    """Prefill in one and several steps, decode, a few at once."""
    return Script(tuple(smoke.one_at_a_time()), tuple(smoke.together()[:8]))


def chats() -> list[Question]:
    """Chat completions: the server puts the chat template around what is said."""
    plain = Question("chat", "Who keeps the cache?", max_tokens=12, chat=True)
    return [
        plain,
        replace(plain, name="chat, streamed", prompt="Say that again, slowly.", stream=True),
        replace(plain, name="chat, seeded, default temperature", temperature=None, seed=13),
    ]


def ids() -> list[Question]:
    """Prompts as token ids: every kind of token, and the shortest prompt there is."""
    return [
        Question("token ids", (0, *range(200, 232)), max_tokens=12),
        Question("token ids, chunked", (0, *(5 + 7 * i % 500 for i in range(150))), max_tokens=8),
        Question("one token id", (77,), max_tokens=8),
    ]


async def hold(url: str, model: str, script: Script, native: Interview | None = None) -> Interview:
    """Ask everything. Without ``native`` this is native, and its answer chooses the stop string."""
    single = list(script.single)
    answers = await ask_all(url, model, single, concurrency=1, timeout_s=ANSWER_S)
    if script.stop_at:
        asked = next(question for question in single if question.name == script.stop_at)
        text = (native.answer if native else {a.name: a for a in answers}.__getitem__)(script.stop_at).text
        stopped = replace(asked, name="stop string", stop=text[len(text) // 2 :][:3])
        single.append(stopped)
        answers += await ask_all(url, model, [stopped], concurrency=1, timeout_s=ANSWER_S)
    together = list(script.together)
    if together:
        answers += await ask_all(url, model, together, concurrency=len(together), timeout_s=ANSWER_S)
    hits = (await metrics(url)).get("vllm:prefix_cache_hits_total", 0)
    return Interview((*single, *together), tuple(answers), (), int(hits))


def steps_of(log: Path) -> tuple[Steps, ...]:
    """The steps that a vLLM engine with :data:`ITERATIONS` logged."""
    found = _ITERATION.findall(log.read_text(errors="replace"))
    return tuple(Steps(*map(int, numbers[1:])) for numbers in found)


def interview_native(
    layout: Layout,
    directory: Path,
    launcher: str,
    script: Script,
    *,
    target: str | None = None,
    arguments: Sequence[str] | None = None,
) -> Interview:
    """Start a native reference, ask it everything, end it."""

    async def run() -> Interview:
        changes = {} if target is None else {"target": target}
        reference = await Reference.start(layout, directory, launcher, arguments=arguments, **changes)
        try:
            await reference.ready(READY_S)
            held = await hold(reference.url, layout.served, script)
            return replace(held, steps=steps_of(reference.log))
        finally:
            await reference.close()

    return asyncio.run(run())


def interview_group(group: Group, script: Script, native: Interview | None = None) -> Interview:
    """Ask a group that is ready everything that native was asked."""
    held = asyncio.run(hold(group.attention.api_url, group.layout.served, script, native))
    return replace(held, steps=steps_of(group.attention.log))


def start(group: Group) -> Group:
    """Start both roles and wait until they are ready."""
    group.start()
    asyncio.run(group.ready(READY_S))
    return group


def stop(group: Group) -> None:
    """Stop a group; both roles must end with code 0."""
    codes = group.stop()
    words = {str(role): group.roles[role].error() for role in codes}
    assert codes == {Role.FFN: 0, Role.ATTENTION: 0}, words


@dataclass(frozen=True)
class Crossed:
    """Tokens that Attention sent (padding included), of them real ones, and rows that FFN's layers computed."""

    sent: int
    real: int
    computed: int


def crossed(group: Group, layers: int) -> Crossed:
    """The counters of both roles, once FFN's are those of the last step: they arrive a moment later."""

    async def read() -> Crossed:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        before = None
        while True:
            attention = await metrics(group.attention.agent_url)
            ffn = await metrics(group.ffn.agent_url)
            found = Crossed(
                int(attention.get("afd_tokens_total{kind=padded}", 0)),
                int(attention.get("afd_tokens_total{kind=real}", 0)),
                int(ffn.get("afd_ffn_tokens_total", 0)),
            )
            settled = found == before and found.computed == found.sent * layers
            if settled or loop.time() > deadline:
                return found
            before = found
            await asyncio.sleep(0.4)

    return asyncio.run(read())


def report(what: str, comparison: Comparison, more: str = "") -> None:
    """One line of figures for a person who reads the run (pytest -s)."""
    print(
        f"\n{what}: {len(comparison.verdicts)} requests, {comparison.tokens} tokens, {comparison.ties} ties, "
        f"{len(comparison.failures)} failures, largest log-probability error {comparison.max_logprob_error:.1e}"
        + (f"; {more}" if more else "")
    )


def reasons(comparison: Comparison) -> str:
    """Why a comparison fails, one line per request."""
    return "\n".join(f"{verdict.name}: {verdict.reason}" for verdict in comparison.failures)
