# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU rotary kernel makes an answer depend on who else is in the batch; without it nothing does.

That kernel rotates only a part of the heads of DeepSeek models with MLA off. Native vLLM and both roles run without it,
or every comparison of batches, chunks and ranks would look like a mistake of AFD's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from afd.testing.completions import Answer, Question, ask_all
from afd.testing.reference import Reference, native_arguments
from afd.testing.stack import Group, Layout
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.interview import READY_S, start, stop

ALIKE = 1e-4

SUBJECT = Question(
    "subject", "Attention keeps the cache, experts keep the weights, and nobody forgets.", max_tokens=16
)
"""The prompt whose answer must not depend on others: 36 tokens, prefilled in one step when it is alone."""
OTHERS = tuple(
    Question(f"other {i}", f"[{i}] In the beginning there was a prompt of its own.", max_tokens=16 + i)
    for i in range(6)
)

UNCACHED = (*VLLM_ARGS, "--no-enable-prefix-caching")
"""Without a prefix cache, or the second time nothing would be computed."""


@dataclass(frozen=True)
class Differences:
    """How far the answer amid others is from the answer alone: tokens from the first difference on, and the largest gap
    between log-probabilities up to there."""

    tokens: int
    logprob: float

    @property
    def alike(self) -> bool:
        return self.tokens == 0 and self.logprob <= ALIKE


async def differences(url: str, model: str) -> Differences:
    """Ask the subject alone, then amid six others: prefilled beside their decodes and cut where the budget ends."""
    (alone,) = await ask_all(url, model, [SUBJECT], concurrency=1, timeout_s=60)
    asked = [*OTHERS[:3], SUBJECT, *OTHERS[3:]]
    amid = (await ask_all(url, model, asked, concurrency=len(asked), timeout_s=60))[3]
    return compared(alone, amid)


def compared(alone: Answer, amid: Answer) -> Differences:
    pairs = list(zip(alone.tokens, amid.tokens, strict=True))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    gaps = [abs(a - b) for a, b in zip(alone.logprobs[: same + 1], amid.logprobs[: same + 1], strict=True)]
    return Differences(len(pairs) - same, max(gaps))


def native(chosen: Layout, directory: Path, launcher: str, arguments: Sequence[str]) -> Differences:
    async def run() -> Differences:
        reference = await Reference.start(chosen, directory, launcher, arguments=arguments)
        try:
            await reference.ready(READY_S)
            return await differences(reference.url, chosen.served)
        finally:
            await reference.close()

    return asyncio.run(run())


def with_operators(arguments: Sequence[str], operators: list[str]) -> list[str]:
    """``arguments`` with another list of custom operators."""
    changed = list(arguments)
    place = changed.index("--compilation-config") + 1
    changed[place] = json.dumps({**json.loads(changed[place]), "custom_ops": operators})
    return changed


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_native_answers_depend_on_the_batch_with_the_rotary_kernel_and_not_without_it(
    runner: str, tmp_path: Path, launchers: Callable[[str], str]
) -> None:
    chosen = layout(runner, vllm_args=UNCACHED)
    ours = native_arguments(chosen)
    right = native(chosen, tmp_path, launchers(runner), ours)
    wrong = native(chosen, tmp_path, launchers(runner), with_operators(ours, ["all"]))
    print(f"\nnative, runner {runner}: {right} without the rotary kernel, {wrong} with it")
    assert json.loads(ours[ours.index("--compilation-config") + 1])["custom_ops"] == [
        "all",
        "-rotary_embedding",
    ]
    assert right.alike
    assert not wrong.alike, "vLLM's rotary kernel is right now: the fix can go"
    assert wrong.logprob > 100 * ALIKE


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_answers_of_afd_do_not_depend_on_the_batch(runner: str, groups: Callable[..., Group]) -> None:
    chosen = layout(runner, vllm_args=UNCACHED)
    group = start(groups(chosen))
    found = asyncio.run(differences(group.attention.api_url, chosen.served))
    stop(group)
    print(f"\nAFD, runner {runner}: {found}")
    assert found.alike
