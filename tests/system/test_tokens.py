# SPDX-License-Identifier: Apache-2.0
"""AFD's tokens are those of native vLLM, for every kind of request, and each crosses once per layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from afd.testing.tiny import BUILTINS
from tests.system.conftest import DETAILED, MODEL, Groups, Natives, Recorded, layout
from tests.system.interview import (
    crossed,
    full_script,
    interview_group,
    reasons,
    report,
    start,
    steps_of,
    stop,
)

QWEN = "builtin:tiny-qwen3-moe"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("model", "runner", "transport"),
    [
        pytest.param(MODEL, "v2", "shm", marks=pytest.mark.pairwise),
        pytest.param(MODEL, "v1", "shm", marks=pytest.mark.pairwise),
        pytest.param(QWEN, "v2", "collective", marks=pytest.mark.pairwise),
        (QWEN, "v1", "shm"),
        (QWEN, "v2", "shm"),
        (MODEL, "v2", "collective"),
        (MODEL, "v1", "collective"),
        (QWEN, "v1", "collective"),
    ],
)
def test_every_kind_of_request_gets_the_tokens_of_native_vllm(
    model: str, runner: str, transport: str, groups: Groups, natives: Natives, recorded: Recorded
) -> None:
    layers = BUILTINS[model.removeprefix("builtin:")].num_layers
    plain = layout(runner, model=model, vllm_args=DETAILED)
    script = full_script(runner)
    native = natives(plain, script)
    chosen = replace(plain, afd_args=("--afd-transport", transport))
    group = start(groups(chosen))
    ours = interview_group(group, script, native)
    tokens = crossed(group, layers)
    stop(group)
    ours = replace(
        ours, steps=steps_of(group.attention.log)
    )  # on a busy machine the last ones are logged late

    comparison = ours.against(native)
    mixed = sum(step.mixed for step in ours.steps)
    most = max(step.prompts + step.decodes for step in ours.steps)
    report(
        f"{model}, runner {runner}, transport {transport}",
        comparison,
        f"{len(ours.steps)} steps, {mixed} mixed, at most {most} requests in one, "
        f"{ours.prefix_hits} tokens from the prefix cache, {tokens.sent} tokens × {layers} layers = {tokens.computed}",
    )
    recorded(chosen, comparison)
    assert comparison.agrees, reasons(comparison)
    assert len(script.together) == 24
    assert ours.answer("stop string").finish == "stop"

    # That all this was really exercised, in vLLM's own words.
    assert sum(step.prompts for step in ours.steps) > len(ours.questions) + 1, (
        "no prompt was prefilled in chunks"
    )
    assert mixed > 5, "no step had prompts and decodes"
    assert most > 8, "requests were not batched"
    assert ours.prefix_hits > 100, "the prefix cache was not hit"
    assert {answer.finish for answer in ours.answers} == {"length", "stop"}

    # What vLLM scheduled is what crossed, and what crossed was computed once by each layer.
    assert tokens.real == sum(step.prompt_tokens + step.decode_tokens for step in ours.steps)
    assert tokens.computed == tokens.sent * layers
