# SPDX-License-Identifier: Apache-2.0
"""Native tokens for every layout: data-parallel and tensor-parallel Attention, and one FFN rank or several."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from afd.testing.tiny import BUILTINS
from afd.topology import Topology
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

pytestmark = pytest.mark.timeout(600)

QWEN = "builtin:tiny-qwen3-moe"
LAYOUTS = {
    "2A1F": (Topology(2, 1), 1),
    "2A2F": (Topology(2, 2), 1),
    "4A2F": (Topology(4, 2), 1),
    "TP2+1F": (Topology(2, 1), 2),
}
PAIRWISE = {(MODEL, "v2", "2A2F", "shm"), (QWEN, "v1", "TP2+1F", "shm")}
CELLS = [
    pytest.param(*cell, marks=[pytest.mark.pairwise] if cell in PAIRWISE else [])
    for cell in itertools.product((MODEL, QWEN), ("v2", "v1"), LAYOUTS, ("shm", "collective"))
]


@pytest.mark.parametrize(("model", "runner", "name", "transport"), CELLS)
def test_a_layout_gives_native_tokens_and_computes_every_token_once(
    model: str,
    runner: str,
    name: str,
    transport: str,
    groups: Groups,
    natives: Natives,
    recorded: Recorded,
) -> None:
    topology, tp = LAYOUTS[name]
    layers = BUILTINS[model.removeprefix("builtin:")].num_layers
    plain = layout(runner, model=model, vllm_args=DETAILED, topology=topology, tp=tp)
    assert str(plain) == name
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
    report(
        f"{model}, {name}, runner {runner}, transport {transport}",
        comparison,
        f"{tokens.sent} tokens × {layers} layers = {tokens.computed}",
    )
    recorded(chosen, comparison)
    assert comparison.agrees, reasons(comparison)
    # In vLLM's own words: real tokens are what it scheduled, on whichever rank. Padding, and steps in which a rank is
    # idle and runs along, make the rest.
    assert tokens.real == sum(step.prompt_tokens + step.decode_tokens for step in ours.steps)
    assert tokens.computed == tokens.sent * layers
