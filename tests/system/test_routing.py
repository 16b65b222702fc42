# SPDX-License-Identifier: Apache-2.0
"""What the builtin models' configurations ask of routing and positions is in effect: without it, answers are others.

A feature that nobody notices when it is off would make native tokens no proof that AFD has it. Weights depend on names
and shapes only, so the same weights are asked without the feature. Everything here is native vLLM; that AFD agrees with
it on the whole model is in test_formats.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afd.testing.damage import with_zeros
from afd.testing.stack import Layout
from afd.testing.tiny import BUILTINS, build
from tests.system.conftest import VLLM_ARGS, Natives, layout
from tests.system.interview import Script, report, short_script

pytestmark = pytest.mark.timeout(240)


def alone() -> Script:
    return replace(short_script(), together=())


def differ(what: str, natives: Natives, model: str, changed: Layout) -> None:
    """Every answer of ``changed`` is another one than that of the builtin ``model``."""
    comparison = natives(changed, alone()).against(natives(layout(model=f"builtin:{model}"), alone()))
    report(f"{model} without {what}", comparison)
    assert not any(verdict.agrees for verdict in comparison.verdicts)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("tiny-deepseek-v2-grouped", {"num_groups": 1, "top_k_groups": 1}),
        ("tiny-deepseek-v2-grouped", {"routed_scaling_factor": 1.0}),
        ("tiny-deepseek-v2-grouped", {"yarn_factor": 1.0}),
        ("tiny-deepseek-v2-grouped", {"first_k_dense": 0}),
        ("tiny-deepseek-v3", {"num_groups": 1, "top_k_groups": 1}),
        ("tiny-deepseek-v3", {"routed_scaling_factor": 1.0}),
        ("tiny-qwen3-moe", {"mlp_only_layers": ()}),
        ("tiny-qwen3-moe", {"sparse_step": 1}),
        ("tiny-qwen3-moe", {"tied": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_model_answers_otherwise_without_a_feature_of_its_configuration(
    model: str, change: dict[str, Any], natives: Natives, tmp_path: Path
) -> None:
    assert all(getattr(BUILTINS[model], name) != value for name, value in change.items())
    changed = build(replace(BUILTINS[model], **change), tmp_path / "model")
    differ(", ".join(change), natives, model, layout(model=str(changed)))


@pytest.mark.parametrize(
    ("model", "override"),
    [
        ("tiny-deepseek-v3", '{"scoring_func": "softmax"}'),
        ("tiny-deepseek-v3", '{"norm_topk_prob": false}'),
        ("tiny-qwen3-moe", '{"norm_topk_prob": false}'),
    ],
)
def test_a_model_answers_otherwise_when_vllm_is_told_to_score_otherwise(
    model: str, override: str, natives: Natives
) -> None:
    changed = layout(model=f"builtin:{model}", vllm_args=(*VLLM_ARGS, "--hf-overrides", override))
    differ(override, natives, model, changed)


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("tiny-deepseek-v3", ".e_score_correction_bias"),
        ("tiny-deepseek-v3", ".shared_experts."),
        ("tiny-deepseek-v2-grouped", ".shared_experts."),
    ],
)
def test_a_model_answers_otherwise_without_a_part_of_each_block_with_experts(
    model: str, part: str, natives: Natives, tmp_path: Path
) -> None:
    zeroed = with_zeros(build(model, tmp_path / "whole"), tmp_path / "changed", part)
    layers = {name.split(".")[2] for name in zeroed}
    assert len(layers) == BUILTINS[model].num_layers - BUILTINS[model].first_k_dense
    differ(part, natives, model, layout(model=str(tmp_path / "changed")))
