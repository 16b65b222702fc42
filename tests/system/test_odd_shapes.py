# SPDX-License-Identifier: Apache-2.0
"""Sizes at the edges: one token, one request, one token per step, a full context, the edge of a block."""

from __future__ import annotations

import pytest

from afd.testing.completions import Question
from tests.system.conftest import Groups, Natives, layout
from tests.system.interview import (
    Script,
    crossed,
    interview_group,
    reasons,
    report,
    start,
    stop,
)

LAYERS = 4
BLOCK = 128
"""Tokens in a block of vLLM's cache on CPU."""


def _ids(length: int, variant: int = 0) -> tuple[int, ...]:
    return tuple(5 + (7 * i + 31 * variant) % 500 for i in range(length))


def _sizes(length: int) -> list[Question]:
    """Prompts around every edge that a context of ``length`` tokens has."""
    edges = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, length - 2, length - 1]
    return [
        Question(f"{size} tokens", _ids(size, size), max_tokens=min(6, length - size))
        for size in sorted({edge for edge in edges if 0 < edge < length})
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize(
    ("length", "tokens", "requests"),
    [(BLOCK + 8, 64, 32), (64, 1, 1), (64, 64, 1), (64, 63, 32), (BLOCK, BLOCK, 2)],
    ids=["blocks", "one-token-per-step", "one-request", "no-multiple", "whole-context-in-a-step"],
)
def test_sizes_at_the_edge_get_the_tokens_of_native_vllm(
    length: int, tokens: int, requests: int, runner: str, groups: Groups, natives: Natives
) -> None:
    vllm_args = ("--dtype", "float32", "--max-model-len", str(length))
    vllm_args += ("--max-num-batched-tokens", str(tokens), "--max-num-seqs", str(requests))
    chosen = layout(runner, vllm_args=vllm_args)
    together = tuple(
        Question(f"together {i}", _ids(1 + 5 * i, i), max_tokens=1 + i % 5, stream=i % 2 == 0)
        for i in range(8)
    )
    script = Script(tuple(_sizes(length)), together)
    native = natives(chosen, script)
    group = start(groups(chosen))
    ours = interview_group(group, script, native)
    found = crossed(group, LAYERS)
    stop(group)
    comparison = ours.against(native)
    report(f"context {length}, {tokens} tokens a step, {requests} requests, runner {runner}", comparison)
    assert comparison.agrees, reasons(comparison)
    assert found.computed == found.sent * LAYERS > 0
