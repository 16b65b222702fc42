# SPDX-License-Identifier: Apache-2.0
"""Log probabilities and ranks are bit-equal to the interpreted kernels and close to torch's log softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm.v1.worker.gpu.metrics.logits as metrics
import vllm.v1.worker.gpu.sample.logprob as logprob
import vllm.v1.worker.gpu.sample.prompt_logprob as prompt_logprob

Same = Callable[..., list[Any]]

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

ROWS, VOCAB = 4, 75


def logits_of(draw: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits: torch.Tensor = (3 * draw.floats(ROWS, VOCAB + 5)).to(dtype)[:, :VOCAB]
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_of_chosen_tokens(same: Same, draw: Any, dtype: torch.dtype) -> None:
    logits, chosen = logits_of(draw, dtype), draw.ints(0, VOCAB, (ROWS, 5), torch.int64)
    logits[1, ::2] = -torch.inf
    output, *_ = same(
        logprob._topk_log_softmax_kernel, (ROWS,), torch.zeros(ROWS, 5), logits, logits.stride(0), chosen, 5, VOCAB,
        BLOCK_SIZE=32, TOPK_BLOCK_SIZE=4,
    )  # fmt: skip
    expected = torch.log_softmax(logits.float(), -1).gather(1, chosen)
    assert torch.allclose(output, expected, atol=1e-6)


def test_ranks_count_ties_above(same: Same, draw: Any) -> None:
    logits = logits_of(draw).round()
    same(
        logprob._ranks_kernel, (ROWS,), torch.zeros(ROWS, dtype=torch.int64), logits, logits.stride(0),
        draw.ints(0, VOCAB, (ROWS,), torch.int64), VOCAB, BLOCK_SIZE=32,
    )  # fmt: skip


@pytest.mark.parametrize("topk", [0, 3])
def test_requests_may_name_the_tokens_to_report(same: Same, draw: Any, topk: int) -> None:
    own = draw.ints(0, VOCAB, (12, 8))
    top = draw.ints(0, VOCAB, (ROWS, topk)) if topk else own
    ids, valid = torch.zeros(ROWS, 5, dtype=torch.int64), torch.zeros(ROWS, 5, dtype=torch.bool)
    same(
        logprob._fill_logprob_token_ids_kernel, (ROWS,), ids, 5, valid, 5, draw.ints(0, VOCAB, (ROWS,), torch.int64),
        top, top.stride(0), torch.tensor([2, 0, 11, 7], dtype=torch.int32), draw.ints(0, 5, (12,)), own, 8,
        NUM_TOPK=topk, PADDED_COLS=4,
    )  # fmt: skip


def test_every_prompt_token_is_paired_with_the_next_one(same: Same, draw: Any) -> None:
    same(
        prompt_logprob._prompt_logprobs_token_ids_kernel, (draw.size,),
        torch.full((draw.tokens,), -7, dtype=torch.int64), draw.starts, draw.states, draw.computed,
        draw.all_tokens, draw.all_tokens.stride(0), BLOCK_SIZE=4,
    )  # fmt: skip


def test_nans_are_counted(draw: Any) -> None:
    """Without the interpreter, which has no isnan."""
    logits, counts = logits_of(draw), torch.full((ROWS,), -7, dtype=torch.int32)
    logits[2, 5:9] = torch.nan
    metrics._num_nans_kernel[(ROWS,)](logits, logits.stride(0), counts, VOCAB, BLOCK_SIZE=32)
    assert counts.tolist() == [0, 0, 4, 0]
