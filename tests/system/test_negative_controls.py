# SPDX-License-Identifier: Apache-2.0
"""The comparison with native vLLM is no formality: it fails when one layer of FFN computes something else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from afd.testing.compare import Comparison, compare_all
from afd.testing.completions import Question, ask_all
from afd.testing.damage import with_zeros
from afd.testing.stack import Group
from afd.testing.tiny import resolve_builtin
from afd.topology import Role
from tests.system.conftest import MODEL, Groups, Natives, layout
from tests.system.interview import Interview, Script, reasons, report, start, stop
from tests.system.program import running
from tests.system.variants import FAULT_FILE, LAYER, SWAP, ZERO


def pair(part: str) -> tuple[Question, ...]:
    """Two prompts that no other part of a test has asked: a wrong answer also leaves wrong keys and values in the
    prefix cache."""
    return tuple(
        Question(f"{part} {text}", f"{part}: {text}", max_tokens=24)
        for text in ("one token crosses,", "and the other one returns.")
    )


def compared(group: Group, native: Interview, part: str) -> Comparison:
    """Ask both questions of a part at once, and judge the answers by native's."""
    asked = pair(part)
    url, served = group.attention.api_url, group.layout.served
    ours = asyncio.run(ask_all(url, served, asked, concurrency=len(asked), timeout_s=60))
    comparison = compare_all(asked, [native.answer(question.name) for question in asked], ours)
    report(part, comparison, reasons(comparison).replace("\n", "; "))
    return comparison


@pytest.mark.pairwise
@pytest.mark.timeout(240)
def test_a_zeroed_reply_or_two_swapped_rows_in_one_layer_make_the_comparison_fail(
    tmp_path: Path, groups: Groups, natives: Natives
) -> None:
    chosen = layout()
    parts = ("before", ZERO, "between", SWAP, "after")
    native = natives(chosen, Script(tuple(question for part in parts for question in pair(part))))
    fault = tmp_path / "fault"
    fault.write_text("")
    group = start(
        groups(
            chosen,
            programs={Role.FFN: running("tests.system.variants.faults:ffn")},
            environment={FAULT_FILE: str(fault)},
        )
    )
    for part in parts:
        wrong = part in (ZERO, SWAP)
        fault.write_text(part if wrong else "")
        comparison = compared(group, native, part)
        if wrong:
            assert not any(verdict.agrees for verdict in comparison.verdicts), f"{part} went unnoticed"
        else:
            assert comparison.agrees, reasons(comparison)
    stop(group)


@pytest.mark.pairwise
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("model", "layer"), [(MODEL, LAYER), ("builtin:tiny-qwen3-moe", 1)])
def test_one_zeroed_expert_of_one_layer_makes_the_comparison_fail(
    model: str, layer: int, tmp_path: Path, groups: Groups, natives: Natives
) -> None:
    chosen = layout(model=model)
    native = natives(chosen, Script(pair("one expert")))
    damaged = tmp_path / "damaged"
    zeroed = with_zeros(resolve_builtin(model), damaged, f".layers.{layer}.mlp.experts.3.")
    assert len(zeroed) == 3
    group = start(groups(chosen, models={Role.FFN: str(damaged)}))
    comparison = compared(group, native, "one expert")
    stop(group)
    assert not comparison.agrees, "a zeroed expert went unnoticed"
