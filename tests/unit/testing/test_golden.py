# SPDX-License-Identifier: Apache-2.0
"""Golden answers: kept whole, and refused where they belong to something else."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from afd import pins
from afd.errors import ConfigError
from afd.testing import golden
from afd.testing.compare import compare
from afd.testing.completions import Answer, Question
from afd.testing.golden import Golden, GoldenAnswer

ANSWER = GoldenAnswer(
    name="a",
    tokens=(5, 6),
    logprobs=(-0.5, -0.1),
    top=((-0.5, -0.50001), (-0.1, -2.0)),
    text="ab",
    finish="length",
)


def made(**changes: object) -> Golden:
    whole = Golden(
        model=golden.MODEL,
        weights=golden.digest_of_weights(golden.MODEL),
        asked=golden.digest_of_questions(),
        vllm=pins.load().vllm_version,
        runner="v2",
        dtype="float32",
        seconds=1.0,
        answers=(ANSWER,),
    )
    return msgspec.structs.replace(whole, **changes)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(msgspec.json.encode(made()))
    assert golden.load(path) == made()


def test_the_two_likeliest_tokens_still_tell_a_tie() -> None:
    (native,) = made().for_comparison()
    question = Question("a", "x", max_tokens=2)
    tie = compare(question, native, Answer("a", [4, 6], [-0.50001, -0.1], [], "xb", "length"))
    assert (tie.agrees, tie.tie) == (True, True)
    wrong = compare(question, native, Answer("a", [5, 7], [-0.5, -2.0], [], "ax", "length"))
    assert not wrong.agrees and math.isclose(wrong.gap, 1.9)


@pytest.mark.parametrize(
    ("field", "says"),
    [("weights", "weights of builtin:"), ("asked", "other questions"), ("vllm", "version of vLLM")],
)
def test_answers_for_something_else_are_refused(field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made(**{field: "0" * 16}).for_comparison()


@pytest.mark.parametrize("content", [b"{}", b"no json", b'{"schema": 2}'])
def test_a_file_that_is_something_else_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        golden.load(path)
