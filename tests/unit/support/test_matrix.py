# SPDX-License-Identifier: Apache-2.0
"""The support matrix: fails closed, says why and what to do, and calls validated only what a record shows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.errors import MisuseError, UnsupportedError
from afd.support import (
    CONFLICTS,
    DIMENSIONS,
    FEATURES,
    Combination,
    Dimension,
    Status,
    Value,
    check,
    combination_of,
    problem,
    render,
    status,
)
from tests.unit.record_examples import record


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("transport", ["auto", "shm", "collective"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["deepseek", "qwen3_moe"])
def test_one_attention_and_one_ffn_rank_on_cpu_are_supported(
    runner: str, transport: str, dtype: str, family: str
) -> None:
    check(Combination(runner=runner, transport=transport, dtype=dtype, family=family))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"platform": "a3"}, "platform a3 is not supported yet; use the platform cpu"),
        ({"platform": "a9"}, "platform a9 is not supported: AFD does not know it; use cpu"),
        ({"connector": "CAMAsyncAFDConnector"}, "--afd-connector CAMP2pAFDConnector"),
        ({"transport": "cam"}, "Ascend only; use --afd-transport shm or collective"),
        ({"runner": "v3"}, "use v2 or v1"),
        ({"family": "llama"}, "DeepSeek.* or Qwen3-MoE"),
        ({"mode": "full_decode_only"}, "--enforce-eager"),
        ({"num_ubatches": 2}, "ubatches 2 .*--enable-dbo"),
        ({"quantisation": "fp8"}, "unquantised"),
        ({"gate": "attention"}, "leave out --afd-compute-gate-on-attention"),
        ({"runner": "v3", "mode": "graph"}, "runner v3 .*; besides, mode graph .*use --enforce-eager"),
        ({"dtype": "float8"}, "use --dtype float32 or bfloat16 or float16"),
        (
            {"features": frozenset({"lora"})},
            r"lora \(--enable-lora, .*\) is not supported: .*; leave out --enable-lora, ",
        ),
    ],
)
def test_everything_else_is_refused_with_the_reason_and_the_remedy(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check(replace(Combination(), **changes))


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_every_listed_feature_is_refused_somewhere_and_explains_itself(feature: str) -> None:
    assert FEATURES[feature].flag in problem(Combination(features=frozenset({feature})))


def test_a_feature_without_a_row_is_a_bug_of_the_caller() -> None:
    with pytest.raises(MisuseError, match="no feature 'teleport'"):
        check(Combination(features=frozenset({"teleport"})))


def _with_cam_async() -> list[Dimension]:
    """The dimensions of a release that has CAMAsync and two ubatches."""
    return [
        replace(dimension, values=tuple(Value(value.name) for value in dimension.values))
        if dimension.name in ("connector", "ubatches")
        else dimension
        for dimension in DIMENSIONS
    ]


def test_values_that_do_not_go_together_are_refused_once_each_of_them_is_supported() -> None:
    later = _with_cam_async()
    routed = Combination(connector="CAMAsyncAFDConnector", gate="attention")
    assert problem(routed, later) == ""
    assert problem(replace(Combination(), num_ubatches=2), later) == ""
    assert "gate ffn with connector CAMAsyncAFDConnector is not supported: " in problem(
        replace(routed, gate="ffn"), later
    )
    assert re.search(
        "ubatches 2 with connector CAMAsync.* async_moe_ubatching .*use --afd-ubatch-num-ubatches 1",
        problem(replace(routed, num_ubatches=2), later),
    )
    assert "gate" not in problem(replace(routed, gate="ffn")).replace("--afd-compute-gate-on-attention", "")


def test_the_page_shows_the_values_that_do_not_go_together() -> None:
    page = render([])
    assert all(f"| {found.name} | {found.reason} | {found.instead} |" in page for found in CONFLICTS)


words = st.text("abcdefgh-_0123456789", min_size=1, max_size=12)


@given(words, words, words)
def test_values_that_nobody_thought_of_are_refused(platform: str, transport: str, dtype: str) -> None:
    assert problem(Combination(platform="x" + platform))
    assert problem(Combination(transport="x" + transport))
    assert problem(Combination(dtype="x" + dtype))


def test_without_a_record_a_supported_combination_is_unvalidated() -> None:
    assert status(Combination()) is Status.UNVALIDATED
    assert status(Combination(tp=2, num_attention=2)) is Status.UNVALIDATED
    assert status(Combination(mode="graph")) is Status.UNSUPPORTED


def test_a_record_validates_exactly_its_own_combination() -> None:
    assert status(Combination(runner="v2"), [record()]) is Status.VALIDATED
    assert status(Combination(runner="v2", transport="shm"), [record()]) is Status.VALIDATED
    assert status(Combination(runner="v1"), [record()]) is Status.UNVALIDATED
    assert status(Combination(dtype="bfloat16"), [record()]) is Status.UNVALIDATED
    assert combination_of(record()) == Combination(transport="shm")


def test_a_record_that_is_no_evidence_validates_nothing_but_is_shown() -> None:
    dirty = record(cleanup=type(record().cleanup)(segments=1))
    assert status(Combination(), [dirty]) is Status.UNVALIDATED
    assert "`smoke-cpu-v2-1a1f` (no evidence)" in render([dirty])


def test_the_page_names_every_supported_value_and_every_record_once() -> None:
    page = render([record()])
    supported = page.partition("## Supported values")[2].partition("## Layouts")[0]
    for dimension in DIMENSIONS:
        row = next(line for line in supported.splitlines() if line.startswith(f"| {dimension.name} |"))
        for value in dimension.values:
            shown = "any other" if value.name == "*" else value.name
            assert (shown in re.split(r", | \| ", row.rstrip(" |"))) is not bool(
                value.reason or value.same_as
            )
    rows = [line for line in page.splitlines() if line.startswith("| cpu ")]
    assert len(rows) == 1 and rows[0].endswith("| validated | `smoke-cpu-v2-1a1f` |")


def test_the_page_shows_which_layouts_are_validated_for_each_family_and_runner() -> None:
    table = render([record()]).partition("## Layouts")[2].partition("##")[0]
    head, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in head.split("|")].index("deepseek, v2")
    cells = {tuple(row.split(" | ")[:2]): row.split("|")[column].strip() for row in rows}
    assert len(cells) == len(rows)
    assert cells.pop(("| 1A1F", "shm")) == "validated"
    assert set(cells.values()) == {"unvalidated"}


def test_the_page_gives_the_reason_of_every_refusal() -> None:
    page = render([])
    for dimension in DIMENSIONS:
        for value in dimension.values:
            assert not value.reason or f"| {value.reason} | {value.instead} |" in page
    assert all(f"| {feature.reason} | {feature.advice} |" in page for feature in FEATURES.values())


def test_whatever_is_refused_comes_with_advice() -> None:
    for dimension in DIMENSIONS:
        assert all(bool(value.reason) is bool(value.instead) for value in dimension.values), dimension.name
