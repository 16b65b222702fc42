# SPDX-License-Identifier: Apache-2.0
"""Batch bookkeeping: token ids, positions, lengths, and what a step changes in the request states.

Shapes: R requests in the batch, N request states (`idx_mapping` i32[R] maps one to the other), T tokens.
`query_start_loc` i32[R+1] and `cu_num_logits` i32[R+1] are ascending offsets of tokens and logits per request.
"""

from __future__ import annotations

import numpy as np
import torch

from afd_triton_cpu.memory import flat
from afd_triton_cpu.registry import KERNELS

Grid = tuple[int, ...]
_MODULE = "vllm.v1.worker.gpu.input_batch"


@KERNELS.register(_MODULE, "_prepare_prefill_inputs_kernel")
def prepare_prefill_inputs(
    grid: Grid,
    input_ids_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Copy the scheduled prompt tokens of prefilling requests to `input_ids`, and note each one's next token."""
    states = flat(idx_mapping_ptr)[: grid[0]]
    computed = flat(num_computed_tokens_ptr)[states]
    prefill = flat(prefill_lens_ptr)[states]
    prefilling = np.flatnonzero(computed < prefill)
    if not prefilling.size:
        return
    starts = flat(query_start_loc_ptr)
    input_ids, tokens, upcoming = flat(input_ids_ptr), flat(all_token_ids_ptr), flat(next_prefill_tokens_ptr)
    for row in prefilling.tolist():
        begin, end = int(starts[row]), int(starts[row + 1])
        state = int(states[row])
        first = state * all_token_ids_stride + int(computed[row])
        input_ids[begin:end] = tokens[first : first + end - begin]
        if computed[row] + end - begin < prefill[row]:
            upcoming[state] = tokens[first + end - begin]


@KERNELS.register(_MODULE, "_prepare_pos_seq_lens_kernel")
def prepare_pos_seq_lens(
    grid: Grid,
    pos_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Write each token's position (i64[T]) and each request's length (i32[max_num_reqs], 0 behind the batch)."""
    count = grid[0] - 1
    computed = flat(num_computed_tokens_ptr)[flat(idx_mapping_ptr)[:count]]
    starts = flat(query_start_loc_ptr)[: count + 1]
    lengths = np.diff(starts)
    seq_lens = flat(seq_lens_ptr)
    seq_lens[:count] = computed + lengths
    seq_lens[count:max_num_reqs] = 0
    if count:
        first, last = int(starts[0]), int(starts[-1])
        flat(pos_ptr)[first:last] = np.arange(first, last) + np.repeat(computed - starts[:-1], lengths)


@KERNELS.register(_MODULE, "_combine_sampled_and_draft_tokens_kernel")
def combine_sampled_and_draft_tokens(
    grid: Grid,
    input_ids_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Write the token index of every logit, and the last sampled and draft tokens of decoding requests."""
    count = grid[0]
    states = flat(idx_mapping_ptr)[:count]
    offsets = flat(cu_num_logits_ptr)[: count + 1]
    logits = np.diff(offsets)
    ends = flat(query_start_loc_ptr)[1 : count + 1]
    starts = ends - logits
    first, last = int(offsets[0]), int(offsets[-1])
    flat(logits_indices_ptr)[first:last] = np.arange(first, last) + np.repeat(starts - offsets[:-1], logits)

    input_ids = flat(input_ids_ptr)
    seq_lens = flat(seq_lens_ptr)[:count]
    prefill = flat(prefill_len_ptr)[states]
    decoding = seq_lens > prefill
    if NUM_NEW_SAMPLED_TOKENS > 0:
        sampled = decoding & (seq_lens - logits >= prefill)
        input_ids[starts[sampled]] = flat(last_sampled_tokens_ptr)[states[sampled]]
    drafted = np.flatnonzero(decoding & (logits > NUM_NEW_SAMPLED_TOKENS))
    if drafted.size:
        drafts = flat(draft_tokens_ptr)
        for row in drafted.tolist():
            width = int(logits[row]) - NUM_NEW_SAMPLED_TOKENS
            source = int(states[row]) * draft_tokens_stride
            input_ids[int(ends[row]) - width : int(ends[row])] = drafts[source : source + width]


@KERNELS.register(_MODULE, "_get_num_sampled_and_rejected_kernel")
def get_num_sampled_and_rejected(
    grid: Grid,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
) -> None:
    """Requests that are still prefilling sample and reject nothing; others reject what they did not sample."""
    count = grid[0]
    prefill = flat(prefill_len_ptr)[flat(idx_mapping_ptr)[:count]]
    finished = flat(seq_lens_ptr)[:count] >= prefill
    sampled = flat(num_sampled_ptr)[:count]
    sampled *= finished
    flat(num_rejected_ptr)[:count] = (np.diff(flat(cu_num_logits_ptr)[: count + 1]) - sampled) * finished


@KERNELS.register(_MODULE, "_post_update_kernel")
def post_update(
    grid: Grid,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    output_bin_counts_ptr: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor | None,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
) -> None:
    """Append the sampled tokens to the request states and advance their counters; negative states are skipped."""
    states = flat(idx_mapping_ptr)[: grid[0]]
    batch = np.flatnonzero(states >= 0)
    states = states[batch].astype(np.int64)
    totals = flat(total_len_ptr)
    lengths = totals[states].astype(np.int64)
    counts = flat(num_sampled_ptr)[batch].astype(np.int64)
    source = batch * sampled_tokens_stride
    tokens, all_tokens = flat(sampled_tokens_ptr), flat(all_token_ids_ptr)

    sampling = counts > 0
    last = tokens[(source + counts - 1)[sampling]]
    flat(last_sampled_tokens_ptr)[states[sampling]] = last
    totals[states[sampling]] = (lengths + counts)[sampling]
    for step in range(int(counts.max(initial=0))):
        now = counts > step  # each state occurs once in a batch, so one step has no two writes to one place
        token = tokens[source[now] + step]
        all_tokens[states[now] * all_token_ids_stride + lengths[now] + step] = token
        if output_bin_counts_ptr is not None:
            flat(output_bin_counts_ptr)[states[now] * output_bin_counts_stride + token] += 1

    delta = -flat(num_rejected_ptr)[batch]
    if query_start_loc_ptr is not None:
        delta = delta + np.diff(flat(query_start_loc_ptr)[: grid[0] + 1])[batch]
    flat(num_computed_tokens_ptr)[states] += delta


@KERNELS.register(_MODULE, "_post_update_num_computed_tokens_kernel")
def post_update_num_computed_tokens(
    grid: Grid,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
) -> None:
    """Advance the counters of computed tokens by what was scheduled."""
    count = grid[0]
    lengths = np.diff(flat(query_start_loc_ptr)[: count + 1])
    flat(num_computed_tokens_ptr)[flat(idx_mapping_ptr)[:count]] += lengths


@KERNELS.register(_MODULE, "_expand_idx_mapping_kernel")
def expand_idx_mapping(
    grid: Grid,
    idx_mapping_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """For every logit: its request state, and its place among the logits of its request."""
    count = grid[0]
    offsets = flat(cu_num_logits_ptr)[: count + 1]
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    flat(expanded_idx_mapping_ptr)[first:last] = np.repeat(flat(idx_mapping_ptr)[:count], lengths)
    flat(expanded_local_pos_ptr)[first:last] = np.arange(first, last) - np.repeat(offsets[:-1], lengths)
