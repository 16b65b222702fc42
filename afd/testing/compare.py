# SPDX-License-Identifier: Apache-2.0
"""Are these the tokens of native vLLM?

Two answers agree when their tokens are equal. Floating-point sums in another order may flip a greedy choice
between two tokens that are all but tied, so at the first difference native's own gap between its two likeliest
tokens decides: under ``TIE`` it is a tie, counted and reported; otherwise a failure. Up to that point the
log-probabilities must agree within ``TOLERANCE``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from afd.testing.completions import Answer, Question

TIE = 1e-4
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Verdict:
    """Outcome for one request. ``position`` is the first difference, or the length when there is none."""

    name: str
    agrees: bool
    tie: bool
    tokens: int
    position: int
    gap: float
    logprob_error: float
    reason: str


def compare(question: Question, native: Answer, ours: Answer) -> Verdict:
    """Judge one answer against native's. A sampled answer (temperature other than 0) must have equal tokens."""
    length = len(native.tokens)
    position = next(
        (i for i, (a, b) in enumerate(zip(native.tokens, ours.tokens, strict=False)) if a != b),
        min(length, len(ours.tokens)),
    )
    error = _largest(
        abs(a - b) for a, b in zip(native.logprobs[:position], ours.logprobs[:position], strict=False)
    )
    gap = float("nan")
    tie = False
    reasons: list[str] = []
    if not length:
        reasons.append("native returned no tokens")
    if len(ours.tokens) != length:
        reasons.append(f"{len(ours.tokens)} tokens instead of {length}")
    elif position < length:
        top = native.top[position] if position < len(native.top) else []
        if question.temperature == 0.0 and len(top) > 1:
            gap = top[0] - top[1]
            tie = gap < TIE
        if not tie:
            reasons.append(
                f"token {position} is {ours.tokens[position]} instead of {native.tokens[position]} "
                f"(native's gap between its two likeliest: {gap:.2e})"
            )
    elif (ours.text, ours.finish) != (native.text, native.finish):
        reasons.append(
            f"equal tokens, but text {ours.text!r} ({ours.finish}) instead of {native.text!r} ({native.finish})"
        )
    if question.logprobs is not None:
        for who, answer in (("native returned ", native), ("", ours)):
            if len(answer.logprobs) != len(answer.tokens):
                reasons.append(
                    f"{who}{len(answer.logprobs)} log-probabilities for {len(answer.tokens)} tokens"
                )
    if not error <= TOLERANCE:
        reasons.append(f"log-probabilities differ by {error:.2e} (allowed {TOLERANCE:.0e})")
    return Verdict(question.name, not reasons, tie, length, position, gap, error, "; ".join(reasons))


def _largest(errors: Iterable[float]) -> float:
    """The largest; NaN when one is NaN, which ``max`` would overlook."""
    found = tuple(errors)
    return math.nan if any(math.isnan(error) for error in found) else max(found, default=0.0)


@dataclass(frozen=True)
class Comparison:
    """All verdicts of one run."""

    verdicts: tuple[Verdict, ...]

    @property
    def agrees(self) -> bool:
        return bool(self.verdicts) and all(verdict.agrees for verdict in self.verdicts)

    @property
    def ties(self) -> int:
        return sum(verdict.tie for verdict in self.verdicts)

    @property
    def tokens(self) -> int:
        return sum(verdict.tokens for verdict in self.verdicts)

    @property
    def max_logprob_error(self) -> float:
        return _largest(verdict.logprob_error for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.agrees)


def compare_all(
    questions: Sequence[Question], native: Sequence[Answer], ours: Sequence[Answer]
) -> Comparison:
    """Judge every answer; the three sequences belong together by position."""
    return Comparison(tuple(compare(q, n, o) for q, n, o in zip(questions, native, ours, strict=True)))
