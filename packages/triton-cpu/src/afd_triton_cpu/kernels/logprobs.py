# SPDX-License-Identifier: Apache-2.0
"""Log probabilities, ranks, and the token ids they are reported for.

Shapes: T logit rows of V columns, W reported tokens per row.
"""

from __future__ import annotations

import numpy as np
import torch

from afd_triton_cpu.memory import flat, rows, widen
from afd_triton_cpu.registry import KERNELS

Grid = tuple[int, ...]
_MODULE = "vllm.v1.worker.gpu.sample.logprob"
_PROMPT = "vllm.v1.worker.gpu.sample.prompt_logprob"
_METRICS = "vllm.v1.worker.gpu.metrics.logits"


@KERNELS.register(_MODULE, "_topk_log_softmax_kernel")
def topk_log_softmax(
    grid: Grid,
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    topk_ids_ptr: torch.Tensor,
    topk: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    TOPK_BLOCK_SIZE: int,
) -> None:
    """float32[T, topk]: log softmax of each row at the given columns."""
    count = grid[0]
    chosen = flat(topk_ids_ptr)[: count * topk].reshape(count, topk)
    output = flat(output_ptr)[: count * topk].reshape(count, topk)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    blocks = -(-vocab_size // BLOCK_SIZE)
    padded = np.zeros(blocks * BLOCK_SIZE, np.float32)
    for row in range(count):  # a prompt's rows times the vocabulary would be large in one piece
        values = widen(logits[row])
        peak = values.max()
        np.exp(values - peak, out=padded[:vocab_size])
        # Added block by block, in the kernel's order: the result has the same bits.
        total = np.add.accumulate(padded.reshape(blocks, BLOCK_SIZE).sum(axis=1))[-1]
        output[row] = values[chosen[row]] - peak - np.log(total)


@KERNELS.register(_MODULE, "_ranks_kernel")
def ranks(
    grid: Grid,
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    token_ids_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """i64[T]: how many logits of the row are at least the given token's (1 for the largest)."""
    count = grid[0]
    tokens, output = flat(token_ids_ptr), flat(output_ptr)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    for row in range(count):
        values = widen(logits[row])
        output[row] = np.count_nonzero(values >= values[tokens[row]])


@KERNELS.register(_MODULE, "_fill_logprob_token_ids_kernel")
def fill_logprob_token_ids(
    grid: Grid,
    out_token_ids_ptr: torch.Tensor,
    out_token_ids_stride: int,
    out_valid_mask_ptr: torch.Tensor,
    out_valid_mask_stride: int,
    sampled_token_ids_ptr: torch.Tensor,
    topk_indices_ptr: torch.Tensor,
    topk_indices_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_stride: int,
    NUM_TOPK: int,
    PADDED_COLS: int,
) -> None:
    """Per row: the sampled token, then the request's own token ids when it named some, else the top ones."""
    ids, valid, sampled = flat(out_token_ids_ptr), flat(out_valid_mask_ptr), flat(sampled_token_ids_ptr)
    topk, states = flat(topk_indices_ptr), flat(expanded_idx_mapping_ptr)
    named, own = flat(num_per_req_token_ids_ptr), flat(per_req_token_ids_ptr)
    for row in range(grid[0]):
        state = int(states[row])
        source, start, width = topk, row * topk_indices_stride, NUM_TOPK
        if named[state] > 0:
            source, start, width = own, state * per_req_token_ids_stride, min(int(named[state]), PADDED_COLS)
        first, mask = row * out_token_ids_stride, row * out_valid_mask_stride
        ids[first] = sampled[row]
        ids[first + 1 : first + 1 + width] = source[start : start + width]
        valid[mask : mask + 1 + width] = True


@KERNELS.register(_PROMPT, "_prompt_logprobs_token_ids_kernel")
def prompt_logprobs_token_ids(
    grid: Grid,
    prompt_logprobs_token_ids_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """For every token of the batch, the id of the token that follows it."""
    output, starts = flat(prompt_logprobs_token_ids_ptr), flat(query_start_loc_ptr)
    states, computed, tokens = flat(idx_mapping_ptr), flat(num_computed_tokens_ptr), flat(all_token_ids_ptr)
    for row in range(grid[0]):
        begin, end, state = int(starts[row]), int(starts[row + 1]), int(states[row])
        first = state * all_token_ids_stride + int(computed[state]) + 1
        following = tokens[first : first + end - begin]
        output[begin : begin + following.size] = following  # the last token of the last state has none


@KERNELS.register(_METRICS, "_num_nans_kernel")
def num_nans(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    num_nans_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """i32[T]: how many logits of each row are not a number."""
    counts = flat(num_nans_ptr)
    for row, values in enumerate(rows(logits_ptr, grid[0], vocab_size, logits_stride)):
        counts[row] = np.count_nonzero(np.isnan(widen(values)))
