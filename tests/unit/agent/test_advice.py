# SPDX-License-Identifier: Apache-2.0
"""Whoever does what a refusal advises is accepted: the words of the advice are followed to the letter here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from afd.agent import vllm_flags, vllm_policy
from afd.cli import serve
from afd.errors import ConfigError
from afd.support import CONFLICTS, DIMENSIONS, FEATURES
from afd.topology import Role

# Nobody chooses these on the command line: the image, the model, or a request decides.
ELSEWHERE = {"platform", "family", "multimodal", "encoder_decoder", "other_vllm"}

ASYNC = ("--afd-connector", "CAMAsyncAFDConnector")
GATE = "--afd-compute-gate-on-attention"

# What is refused, by the name of its dimension or feature in the support matrix.
REFUSED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("connector", ASYNC),
    ("connector", (*ASYNC, "--afd-async")),
    ("connector", (*ASYNC, "--afd-async", GATE)),
    ("transport", ("--afd-transport", "cam")),
    ("mode", ("--no-enforce-eager",)),
    ("mode", ("--cudagraph-capture-sizes", "1", "2")),
    ("mode", ("-cc.cudagraph_mode", "FULL")),
    ("ubatches", ("--afd-ubatch-num-ubatches", "2")),
    ("ubatches", ("--enable-dbo",)),
    ("quantisation", ("--quantization", "fp8")),
    ("quantisation", ("-q", "int8")),
    ("gate", (GATE,)),
    ("lora", ("--enable-lora",)),
    ("speculative", ("--speculative-config", '{"method": "ngram"}')),
    ("speculative", ("-sc.method", "ngram")),
    ("pipeline_parallel", ("-pp", "2")),
    ("prefill_context_parallel", ("-pcp", "2")),
    ("decode_context_parallel", ("-dcp", "2")),
    ("eplb", ("--enable-eplb",)),
    ("eplb", ("--eplb-config", '{"num_redundant_experts": 2}')),
    (
        "sequence_parallel_moe",
        ("-tp", "2", "-dp", "2", "--afd-num-attention-ranks", "4", "--enable-expert-parallel"),
    ),
    ("kv_transfer", ("--kv-transfer-config", "{}")),
    ("pooling", ("--runner", "pooling")),
    ("pooling", ("--convert", "embed")),
    ("sleep_mode", ("--enable-sleep-mode",)),
    ("multi_node", ("-n", "2")),
    ("ubatches", ("--ubatch-size", "2")),
    ("load_format", ("--load-format", "gguf")),
    ("load_format", ("--safetensors-load-strategy", "eager")),
    ("load_format", ("--model-loader-extra-config", '{"a": 1}')),
)

_VALUES = {"none": (), "optional": (), "one": ("9",), "several": ("9",)}


def given(flag: str) -> tuple[str, ...]:
    """A flag of vLLM, with a value when it takes one."""
    objects = flag.endswith(("-config", "-overrides", "-loras"))
    return (flag, "{}") if objects else (flag, *_VALUES[vllm_flags.flags()[flag]])


# Refused for another reason than a row of the support matrix.
MORE = (
    ("--afd-async",),
    (*ASYNC, "--no-afd-async"),
    ("--worker-cls", "a.B"),
    ("--dtype=float8",),
    ("-dp", "2"),
    ("--afd-num-attention-ranks", "2"),
    ("-tp", "2", "--data-parallel-size", "2", "--afd-num-attention-ranks", "2"),
    *(given(flag) for name in ("refused", "only") for flag in vllm_policy.table()[name]),
)


def refusal(checkpoint: Path, arguments: Sequence[str], role: Role = Role.ATTENTION) -> str:
    """Why ``afd serve`` would not start; empty when it would."""
    with serve.command.make_context("serve", [str(role), str(checkpoint), *arguments]) as ctx:
        given = dict(ctx.params)
        try:
            serve.plan(ctx, Role(given.pop("role")), **given)
        except ConfigError as error:
            return str(error)
    return ""


def follow(arguments: Sequence[str], said: str) -> list[str]:
    """The command line of somebody who does what was said, and nothing else."""
    following = list(arguments)
    advised = False
    for problem in said.split("; besides, "):
        advice = problem.rpartition("; ")[2]
        use, _, without = advice.partition(", without ") if advice.startswith("use ") else ("", "", advice)
        for flag in re.findall(r"--[a-z-]+", without):
            following, advised = removed(following, flag), True
        if advice.startswith("leave it out"):
            named = re.search(r"--[a-z-]+", problem)
            assert named, problem
            following, advised = removed(following, named[0]), True
        for flag, value in re.findall(r"(--[a-z-]+)((?: (?!and |or |with)[\w.]+)?)", use):
            following, advised = [*removed(following, flag), flag, *value.split()], True
    assert advised, f"{said!r} does not say what to do"
    return following


SHORT = {
    "--quantization": "-q", "--tensor-parallel-size": "-tp", "--data-parallel-size": "-dp", "--nnodes": "-n",
    "--speculative-config": "-sc", "--pipeline-parallel-size": "-pp", "--prefill-context-parallel-size": "-pcp",
    "--decode-context-parallel-size": "-dcp", "--compilation-config": "-cc",
}  # fmt: skip


def removed(arguments: Sequence[str], flag: str) -> list[str]:
    """Without a flag, in any of its spellings, and its values."""
    kept, dropping = [], False
    for word in arguments:
        if word.startswith("-"):
            dropping = re.split(r"[=.]", word)[0] in (flag, SHORT.get(flag, flag))
        if not dropping:
            kept.append(word)
    return kept


@pytest.mark.parametrize(
    ("what", "arguments"), REFUSED, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_what_a_refusal_advises_is_accepted(what: str, arguments: tuple[str, ...], checkpoint: Path) -> None:
    said = refusal(checkpoint, arguments)
    assert re.search(rf"(^|besides, ){what} .*is not supported", said), said
    following = follow(arguments, said)
    assert refusal(checkpoint, following) == "", f"{said!r} led to {following}"


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_two_mistakes_are_told_at_once_and_both_can_be_repaired(number: int, checkpoint: Path) -> None:
    (one, first), (two, second) = REFUSED[number], REFUSED[(number + 8) % len(REFUSED)]
    arguments = (*first, *second)
    said = refusal(checkpoint, arguments)
    assert f"{one} " in said and f"{two} " in said
    following = follow(arguments, said)
    assert refusal(checkpoint, following) == "", f"{said!r} led to {following}"


@pytest.mark.parametrize("arguments", MORE, ids=" ".join)
def test_the_advice_of_other_refusals_is_accepted(arguments: tuple[str, ...], checkpoint: Path) -> None:
    said = refusal(checkpoint, arguments)
    assert said
    following = follow(arguments, said)
    assert refusal(checkpoint, following) == "", f"{said!r} led to {following}"


@pytest.mark.parametrize(
    "arguments",
    [("-tp", "2"), ("-dp", "2"), ("--tensor-parallel-size=2", "--data-parallel-size=2")],
    ids=" ".join,
)
def test_sizes_of_attention_that_ffn_refuses_can_be_left_out(
    arguments: tuple[str, ...], checkpoint: Path
) -> None:
    said = refusal(checkpoint, arguments, Role.FFN)
    assert refusal(checkpoint, follow(arguments, said), Role.FFN) == "", said


@pytest.mark.parametrize(("flag", "feature"), vllm_policy.table()["feature"].items())
def test_every_flag_that_turns_a_feature_on_can_be_left_out(
    flag: str, feature: str, checkpoint: Path
) -> None:
    said = refusal(checkpoint, given(flag))
    assert said.startswith(f"{feature} ("), said
    assert refusal(checkpoint, follow(given(flag), said)) == "", said


def test_every_row_of_the_support_matrix_that_refuses_is_tried() -> None:
    rows = {dimension.name for dimension in DIMENSIONS if any(value.reason for value in dimension.values)}
    rows |= {conflict.values[0][0] for conflict in CONFLICTS}
    assert rows | set(FEATURES) == {what for what, _ in REFUSED} | ELSEWHERE


def test_a_model_that_is_refused_says_which_models_run(checkpoint: Path) -> None:
    family = next(dimension for dimension in DIMENSIONS if dimension.name == "family")
    assert (
        family.find("qwen3").instead
        == "use a model of the DeepSeek-V2, DeepSeek-V3 or Qwen3-MoE architecture"
    )
    assert refusal(checkpoint, ()) == ""
