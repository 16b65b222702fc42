# SPDX-License-Identifier: Apache-2.0
"""No flag of vLLM gets past the support matrix unseen."""

from __future__ import annotations

import collections

import pytest

from afd.agent.vllm_arguments import parse
from afd.agent.vllm_flags import flags
from afd.agent.vllm_policy import check, features, num_ubatches, table
from afd.errors import UnsupportedError
from afd.support.tables import FEATURES


def test_every_flag_of_vllm_stands_in_exactly_one_table() -> None:
    tables = table()
    classified = collections.Counter(
        flag
        for name, content in tables.items()
        if name != "variable"
        for flag in (content["flags"] if name in ("judged", "passed") else content)
    )
    long = {flag for flag in flags() if flag.startswith("--")}
    without_opposites = {flag for flag in long if f"--{flag.removeprefix('--no-')}" not in long - {flag}}
    assert set(classified) == without_opposites
    assert [flag for flag, times in classified.items() if times > 1] == []


def test_every_feature_named_here_is_a_row_of_the_support_matrix() -> None:
    named = {*table()["feature"].values(), *table()["size"].values()}
    assert named | {"load_format", "pooling", "sequence_parallel_moe"} <= set(FEATURES)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], []),
        (["--enable-lora"], ["lora"]),
        (["--enable-lora", "--no-enable-lora"], []),
        (["--speculative-config", "{}"], ["speculative"]),
        (["-sc.method", "ngram"], ["speculative"]),
        (["--spec-method", "ngram", "--spec-tokens", "3"], ["speculative"]),
        (["--enable-eplb"], ["eplb"]),
        (["--enable-elastic-ep"], ["eplb"]),
        (["--kv-transfer-config", "{}"], ["kv_transfer"]),
        (["--kv-offloading-size", "4"], ["kv_transfer"]),
        (["--ec-transfer-config", "{}"], ["kv_transfer"]),
        (["--enable-sleep-mode"], ["sleep_mode"]),
        (["-pp", "2"], ["pipeline_parallel"]),
        (["-pp", "1"], []),
        (["-pcp", "2"], ["prefill_context_parallel"]),
        (["-dcp=2"], ["decode_context_parallel"]),
        (["-n", "2"], ["multi_node"]),
        (["--load-format", "safetensors"], []),
        (["--load-format", "dummy"], []),
        (["--load-format", "gguf"], ["load_format"]),
        (["--safetensors-load-strategy", "eager"], ["load_format"]),
        (["--model-loader-extra-config", "{}"], []),
        (["--model-loader-extra-config", '{"a": 1}'], ["load_format"]),
        (["--model-loader-extra-config.a", "1"], ["load_format"]),
        (["--runner", "pooling"], ["pooling"]),
        (["--convert", "embed"], ["pooling"]),
        (["--runner", "generate", "--convert", "none"], []),
        (["-ep"], []),
        (["-ep", "-tp", "2", "-dp", "2"], ["sequence_parallel_moe"]),
    ],
)
def test_features_that_the_support_matrix_judges_are_recognised(argv: list[str], expected: list[str]) -> None:
    assert features(parse(argv)) == expected


@pytest.mark.parametrize(
    ("argv", "number"),
    [([], 1), (["--enable-dbo"], 2), (["--ubatch-size", "2"], 2), (["--ubatch-size", "0"], 1)],
)
def test_ubatches_of_vllms_own_flags_are_counted(argv: list[str], number: int) -> None:
    assert num_ubatches(parse(argv)) == number


@pytest.mark.parametrize("flag", sorted(table()["refused"]))
def test_what_no_pair_of_roles_can_do_is_refused_with_its_reason(flag: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^vLLM argument {flag}: .+; leave it out$"):
        check(parse([flag, "1"] if flags()[flag] != "none" else [flag]))


@pytest.mark.parametrize("flag", sorted(table()["only"]))
def test_other_values_than_the_accepted_ones_are_refused_naming_those(flag: str) -> None:
    accepted = table()["only"][flag]["values"]
    for value in accepted:
        check(parse([flag, value]))
    with pytest.raises(
        UnsupportedError, match=f"^vLLM argument {flag} 7: .+; leave it out, or set it to {accepted[0]}"
    ):
        check(parse([flag, "7"]))


def test_a_flag_that_was_negated_afterwards_is_not_refused() -> None:
    check(parse(["--data-parallel-external-lb", "--no-data-parallel-external-lb"]))
