# SPDX-License-Identifier: Apache-2.0
"""Native tokens for other checkpoints: DeepSeek-V3's routing, several files, half-width numbers, no weights at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.testing.compare import Comparison
from afd.testing.stack import Layout
from afd.testing.tiny import BUILTINS, TinyModel, build
from tests.system.conftest import DETAILED, VLLM_ARGS, Groups, Natives, Recorded, layout
from tests.system.interview import (
    Interview,
    Script,
    crossed,
    full_script,
    interview_group,
    reasons,
    report,
    short_script,
    start,
    stop,
)

pytestmark = pytest.mark.timeout(300)


def compared(
    what: str, groups: Groups, chosen: Layout, script: Script, native: Interview
) -> tuple[Interview, Comparison]:
    """Serve ``chosen`` in two roles, and judge the answers by ``native``'s."""
    group = start(groups(chosen))
    ours = interview_group(group, script, native)
    layers = 6 if "qwen" in chosen.model else 4
    tokens = crossed(group, layers)
    stop(group)
    assert tokens.computed == tokens.sent * layers > 0
    comparison = ours.against(native)
    report(what, comparison, f"{tokens.sent} tokens × {layers} layers = {tokens.computed}")
    return ours, comparison


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize("model", ["tiny-deepseek-v3", "tiny-deepseek-v2-grouped"])
def test_routing_by_sigmoid_and_bias_or_in_groups_and_scaled_positions_give_native_tokens(
    model: str, runner: str, groups: Groups, natives: Natives, recorded: Recorded
) -> None:
    chosen = layout(runner, model=f"builtin:{model}", vllm_args=DETAILED)
    script = full_script(runner)
    ours, comparison = compared(f"{model}, runner {runner}", groups, chosen, script, natives(chosen, script))
    recorded(chosen, comparison)
    assert comparison.agrees, reasons(comparison)
    assert any(step.mixed for step in ours.steps)


def test_a_checkpoint_in_three_files_gives_the_tokens_of_the_same_one_in_one_file(
    tmp_path: Path, groups: Groups, natives: Natives
) -> None:
    path = build(TinyModel(shards=3), tmp_path / "model")
    assert len(list(path.glob("*.safetensors"))) == 3
    native = natives(layout(), short_script())
    _, comparison = compared("three files", groups, layout(model=str(path)), short_script(), native)
    assert comparison.agrees, reasons(comparison)


def test_dummy_weights_give_native_tokens(groups: Groups, natives: Natives) -> None:
    chosen = layout(vllm_args=(*VLLM_ARGS, "--load-format", "dummy"))
    native = natives(chosen, short_script())
    _, comparison = compared("dummy weights", groups, chosen, short_script(), native)
    assert comparison.agrees, reasons(comparison)
    assert native.answers[0].tokens != natives(layout(), short_script()).answers[0].tokens


@pytest.fixture(scope="module")
def bfloat16(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint whose files hold bfloat16."""
    return str(
        build(TinyModel(dtype="bfloat16"), tmp_path_factory.mktemp("bfloat16") / "tiny-deepseek-v2-bfloat16")
    )


def test_a_bfloat16_checkpoint_run_in_float32_gives_native_tokens(
    bfloat16: str, groups: Groups, natives: Natives
) -> None:
    chosen = layout(model=bfloat16)
    native = natives(chosen, short_script())
    _, comparison = compared("bfloat16 files in float32", groups, chosen, short_script(), native)
    assert comparison.agrees, reasons(comparison)


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_in_bfloat16_requests_that_are_alone_give_native_tokens(
    runner: str, bfloat16: str, groups: Groups, natives: Natives, recorded: Recorded
) -> None:
    recorded(*alone(f"bfloat16, runner {runner}", in_dtype("bfloat16", runner, bfloat16), groups, natives))


@pytest.mark.parametrize(
    ("model", "runner"),
    [
        ("tiny-deepseek-v3", "v2"),
        ("tiny-deepseek-v3", "v1"),
        ("tiny-qwen3-moe", "v2"),
        ("tiny-qwen3-moe", "v1"),
    ],
)
def test_in_float16_requests_that_are_alone_give_native_tokens(
    model: str, runner: str, groups: Groups, natives: Natives, recorded: Recorded
) -> None:
    """vLLM's DeepSeek layers divide the residual by the factor of the routing in float16, and after a dense block also
    its output, which they tell by the block's class: a stand-in that is none of it changes every answer."""
    if "deepseek" in model:
        assert BUILTINS[model].routed_scaling_factor != 1 and BUILTINS[model].first_k_dense > 0
    chosen = in_dtype("float16", runner, f"builtin:{model}")
    recorded(*alone(f"{model} in float16, runner {runner}", chosen, groups, natives))


def in_dtype(dtype: str, runner: str, model: str) -> Layout:
    at = VLLM_ARGS.index("--dtype") + 1
    return layout(runner, model=model, vllm_args=(*VLLM_ARGS[:at], dtype, *VLLM_ARGS[at + 1 :]))


def alone(what: str, chosen: Layout, groups: Groups, natives: Natives) -> tuple[Layout, Comparison]:
    """The comparison of requests that are alone, which must agree. Alone, a request meets the same shapes in AFD and in
    native vLLM. In a batch of others it does not, and half-width numbers keep three digits: there native does not agree
    with itself either, so that part is only reported."""
    script = short_script()
    native = natives(chosen, script)
    ours, everything = compared(what, groups, chosen, script, native)
    names = [question.name for question in script.single]
    comparison = ours.part(*names).against(native.part(*names))
    report(f"{what}, alone", comparison, f"all: {len(everything.failures)} differ")
    assert comparison.agrees, reasons(comparison)
    assert comparison.ties == 0
    return chosen, comparison
