# SPDX-License-Identifier: Apache-2.0
"""Native answers are asked once, and again when what they depend on has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from afd.testing.completions import Answer
from afd.testing.records import stack
from tests.chaos.stand import keep_answers, kept_answers, native_answers, native_file, native_key
from tests.chaos.traffic import EVERY

ANSWERS = {"long 0": Answer("long 0", tokens=[1, 2], text="ab", finish="length")}


def test_answers_of_just_this_vllm_model_and_questions_are_not_asked_again(tmp_path: Path) -> None:
    assert kept_answers(native_file(tmp_path), native_key()) is None
    keep_answers(native_file(tmp_path), native_key(), ANSWERS)
    assert native_answers(tmp_path, "no launcher is asked") == ANSWERS


@pytest.mark.parametrize(
    "other",
    [
        lambda: native_key(installed=msgspec.structs.replace(stack(), digest="of another vLLM")),
        lambda: native_key(model="builtin:tiny-qwen3-moe"),
        lambda: native_key(questions=EVERY[:-1]),
        lambda: native_key(questions=(replace(EVERY[0], max_tokens=1), *EVERY[1:])),
        lambda: {**native_key(), "vllm": "of another pin"},
    ],
    ids=["packages", "model", "fewer questions", "a longer answer", "pin"],
)
def test_answers_of_another_vllm_model_or_questions_are_not_taken(
    tmp_path: Path, other: Callable[[], dict[str, str]]
) -> None:
    keep_answers(native_file(tmp_path), other(), ANSWERS)
    assert kept_answers(native_file(tmp_path), native_key()) is None


def test_answers_from_before_there_was_a_key_are_not_taken(tmp_path: Path) -> None:
    native_file(tmp_path).write_bytes(msgspec.json.encode(ANSWERS))
    assert kept_answers(native_file(tmp_path), native_key()) is None
