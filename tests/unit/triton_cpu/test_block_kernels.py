# SPDX-License-Identifier: Apache-2.0
"""Block tables, slot mappings and staged writes are bit-equal to the interpreted kernels.

Several KV cache groups have tables of different widths and reach the kernels as raw addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm.v1.worker.gpu.block_table as tables
import vllm.v1.worker.gpu.buffer_utils as buffers

Same = Callable[..., list[Any]]

# Triton's interpreter itself
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
Launch = Callable[..., None]

WIDTHS = (9, 13)  # blocks per row, one per group


def addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def both_ways(kernel: Any) -> list[Launch]:
    """The two launches, each a function of (grid, arguments, options)."""
    assert kernel.implementation is not None

    def interpreted(grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        kernel.interpret(*arguments, grid=grid, **options)

    def dispatched(grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        kernel[grid](*arguments, **options)

    return [interpreted, dispatched]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("padding", [0, 3])
def test_rows_are_gathered_and_padding_rows_zeroed(batch: Any, groups: int, padding: int) -> None:
    sources = [batch.ints(1, 99, (12, width)) for width in WIDTHS[:groups]]
    used = torch.stack([batch.ints(0, width + 1, (12,)) for width in WIDTHS[:groups]])
    strides = torch.tensor(WIDTHS[:groups])
    padded = batch.size + padding
    results = []
    for launch in both_ways(tables._gather_block_tables_kernel):
        targets = [torch.full((padded + 1, width), 77, dtype=torch.int32) for width in WIDTHS[:groups]]
        launch(
            (groups, padded), batch.states, addresses(sources), addresses(targets), strides, used, used.stride(0),
            batch.size, BLOCK_SIZE=8,
        )  # fmt: skip
        results.append(targets)
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(theirs, ours)
        assert (ours[batch.size : padded] == 0).all() and (ours[padded:] == 77).all()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (2, 2)])
def test_every_token_gets_its_slot(same: Same, batch: Any, groups: int, ranks: int, interleave: int) -> None:
    sources = [batch.ints(0, 99, (12, width)) for width in WIDTHS[:groups]]
    sizes = torch.tensor([8, 4][:groups], dtype=torch.int32)
    positions = torch.zeros(96, dtype=torch.int64)
    for request in range(batch.size):
        begin, end = batch.starts[request : request + 2].tolist()
        first = int(batch.computed[batch.states[request].long()])
        positions[begin:end] = torch.arange(first, first + end - begin)
    slots = torch.full((groups, 100), -7, dtype=torch.int64)[:, :96]
    for rank in range(ranks):
        _, _, _, _, _, _, _, slots, *_ = same(
            tables._compute_slot_mappings_kernel, (groups, batch.size + 1), 96, batch.states, batch.starts, positions,
            addresses(sources), torch.tensor(WIDTHS[:groups]), sizes, slots, slots.stride(0), rank,
            CP_SIZE=ranks, CP_INTERLEAVE=interleave, PAD_ID=-1, TRITON_BLOCK_SIZE=32,
        )  # fmt: skip
        assert (slots[:, batch.tokens :] == -1).all()


def test_an_empty_batch_has_only_padding_slots(same: Same) -> None:
    none = torch.zeros(0, dtype=torch.int32)
    source = torch.ones(2, 4, dtype=torch.int32)
    *_, slots, _, _ = same(
        tables._compute_slot_mappings_kernel, (1, 1), 8, none, torch.zeros(1, dtype=torch.int32), torch.zeros(8),
        addresses([source]), torch.tensor([4]), torch.tensor([16], dtype=torch.int32),
        torch.full((1, 8), 5, dtype=torch.int64), 8, 0, CP_SIZE=1, CP_INTERLEAVE=1, PAD_ID=-1, TRITON_BLOCK_SIZE=8,
    )  # fmt: skip
    assert (slots == -1).all()


def writes(batch: Any, count: int, width: int) -> tuple[torch.Tensor, ...]:
    """Rows, starts, ends in the contents: `count` pieces of 0 to 5 elements that fit in `width`."""
    lengths = batch.ints(0, 6, (count,))
    return batch.ints(0, 12, (count,)), batch.ints(0, width - 5, (count,)), lengths.cumsum(0).to(torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(12, 16), (12,)])
def test_staged_writes_reach_their_rows_in_order(
    same: Same, batch: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    row, start, end = writes(batch, 6, 16)
    if len(shape) == 1:  # one element per row
        start, end = torch.zeros_like(start), torch.arange(1, 7, dtype=torch.int32)
    target = torch.full(shape, 7, dtype=dtype)
    contents = batch.ints(10, 99, (32,), dtype)
    same(
        buffers._apply_write_kernel, (6,), target, target.stride(0), row, start, contents, end, None,
        BLOCK_SIZE=4, MULTI_GROUP=False,
    )  # fmt: skip


def test_staged_writes_reach_several_tables(batch: Any) -> None:
    row, start, end = writes(batch, 7, min(WIDTHS))
    group, contents = batch.ints(0, 2, (7,)), batch.ints(10, 99, (64,))
    results = []
    for launch in both_ways(buffers._apply_write_kernel):
        targets = [torch.full((12, width), 7, dtype=torch.int32) for width in WIDTHS]
        launch(
            (7,), addresses(targets), torch.tensor(WIDTHS), row, start, contents, end, group,
            BLOCK_SIZE=4, MULTI_GROUP=True,
        )  # fmt: skip
        results.append(targets)
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(theirs, ours)
