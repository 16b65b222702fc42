# SPDX-License-Identifier: Apache-2.0
"""Temperature and Gumbel-max sampling.

Shapes: T logit rows of V columns, N request states; `expanded_idx_mapping` i32[T] maps a row to its state.
"""

from __future__ import annotations

import numpy as np
import torch

from afd_triton_cpu.kernels import philox
from afd_triton_cpu.memory import Array, flat, rows, store, widen
from afd_triton_cpu.registry import KERNELS

Grid = tuple[int, ...]
_MODULE = "vllm.v1.worker.gpu.sample.gumbel"


@KERNELS.register(_MODULE, "_temperature_kernel")
def temperature(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Divide each row of logits by its temperature, in place; 0 (greedy) and 1 leave it as it is."""
    count = grid[0]
    values = flat(temperature_ptr)[flat(expanded_idx_mapping_ptr)[:count]].astype(np.float32)
    hot = np.flatnonzero((values != 0.0) & (values != 1.0))
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    for row in hot.tolist():
        store(logits[row], widen(logits[row]) / values[row])


@KERNELS.register(_MODULE, "_gumbel_sample_kernel")
def gumbel_sample(
    grid: Grid,
    local_argmax_ptr: torch.Tensor,
    local_argmax_stride: int,
    local_max_ptr: torch.Tensor,
    local_max_stride: int,
    processed_logits_ptr: torch.Tensor | None,
    processed_logits_stride: int,
    processed_logits_col_ptr: torch.Tensor | None,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    APPLY_TEMPERATURE: bool,
    USE_FP64: bool,
    PER_TOKEN_COL: bool,
) -> None:
    """Maximum and its column (first one wins) of every block of BLOCK_SIZE logits, with Gumbel noise on hot rows.

    A row is hot when its state is valid (not negative) and its temperature is not 0; its noise depends only on the
    request's seed, the token's position and the column, so a request samples the same tokens in any batch.
    """
    count, blocks = grid
    states = flat(expanded_idx_mapping_ptr)[:count].astype(np.int64)
    valid = states >= 0
    temps = np.where(valid, flat(temp_ptr)[np.where(valid, states, 0)], 0.0).astype(np.float32)
    logits = rows(logits_ptr, count, vocab_size, logits_stride)
    padded = np.full((count, blocks * BLOCK_SIZE), -np.inf, np.float64 if USE_FP64 else np.float32)
    values = padded[:, :vocab_size]
    single = widen(logits)
    values[:] = single

    hot = np.flatnonzero(temps != 0.0)
    if APPLY_TEMPERATURE and hot.size:
        values[hot] = single[hot] / temps[hot, None]  # divided in float32, widened afterwards
    if processed_logits_ptr is not None:
        column = processed_logits_col_ptr
        _store_processed(processed_logits_ptr, processed_logits_stride, column, PER_TOKEN_COL, values, states)
    if hot.size:
        _add_noise(values, hot, philox.randint(flat(seeds_ptr)[states[hot]], flat(pos_ptr)[hot]))

    by_block = padded.reshape(count, blocks, BLOCK_SIZE)
    best = by_block.argmax(axis=2)
    columns = best + np.arange(blocks) * BLOCK_SIZE
    rows(local_argmax_ptr, count, blocks, local_argmax_stride).numpy()[:] = columns
    maxima = np.take_along_axis(by_block, best[:, :, None], axis=2)[:, :, 0]
    rows(local_max_ptr, count, blocks, local_max_stride).numpy()[:] = maxima


def _add_noise(values: Array, hot: Array, keys: Array) -> None:
    """Add Gumbel noise to the hot rows in place: -log(-log(1 - u)) in float32, -log(-log(u)) in float64."""
    width = min(values.shape[1], philox.TILE)
    height = philox.TILE // width
    for first in range(0, hot.size, height):
        some, their_keys = hot[first : first + height], keys[first : first + height]
        for start in range(0, values.shape[1], width):
            part = values[some, start : start + width]
            if values.dtype == np.float64:
                part -= np.log(-np.log(philox.uniform64(their_keys, start, part.shape[1])))
            else:
                # log1p keeps the tail at u -> 0, which decides the winner, finely resolved.
                part -= np.log(-np.log1p(-philox.uniform32(their_keys, start, part.shape[1])))
            values[some, start : start + width] = part


def _store_processed(
    target: torch.Tensor,
    stride: int,
    column: torch.Tensor | None,
    per_token: bool,
    values: Array,
    states: Array,
) -> None:
    """Store each valid row's logits (after temperature) at [state, column] of `target`."""
    width = values.shape[1]
    for row, state in enumerate(states.tolist()):
        if state < 0:
            continue
        place = 0 if column is None else int(flat(column)[row if per_token else 0])
        start = target.storage_offset() + state * stride + place * width
        store(target.as_strided((width,), (1,), start), values[row])
