# SPDX-License-Identifier: Apache-2.0
"""The questions that a smoke run asks. They are data: each group exercises one way a batch can look.

With a step budget of ``STEP_TOKENS`` tokens the long prompts are prefilled in chunks, beside decodes of others.
"""

from __future__ import annotations

from dataclasses import replace

from afd.testing.completions import Question

STEP_TOKENS = 64
MAX_MODEL_LEN = 512
LONG = 360
"""Characters of a prompt that fills a block of vLLM's cache: 128 tokens on CPU. Only whole blocks are found again."""

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Attention keeps the cache, experts keep the weights.",
    "a",
    "One token crosses, one token returns.",
    "0123456789",
    "Experts are chosen by a router; the router is small.",
    "pack my box with five dozen liquor jugs",
    "In the beginning there was a prompt.",
)


def one_at_a_time() -> list[Question]:
    """Asked one after another: plain prefill and decode, and a prompt longer than three steps."""
    questions = [Question(f"single {i}", text, max_tokens=16) for i, text in enumerate(_SENTENCES[:4])]
    questions.append(Question("chunked prefill", _long(0, LONG), max_tokens=12))
    return questions


def together() -> list[Question]:
    """Asked all at once, 24 requests: mixed batches of prefill chunks and decodes."""
    questions = []
    for i in range(20):
        prompt = _SENTENCES[i % len(_SENTENCES)] + f" {i}"
        questions.append(Question(f"together {i}", prompt, max_tokens=8 + (7 * i) % 17, stream=i % 5 == 0))
    questions += [Question(f"together long {i}", _long(i, 90 + 40 * i), max_tokens=10) for i in range(4)]
    return questions


def again() -> list[Question]:
    """Asked after :func:`one_at_a_time`: the first block of the long prompt is in the prefix cache now."""
    return [
        Question("prefix cache, same prompt", _long(0, LONG), max_tokens=12),
        Question("prefix cache, longer prompt", _long(0, LONG + 40), max_tokens=12),
    ]


def sampled() -> list[Question]:
    """Seeded, with the API's default temperature of 1, and a streamed greedy one."""
    return [
        Question("seeded, default temperature", _SENTENCES[0], temperature=None, seed=7, max_tokens=24),
        Question("seeded, temperature 0.7", _SENTENCES[1], temperature=0.7, seed=11, max_tokens=24),
        replace(one_at_a_time()[1], name="streamed", stream=True),
    ]


def _long(variant: int, length: int) -> str:
    """``length`` characters of text; prompts of one variant are prefixes of each other."""
    text = f"[{variant}] " + " ".join(_SENTENCES[(variant + i) % len(_SENTENCES)] for i in range(12))
    return text[:length]
