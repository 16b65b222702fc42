# SPDX-License-Identifier: Apache-2.0
"""The questions of a smoke run exercise what they say they do."""

from __future__ import annotations

from collections import Counter

from tokenizers import Tokenizer

from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS, again, one_at_a_time, sampled, together
from afd.testing.smoke import questions
from afd.testing.tiny import resolve_builtin

CACHE_BLOCK = 128
"""Tokens of a block of vLLM's cache on CPU."""


def lengths() -> dict[str, int]:
    """Tokens of each prompt, by the name of its question."""
    tokenizer = Tokenizer.from_file(str(resolve_builtin("builtin:tiny-deepseek-v2") / "tokenizer.json"))
    single, many = questions()
    return {
        q.name: len(tokenizer.encode(q.prompt).ids) for q in (*single, *many) if isinstance(q.prompt, str)
    }


def test_every_question_has_a_name_of_its_own_and_fits_the_model() -> None:
    single, many = questions()
    names = Counter(question.name for question in (*single, *many))
    assert max(names.values()) == 1
    found = lengths()
    for question in (*single, *many):
        assert found[question.name] + question.max_tokens <= MAX_MODEL_LEN


def test_a_long_prompt_takes_several_steps() -> None:
    assert lengths()["chunked prefill"] > 2 * STEP_TOKENS


def test_the_prefix_that_is_asked_again_fills_a_block_of_the_cache() -> None:
    first = next(question.prompt for question in one_at_a_time() if question.name == "chunked prefill")
    assert isinstance(first, str)
    assert lengths()["chunked prefill"] > CACHE_BLOCK
    for question in again():
        assert isinstance(question.prompt, str) and question.prompt.startswith(first)


def test_24_questions_are_asked_at_once_and_do_not_fit_one_step() -> None:
    found, many = lengths(), together()
    assert len(many) == 24
    assert sum(found[question.name] for question in many) > 2 * STEP_TOKENS
    assert any(found[question.name] > STEP_TOKENS for question in many)
    assert any(question.stream for question in many) and len({question.max_tokens for question in many}) > 5


def test_some_answers_are_drawn_and_their_seeds_make_them_repeatable() -> None:
    drawn = [question for question in sampled() if question.temperature != 0.0]
    assert any(question.temperature is None for question in drawn)
    assert all(question.seed is not None for question in drawn)
    assert any(question.stream for question in sampled())
