# SPDX-License-Identifier: Apache-2.0
"""The judge of a smoke run. It must be hard to please: every way to differ has a test that makes it fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from afd.testing.compare import TIE, TOLERANCE, Comparison, Verdict, compare, compare_all
from afd.testing.completions import Answer, Question

GREEDY = Question("q", "prompt")
SAMPLED = Question("q", "prompt", temperature=None, seed=7)


def answer(**changes: Any) -> Answer:
    """Four tokens; at each position the likeliest token is ahead by one."""
    tokens = [5, 6, 7, 8]
    plain = Answer(
        "q", tokens, [-0.1] * 4, [[-0.1, -1.1, -2.0] for _ in tokens], text="abcd", finish="length"
    )
    return replace(plain, **changes)


def judged(ours: Answer, native: Answer | None = None, question: Question = GREEDY) -> Verdict:
    return compare(question, native or answer(), ours)


def test_equal_answers_agree() -> None:
    verdict = judged(answer())
    assert (verdict.agrees, verdict.tie, verdict.tokens, verdict.position) == (True, False, 4, 4)
    assert (verdict.logprob_error, verdict.reason) == (0.0, "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"tokens": [5, 6, 9, 8]},
            "token 2 is 9 instead of 7 (native's gap between its two likeliest: 1.00e+00)",
        ),
        ({"tokens": [9, 6, 7, 8]}, "token 0 is 9 instead of 5"),
        ({"tokens": [5, 6, 7], "logprobs": [-0.1] * 3}, "3 tokens instead of 4"),
        ({"tokens": [5, 6, 7, 8, 9], "logprobs": [-0.1] * 5}, "5 tokens instead of 4"),
        ({"tokens": [], "logprobs": []}, "0 tokens instead of 4"),
        ({"logprobs": [-0.1, -0.1, -0.1002, -0.1]}, "log-probabilities differ by 2.00e-04 (allowed 1e-04)"),
        ({"logprobs": [-0.1, -0.1, math.nan, -0.1]}, "log-probabilities differ by nan"),
        ({"logprobs": [math.nan, -0.1, -0.1, -0.1]}, "log-probabilities differ by nan"),
        ({"logprobs": [-math.inf, -0.1, -0.1, -0.1]}, "log-probabilities differ by inf"),
        ({"logprobs": []}, "0 log-probabilities for 4 tokens"),
        ({"logprobs": [-0.1] * 3}, "3 log-probabilities for 4 tokens"),
        ({"text": "abce"}, "equal tokens, but text 'abce' (length) instead of 'abcd' (length)"),
        ({"finish": "stop"}, "equal tokens, but text 'abcd' (stop) instead of 'abcd' (length)"),
    ],
)
def test_an_answer_that_differs_fails_and_says_how(changes: dict[str, Any], says: str) -> None:
    verdict = judged(answer(**changes))
    assert not verdict.agrees
    assert not verdict.tie
    assert says in verdict.reason


def test_a_small_difference_of_log_probabilities_is_allowed_and_reported() -> None:
    verdict = judged(answer(logprobs=[-0.1, -0.10005, -0.1, -0.1]))
    assert verdict.agrees
    assert verdict.logprob_error == pytest.approx(5e-5)


@pytest.mark.parametrize(
    ("gap", "agrees"), [(0.0, True), (TIE * 0.9, True), (TIE * 1.1, False), (math.nan, False)]
)
def test_the_first_difference_is_forgiven_only_where_native_was_undecided(gap: float, agrees: bool) -> None:
    native = answer(top=[[-0.1, -1.1], [-0.1, -1.1], [-0.1, -0.1 - gap], [-0.1, -1.1]])
    verdict = judged(answer(tokens=[5, 6, 9, 1]), native)
    assert (verdict.agrees, verdict.tie, verdict.position) == (agrees, agrees, 2)


def test_after_a_tie_the_answers_may_part_but_before_it_nothing_is_forgiven() -> None:
    native = answer(top=[[-0.1, -0.1]] * 4)
    parted = answer(tokens=[5, 6, 9, 1], logprobs=[-0.1, -0.1, -3.0, -9.0], text="abxy")
    assert judged(parted, native).tie
    early = judged(replace(parted, logprobs=[-0.1, -0.2, -3.0, -9.0]), native)
    assert not early.agrees
    assert "log-probabilities differ" in early.reason


def test_a_sampled_answer_has_no_ties() -> None:
    native = answer(top=[[-0.1, -0.1]] * 4)
    assert judged(answer(), native, SAMPLED).agrees
    assert not judged(answer(tokens=[5, 6, 9, 8]), native, SAMPLED).agrees
    assert not judged(answer(tokens=[5, 6, 9, 8]), native, replace(GREEDY, temperature=0.7)).agrees


def test_a_difference_is_no_tie_when_native_did_not_say_how_sure_it_was() -> None:
    for top in ([], [[-0.1]] * 4):
        verdict = judged(answer(tokens=[5, 6, 9, 8]), answer(top=top))
        assert not verdict.agrees
        assert math.isnan(verdict.gap)


def test_a_native_answer_that_proves_nothing_fails() -> None:
    empty = answer(tokens=[], logprobs=[], top=[])
    assert "native returned no tokens" in judged(empty, empty).reason
    silent = answer(logprobs=[])
    assert "native returned 0 log-probabilities for 4 tokens" in judged(answer(), silent).reason


def test_log_probabilities_are_not_missed_where_nobody_asked_for_them() -> None:
    quiet = answer(logprobs=[], top=[])
    assert judged(quiet, quiet, replace(GREEDY, logprobs=None)).agrees


def test_a_comparison_agrees_when_every_verdict_does_and_there_is_one() -> None:
    native = answer(top=[[-0.1, -0.1]] * 4)
    found = compare_all(
        [GREEDY] * 3,
        [native] * 3,
        [answer(), answer(tokens=[5, 6, 9, 8]), answer(logprobs=[-0.1, -0.1, -0.1, -0.10009])],
    )
    assert (found.agrees, found.ties, found.tokens, found.failures) == (True, 1, 12, ())
    assert found.max_logprob_error == pytest.approx(9e-5)
    assert found.max_logprob_error < TOLERANCE
    broken = compare_all([GREEDY], [native], [answer(logprobs=[-0.1, math.nan, -0.1, -0.1])])
    assert not broken.agrees
    assert math.isnan(broken.max_logprob_error)
    assert len(broken.failures) == 1
    assert not Comparison(()).agrees


def test_answers_of_another_number_of_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare_all([GREEDY], [answer()], [])
