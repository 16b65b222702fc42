# SPDX-License-Identifier: Apache-2.0
"""Block tables and slot mappings of the KV cache.

G KV cache groups. A block table is i32[N, stride] and reaches a kernel as a raw address in a u64[G] tensor: only the
address and the row stride are known, so the arrays here reach just as far as the states in the batch need.
"""

from __future__ import annotations

import numpy as np
import torch

from afd_triton_cpu.memory import Array, at, flat
from afd_triton_cpu.registry import KERNELS

Grid = tuple[int, ...]
_TABLES = "vllm.v1.worker.gpu.block_table"
_BUFFERS = "vllm.v1.worker.gpu.buffer_utils"


@KERNELS.register(_TABLES, "_gather_block_tables_kernel")
def gather_block_tables(
    grid: Grid,
    batch_idx_to_req_idx: torch.Tensor,
    src_block_table_ptrs: torch.Tensor,
    dst_block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    num_blocks_ptr: torch.Tensor,
    num_blocks_stride: int,
    num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Copy each request's used blocks to its batch row and zero the padding rows; a row's unused tail stays stale."""
    groups, padded = grid
    count = min(num_reqs, padded)
    states = flat(batch_idx_to_req_idx)[:count]
    num_blocks = flat(num_blocks_ptr)
    for group in range(groups):
        stride = int(block_table_strides[group])
        target = at(int(dst_block_table_ptrs[group]), (padded, stride))
        target[count:] = 0
        if not count:
            continue
        used = num_blocks[group * num_blocks_stride + states]
        width = int(used.max())
        source = at(int(src_block_table_ptrs[group]), (int(states.max()) + 1, stride))
        mask = np.arange(width) < used[:, None]
        np.copyto(target[:count, :width], source[states, :width], where=mask)


@KERNELS.register(_TABLES, "_compute_slot_mappings_kernel")
def compute_slot_mappings(
    grid: Grid,
    max_num_tokens: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    pos: torch.Tensor,
    block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    block_sizes: torch.Tensor,
    slot_mappings_ptr: torch.Tensor,
    slot_mappings_stride: int,
    cp_rank: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    PAD_ID: int,
    TRITON_BLOCK_SIZE: int,
) -> None:
    """Write the KV cache slot of every token, i64[G, max_num_tokens], and PAD_ID behind the batch's tokens."""
    groups, count = grid[0], grid[1] - 1
    states = flat(idx_mapping)[:count].astype(np.int64)
    starts = flat(query_start_loc)[: count + 1]
    first, last = int(starts[0]), int(starts[-1])
    positions = flat(pos)[first:last]
    state = np.repeat(states, np.diff(starts))
    slot_mappings = flat(slot_mappings_ptr)
    for group in range(groups):
        slots = slot_mappings[group * slot_mappings_stride :][:max_num_tokens]
        slots[last:] = PAD_ID
        if first == last:
            continue
        stride, size = int(block_table_strides[group]), int(block_sizes[group])
        table = at(int(block_table_ptrs[group]), ((int(states.max()) + 1) * stride,))
        block, offset = np.divmod(positions, size * CP_SIZE)
        number = table[state * stride + block].astype(np.int64)
        slots[first:last] = number * size + _local(offset, CP_SIZE, CP_INTERLEAVE)
        if CP_SIZE > 1:
            elsewhere = offset // CP_INTERLEAVE % CP_SIZE != cp_rank
            slots[first:last][elsewhere] = PAD_ID


def _local(offset: Array, size: int, interleave: int) -> Array:
    """Offset inside this context-parallel rank's part of a block (i64, tokens)."""
    if size == 1:
        return offset
    local: Array = offset // (interleave * size) * interleave + offset % interleave
    return local


@KERNELS.register(_BUFFERS, "_apply_write_kernel")
def apply_write(
    grid: Grid,
    output_ptr: torch.Tensor,
    output_stride: int | torch.Tensor,
    write_indices_ptr: torch.Tensor,
    write_starts_ptr: torch.Tensor,
    write_contents_ptr: torch.Tensor,
    write_cu_lens_ptr: torch.Tensor,
    write_group_ids_ptr: torch.Tensor | None,
    BLOCK_SIZE: int,
    MULTI_GROUP: bool,
) -> None:
    """Write `grid[0]` staged pieces, in order, to rows of one tensor or (MULTI_GROUP) of several i32 tables."""
    indices, starts = flat(write_indices_ptr).tolist(), flat(write_starts_ptr).tolist()
    ends = flat(write_cu_lens_ptr).tolist()
    contents = flat(write_contents_ptr)
    begin = 0
    for write in range(grid[0]):
        content = contents[begin : ends[write]]
        begin = ends[write]
        if isinstance(output_stride, torch.Tensor):
            assert MULTI_GROUP and write_group_ids_ptr is not None
            group = int(write_group_ids_ptr[write])
            first = indices[write] * int(output_stride[group]) + starts[write]
            at(int(output_ptr[group]) + first * contents.itemsize, content.shape, contents.dtype)[:] = content
        else:
            first = indices[write] * output_stride + starts[write]
            flat(output_ptr)[first : first + content.size] = content
