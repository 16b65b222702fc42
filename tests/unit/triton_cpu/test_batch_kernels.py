# SPDX-License-Identifier: Apache-2.0
"""Batch bookkeeping is bit-equal to the interpreted kernels, for pure decode and mixed batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm.v1.worker.gpu.input_batch as kernels

Same = Callable[..., list[Any]]

# Triton's interpreter itself
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def test_prefill_tokens_and_the_next_token_are_copied(same: Same, batch: Any) -> None:
    batch.computed[batch.states[0].long()] = 0  # at least one request prefills
    batch.prefill[batch.states[0].long()] = 40
    ids, upcoming = torch.full((96,), -7, dtype=torch.int32), torch.full((12,), -7, dtype=torch.int32)
    ids, upcoming, *_ = same(
        kernels._prepare_prefill_inputs_kernel, (batch.size,), ids, upcoming, batch.states, batch.starts,
        batch.all_tokens, batch.all_tokens.stride(0), batch.prefill, batch.computed, BLOCK_SIZE=16,
    )  # fmt: skip
    assert (upcoming != -7).any()


def test_no_prefill_leaves_the_input_ids_alone(same: Same, batch: Any) -> None:
    batch.prefill[:] = 0
    ids = torch.full((96,), -7, dtype=torch.int32)
    ids, *_ = same(
        kernels._prepare_prefill_inputs_kernel, (batch.size,), ids, torch.zeros(12, dtype=torch.int32), batch.states,
        batch.starts, batch.all_tokens, batch.all_tokens.stride(0), batch.prefill, batch.computed, BLOCK_SIZE=16,
    )  # fmt: skip
    assert (ids == -7).all()


def test_positions_and_lengths_with_zeroed_padding(same: Same, batch: Any) -> None:
    positions, lengths = torch.full((96,), -7, dtype=torch.int64), torch.full((12,), -7, dtype=torch.int32)
    _, lengths, *_ = same(
        kernels._prepare_pos_seq_lens_kernel, (batch.size + 1,), positions, lengths, batch.states, batch.starts,
        batch.computed, 12, BLOCK_SIZE=16,
    )  # fmt: skip
    assert (lengths[batch.size :] == 0).all() and torch.equal(lengths[: batch.size], batch.seq_lens)


def test_an_empty_batch_only_zeroes_the_lengths(same: Same) -> None:
    _, lengths, *_ = same(
        kernels._prepare_pos_seq_lens_kernel, (1,), torch.full((8,), -7), torch.full((5,), 3, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), 5,
        BLOCK_SIZE=4,
    )  # fmt: skip
    assert (lengths == 0).all()


@pytest.mark.parametrize(("drafts", "new"), [(0, 1), (3, 1), (3, 0)])
def test_sampled_and_draft_tokens_are_placed(same: Same, batch: Any, drafts: int, new: int) -> None:
    logits = torch.minimum(batch.ints(1, drafts + new + 1, (batch.size,)), batch.lengths)
    offsets = torch.zeros(batch.size + 1, dtype=torch.int32)
    offsets[1:] = logits.cumsum(0)
    same(
        kernels._combine_sampled_and_draft_tokens_kernel, (batch.size,), batch.ints(0, 75, (96,)), batch.states,
        batch.ints(0, 75, (12, 1), torch.int64), batch.starts, batch.seq_lens, batch.prefill,
        batch.ints(0, 75, (12, drafts), torch.int64), drafts, offsets,
        torch.full((int(offsets[-1]),), -7, dtype=torch.int64), NUM_NEW_SAMPLED_TOKENS=new, BLOCK_SIZE=4,
    )  # fmt: skip


def test_unfinished_prefills_sample_and_reject_nothing(same: Same, batch: Any) -> None:
    offsets = torch.arange(batch.size + 1, dtype=torch.int32) * 2
    sampled, rejected, *_ = same(
        kernels._get_num_sampled_and_rejected_kernel, (batch.size,), batch.ints(1, 3, (batch.size,)),
        torch.full((batch.size,), -7, dtype=torch.int32), batch.seq_lens, offsets, batch.states, batch.prefill,
    )  # fmt: skip
    unfinished = batch.seq_lens < batch.prefill[batch.states.long()]
    assert (sampled[unfinished] == 0).all() and (rejected[unfinished] == 0).all()


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("scheduled", [True, False])
def test_sampled_tokens_reach_the_request_states(
    same: Same, batch: Any, counted: bool, scheduled: bool
) -> None:
    batch.states[0] = -1  # a row without a request
    width = 3
    counts = batch.ints(0, 2, (12, 75)) if counted else None
    same(
        kernels._post_update_kernel, (batch.size,), batch.states, batch.computed,
        torch.zeros(12, 1, dtype=torch.int64), counts, 75, batch.ints(0, 4, (batch.size, width), torch.int64), width,
        batch.ints(0, width + 1, (batch.size,)), batch.ints(0, 2, (batch.size,)), batch.starts if scheduled else None,
        batch.all_tokens, batch.all_tokens.stride(0), batch.ints(20, 50, (12,)), num_warps=1,
    )  # fmt: skip


def test_scheduled_tokens_count_as_computed(same: Same, batch: Any) -> None:
    same(
        kernels._post_update_num_computed_tokens_kernel,
        (batch.size,),
        batch.states,
        batch.computed,
        batch.starts,
    )


def test_states_are_expanded_to_logits(same: Same, batch: Any) -> None:
    offsets = torch.zeros(batch.size + 1, dtype=torch.int32)
    offsets[1:] = batch.ints(0, 5, (batch.size,)).cumsum(0)
    total = int(offsets[-1])
    same(
        kernels._expand_idx_mapping_kernel, (batch.size,), batch.states, torch.full((total,), -7, dtype=torch.int32),
        torch.full((total,), -7, dtype=torch.int32), offsets, BLOCK_SIZE=4,
    )  # fmt: skip
