# SPDX-License-Identifier: Apache-2.0
"""Masks, penalties and biases are bit-equal to the interpreted kernels; top-k and top-p keep what vLLM's sort keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm.v1.worker.gpu.sample.bad_words as bad_words
import vllm.v1.worker.gpu.sample.logit_bias as logit_bias
import vllm.v1.worker.gpu.sample.min_p as min_p
import vllm.v1.worker.gpu.sample.penalties as penalties
import vllm.v1.worker.gpu.structured_outputs as structured_outputs
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

Same = Callable[..., list[Any]]

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

ROWS, VOCAB = 4, 75
STATES = torch.tensor([2, 0, 11, 7], dtype=torch.int32)


def logits_of(draw: Any) -> torch.Tensor:
    """float32[ROWS, VOCAB] in rows that are wider than that."""
    logits: torch.Tensor = draw.floats(ROWS, VOCAB + 5)[:, :VOCAB]
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [7, 250])
def test_top_k_and_top_p_keep_what_a_sort_keeps(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    # Distinct values, also in bfloat16: between equal logits the two implementations choose differently.
    logits = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(9)]).to(dtype) / 8
    k = torch.tensor([1, 3, 7, vocab, vocab, 5, 2, vocab, 6], dtype=torch.int32)
    p = torch.tensor([0.9, 1.0, 0.5, 0.9, 1.0, 0.3, 1.0, 0.05, 0.99])
    for use_k, use_p in [(k, None), (None, p), (k, p)]:
        expected = apply_top_k_top_p_pytorch(logits.clone(), use_k, use_p)
        assert torch.equal(apply_top_k_top_p_triton(logits.clone(), use_k, use_p), expected)


def test_top_k_keeps_exactly_k_of_equal_logits_and_the_first_ones() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0, 0.0]])
    kept = apply_top_k_top_p_triton(logits, torch.tensor([2], dtype=torch.int32), None)
    assert torch.isfinite(kept).tolist() == [[False, True, True, False, False]]


def test_top_p_keeps_the_fewest_tokens_that_reach_p() -> None:
    logits = torch.tensor([[0.5, 0.1, 0.25, 0.15]]).log()
    kept = apply_top_k_top_p_triton(logits, None, torch.tensor([0.6]))
    assert torch.isfinite(kept).tolist() == [[True, False, True, False]]


def test_top_p_stops_at_the_token_that_reaches_p_exactly() -> None:
    kept = apply_top_k_top_p_triton(torch.zeros(1, 4), None, torch.tensor([0.5]))
    assert torch.isfinite(kept).tolist() == [[True, True, False, False]]


def test_masked_logits_stay_masked_and_one_token_always_survives() -> None:
    logits = torch.full((2, 6), -math.inf)
    logits[:, 4] = 1.0
    k, p = torch.tensor([3, 6], dtype=torch.int32), torch.tensor([1e-6, 0.5])
    kept = apply_top_k_top_p_triton(logits, k, p)
    assert torch.isfinite(kept).nonzero().tolist() == [[0, 4], [1, 4]]


def test_min_p_masks_unlikely_tokens(same: Same, draw: Any) -> None:
    logits = logits_of(draw)
    least = torch.tensor([0.3, 0, 0.0, 0, 0, 0, 0, 0.05, 0, 0, 0, 1.0])
    kernel = min_p._min_p_kernel
    after, *_ = same(kernel, (ROWS,), logits, logits.stride(0), STATES, least, VOCAB, BLOCK_SIZE=32)
    assert torch.isfinite(after).sum(1).tolist()[::2] == [VOCAB, 1]


@pytest.mark.parametrize("places", [[0, 0, 0, 0], [0, 1, 2, 0]])
def test_penalties_of_prompt_output_and_draft_tokens(same: Same, draw: Any, places: list[int]) -> None:
    logits = logits_of(draw)
    repetition = torch.tensor([1.3, 9, 1.0, 9, 9, 9, 9, 1.0, 9, 9, 9, 0.6])
    frequency = torch.tensor([0.4, 9, 0.0, 9, 9, 9, 9, 0.0, 9, 9, 9, -0.7])
    presence = torch.tensor([0.5, 9, 0.0, 9, 9, 9, 9, 0.9, 9, 9, 9, 0.0])
    prompt = draw.ints(-(2**31), 2**31, (12, 3))
    counts = draw.ints(0, 3, (12, VOCAB)) * draw.ints(0, 2, (12, VOCAB))
    after, *_ = same(
        penalties._penalties_kernel, (ROWS, 2), logits, logits.stride(0), STATES, draw.ints(0, VOCAB, (ROWS,)),
        torch.tensor(places, dtype=torch.int32), repetition, frequency, presence, prompt, 3, counts, VOCAB, VOCAB,
        BLOCK_SIZE=64,
    )  # fmt: skip
    assert torch.equal(after[0], logits[0])  # state 2 asks for nothing


def test_prompt_and_output_tokens_are_counted(same: Same, draw: Any) -> None:
    prompt_lens = draw.ints(1, 30, (12,))
    bits, counts = torch.zeros(12, 3, dtype=torch.int32), torch.zeros(12, VOCAB, dtype=torch.int32)
    same(
        penalties._bincount_kernel, (ROWS, 4), STATES, draw.all_tokens, draw.all_tokens.stride(0), prompt_lens,
        prompt_lens + draw.ints(0, 30, (12,)), bits, 3, counts, VOCAB, BLOCK_SIZE=16,
    )  # fmt: skip


@pytest.mark.parametrize("asked", ["allowed", "bias", "minimum length", "all"])
def test_allowed_tokens_biases_and_minimum_lengths(same: Same, draw: Any, asked: str) -> None:
    logits = logits_of(draw)

    def number(kind: str) -> torch.Tensor:
        counts: torch.Tensor = draw.ints(0, 5, (12,))
        return counts if asked in (kind, "all") else torch.zeros_like(counts)

    def distinct() -> torch.Tensor:
        return torch.stack([torch.randperm(VOCAB, generator=draw.generator)[:6] for _ in range(12)]).to(
            torch.int32
        )

    same(
        logit_bias._bias_kernel, (ROWS,), logits, logits.stride(0), VOCAB, STATES, number("allowed"), distinct(), 6,
        number("bias"), distinct(), 6, draw.floats(12, 6), 6, draw.ints(0, 9, (ROWS,), torch.int64),
        draw.ints(0, 9, (12,)), number("minimum length"), distinct(), 6, BLOCK_SIZE=8, LOGITS_BLOCK_SIZE=32,
    )  # fmt: skip


@pytest.mark.parametrize("places", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_the_last_token_of_a_bad_word_is_masked(same: Same, draw: Any, places: list[int]) -> None:
    logits = logits_of(draw)
    tokens = draw.ints(0, 2, (12, 64))  # two different tokens, so that words do occur
    offsets = torch.tensor([[0, 1, 3, 6, 10]] * 12, dtype=torch.int32)
    totals = draw.ints(4, 9, (12,))
    same(
        bad_words._bad_words_kernel, (ROWS, 4), logits, logits.stride(0), STATES, draw.ints(0, 2, (12, 10)), 10,
        offsets, 5, draw.ints(0, 5, (12,)), tokens, 64, torch.full((12,), 4, dtype=torch.int32), totals,
        draw.ints(0, 2, (ROWS,)), torch.tensor(places, dtype=torch.int32),
    )  # fmt: skip


def test_tokens_outside_the_grammar_are_masked(same: Same, draw: Any) -> None:
    logits = logits_of(draw)
    same(
        structured_outputs._apply_grammar_bitmask_kernel, (2, 2), logits, logits.stride(0),
        torch.tensor([3, 1], dtype=torch.int32), draw.ints(-(2**31), 2**31, (2, 3)), 3, VOCAB, BLOCK_SIZE=64,
    )  # fmt: skip
