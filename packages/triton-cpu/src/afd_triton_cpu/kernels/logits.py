# SPDX-License-Identifier: Apache-2.0
"""What requests do to their logits before sampling, in place: masks, penalties, biases.

Shapes: T logit rows of V columns, N request states; `expanded_idx_mapping` i32[T] maps a row to its state. Rows whose
request asks for nothing are not touched.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from afd_triton_cpu.memory import Array, flat, rows, store, widen
from afd_triton_cpu.registry import KERNELS

Grid = tuple[int, ...]
_SAMPLE = "vllm.v1.worker.gpu.sample"


@KERNELS.register("vllm.v1.sample.ops.topk_topp_triton", "_topk_topp_kernel")
def topk_topp(
    grid: Grid,
    LOGITS: torch.Tensor,
    LOGITS_STRIDE_0: int,
    BUFFER: torch.Tensor,
    PERCENTILE_TO_STD_TABLE: torch.Tensor,
    NORMAL_CDF_TO_SIGMA_TABLE: torch.Tensor,
    K: torch.Tensor,
    P: torch.Tensor,
    BATCH_SIZE: int,
    VOCAB_SIZE: int,
    MASK_VALUE: float,
    BLOCK_SIZE: int,
    BLOCK_SIZE_TRUNC: int,
    TOPK_ENABLED: bool,
    TOPP_ENABLED: bool,
) -> None:
    """Keep the k largest logits of a row, then the fewest of them whose probabilities add up to p; mask the others.

    Among equal logits the first columns are kept. The kernel searches for a pivot because sorting is slow on its
    hardware; the tokens that it keeps are the same. (Triton's interpreter cannot run it: it takes a loop variable for
    a tensor.)
    """
    logits = rows(LOGITS, BATCH_SIZE, VOCAB_SIZE, LOGITS_STRIDE_0)
    for row in range(BATCH_SIZE):
        k = min(int(K[row]), VOCAB_SIZE) if TOPK_ENABLED else VOCAB_SIZE
        p = float(P[row]) if TOPP_ENABLED else 1.0
        if k == VOCAB_SIZE and p >= 1.0:
            continue
        descending, columns = torch.sort(logits[row].float(), descending=True, stable=True)
        kept = k
        if p < 1.0:
            reached = torch.softmax(descending[:k], dim=0).double().cumsum(0)
            kept = min(int((reached < p).sum()) + 1, k)
        logits[row, columns[kept:]] = MASK_VALUE


@KERNELS.register(f"{_SAMPLE}.min_p", "_min_p_kernel")
def min_p(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    min_p_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Mask the tokens that are less likely than min_p times the likeliest one."""
    count = grid[0]
    least = flat(min_p_ptr)[flat(expanded_idx_mapping_ptr)[:count]].astype(np.float32)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    for row in np.flatnonzero(least).tolist():
        values = widen(logits[row])
        values[values < values.max() + np.log(least[row])] = -np.inf
        store(logits[row], values)


@KERNELS.register(f"{_SAMPLE}.penalties", "_penalties_kernel")
def penalties(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    repetition_penalty_ptr: torch.Tensor,
    frequency_penalty_ptr: torch.Tensor,
    presence_penalty_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Repetition (prompt and output tokens), frequency and presence (output tokens) penalties, in this order."""
    count = grid[0]
    states = flat(expanded_idx_mapping_ptr)[:count].astype(np.int64)
    repetition = flat(repetition_penalty_ptr)[states]
    frequency = flat(frequency_penalty_ptr)[states]
    presence = flat(presence_penalty_ptr)[states]
    prompt_bits, output_counts = flat(prompt_bin_mask_ptr), flat(output_bin_counts_ptr)
    places, token_ids = flat(expanded_local_pos_ptr), flat(token_ids_ptr)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    one = np.float32(1.0)

    for row in np.flatnonzero((repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)).tolist():
        first = int(states[row]) * output_bin_counts_stride
        counts = output_counts[first : first + vocab_size]
        place = int(places[row])
        if place:  # draft tokens before this one count as output
            drafts = token_ids[row - place + 1 : row + 1]
            counts = counts + np.bincount(drafts, minlength=vocab_size).astype(counts.dtype)
        used = counts > 0
        values = widen(logits[row])
        if repetition[row] != 1.0:
            start = int(states[row]) * prompt_bin_mask_stride
            prompt = _unpack(prompt_bits[start : start + prompt_bin_mask_stride], vocab_size)
            scale = np.where(prompt | used, repetition[row], one)
            values *= np.where(values > 0, one / scale, scale)
        values -= frequency[row] * counts.astype(np.float32)
        values -= presence[row] * used.astype(np.float32)
        store(logits[row], values)


@KERNELS.register(f"{_SAMPLE}.penalties", "_bincount_kernel")
def bincount(
    grid: Grid,
    expanded_idx_mapping_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """Set a bit for every token of a prompt, and count the output tokens that a resumed request starts with."""
    tokens, bits, counts = flat(all_token_ids_ptr), flat(prompt_bin_mask_ptr), flat(output_bin_counts_ptr)
    prompt_lens, prefill_lens = flat(prompt_len_ptr), flat(prefill_len_ptr)
    for state in flat(expanded_idx_mapping_ptr)[: grid[0]].tolist():
        first = state * all_token_ids_stride
        prompt = tokens[first : first + int(prompt_lens[state])]
        mask = bits[state * prompt_bin_mask_stride :]
        np.bitwise_or.at(mask, prompt // 32, np.left_shift(1, prompt % 32).astype(np.uint32).view(bits.dtype))
        output = tokens[first + prompt.size : first + int(prefill_lens[state])]
        np.add.at(counts[state * output_bin_counts_stride :], output, 1)


@KERNELS.register(f"{_SAMPLE}.logit_bias", "_bias_kernel")
def bias(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    vocab_size: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_stride: int,
    num_logit_bias_ptr: torch.Tensor,
    bias_token_ids_ptr: torch.Tensor,
    bias_token_ids_stride: int,
    bias_ptr: torch.Tensor,
    bias_stride: int,
    pos_ptr: torch.Tensor,
    min_lens_ptr: torch.Tensor,
    num_stop_token_ids_ptr: torch.Tensor,
    stop_token_ids_ptr: torch.Tensor,
    stop_token_ids_stride: int,
    BLOCK_SIZE: int,
    LOGITS_BLOCK_SIZE: int,
) -> None:
    """Allow only the named tokens, add biases, and mask stop tokens until a request has its minimum length."""
    count = grid[0]
    states = flat(expanded_idx_mapping_ptr)[:count].astype(np.int64)
    allowed = flat(num_allowed_token_ids_ptr)[states]
    biased = flat(num_logit_bias_ptr)[states]
    stops = flat(num_stop_token_ids_ptr)[states]
    short = flat(pos_ptr)[:count] + 1 < flat(min_lens_ptr)[states]
    stops = np.where(short, stops, 0)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)

    for row in np.flatnonzero((allowed > 0) | (biased > 0) | (stops > 0)).tolist():
        state = int(states[row])
        values = widen(logits[row])
        if allowed[row] > 0:
            only = _row(allowed_token_ids_ptr, state, allowed_token_ids_stride, allowed[row])
            saved = values[only]
            values[:] = -np.inf
            values[only] = saved
        if biased[row] > 0:
            names = _row(bias_token_ids_ptr, state, bias_token_ids_stride, biased[row])
            values[names] = values[names] + _row(bias_ptr, state, bias_stride, biased[row])
        if stops[row] > 0:
            values[_row(stop_token_ids_ptr, state, stop_token_ids_stride, stops[row])] = -np.inf
        store(logits[row], values)


@KERNELS.register(f"{_SAMPLE}.bad_words", "_bad_words_kernel")
def bad_words(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    bad_word_token_ids_ptr: torch.Tensor,
    bad_word_token_ids_stride: int,
    bad_word_offsets_ptr: torch.Tensor,
    bad_word_offsets_stride: int,
    num_bad_words_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
) -> None:
    """Mask the last token of a bad word where the output so far ends with the tokens before it."""
    tokens, input_ids = flat(all_token_ids_ptr), flat(input_ids_ptr)
    states, places = flat(expanded_idx_mapping_ptr), flat(expanded_local_pos_ptr)
    words, offsets = flat(bad_word_token_ids_ptr), flat(bad_word_offsets_ptr)
    numbers, prompt_lens, total_lens = flat(num_bad_words_ptr), flat(prompt_len_ptr), flat(total_len_ptr)
    for row in range(grid[0]):
        state, place = int(states[row]), int(places[row])
        number = min(int(numbers[state]), grid[1])
        if not number:
            continue
        first = state * all_token_ids_stride
        output = tokens[first + int(prompt_lens[state]) : first + int(total_lens[state])]
        drafts = input_ids[row - place : row]
        output = np.concatenate([output, drafts])
        mine = words[state * bad_word_token_ids_stride :]
        bounds = offsets[state * bad_word_offsets_stride :][: number + 1].tolist()
        for start, end in itertools.pairwise(bounds):
            prefix = mine[start : end - 1]
            if prefix.size <= output.size and np.array_equal(output[output.size - prefix.size :], prefix):
                place_in_row = logits_ptr.storage_offset() + row * logits_stride + int(mine[end - 1])
                logits_ptr.as_strided((1,), (1,), place_in_row).fill_(-torch.inf)


@KERNELS.register("vllm.v1.worker.gpu.structured_outputs", "_apply_grammar_bitmask_kernel")
def apply_grammar_bitmask(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    logits_indices_ptr: torch.Tensor,
    bitmask_ptr: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Mask the tokens whose bit is not set; bitmask i32[M, stride], one row per entry of logits_indices i32[M]."""
    bits = flat(bitmask_ptr)
    indices = flat(logits_indices_ptr)[: grid[0]]
    logits = rows(logits_ptr, int(indices.max()) + 1, vocab_size, logits_stride)
    for mask, row in enumerate(indices.tolist()):
        allowed = _unpack(bits[mask * bitmask_stride : (mask + 1) * bitmask_stride], vocab_size)
        logits[row].masked_fill_(torch.from_numpy(~allowed), -torch.inf)


def _unpack(words: Array, count: int) -> Array:
    """bool[count]: bits of 32-bit words, lowest bit of the first word first."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return bits[:count].astype(bool)


def _row(table: torch.Tensor, state: int, stride: int, count: int) -> Array:
    """The first `count` entries of a state's row."""
    first = state * stride
    return flat(table)[first : first + int(count)]
