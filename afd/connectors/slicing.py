# SPDX-License-Identifier: Apache-2.0
"""The one place where rows are cut: hidden states and their token ids together, so that they cannot drift apart."""

from __future__ import annotations

import torch
from torch import Tensor

from afd.errors import MisuseError


def split_rows(rows: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Cut ``rows`` rows into ``parts`` consecutive ranges ``(start, stop)`` whose sizes differ by at most one.

    The first ``rows % parts`` ranges are the longer ones; with fewer rows than parts the last ranges are empty. With
    tensor parallelism on Attention each rank of a group sends one range, so every token crosses once. Both roles
    compute the ranges from the announced count. Raises :class:`MisuseError` for ``rows < 0`` or ``parts < 1``.
    """
    if rows < 0 or parts < 1:
        raise MisuseError(f"cannot cut {rows} rows into {parts} parts")
    size, longer = divmod(rows, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return tuple((starts[part], starts[part + 1]) for part in range(parts))


def check_ids(rows: int, token_ids: Tensor | None, ids: bool) -> None:
    """Raise :class:`MisuseError` unless ``token_ids`` fits the ids mode and has one id for each of ``rows`` rows."""
    if ids is not (token_ids is not None):
        if ids:
            raise MisuseError(f"ids mode is on, but {rows} rows came without token ids")
        raise MisuseError(f"ids mode is off, but {rows} rows came with token ids")
    if token_ids is not None and token_ids.shape != (rows,):
        raise MisuseError(f"{rows} rows of hidden states, but token ids of shape {tuple(token_ids.shape)}")


def slice_rows(
    hidden: Tensor, token_ids: Tensor | None, start: int, stop: int, *, ids: bool, padded: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Rows ``start`` to ``stop`` of ``hidden`` [rows, hidden] and the same of ``token_ids`` [rows].

    ``ids`` is the run's ids mode: on, every row needs its id; off, ids must not be given. Without padding the
    results are views. With ``padded`` greater than ``stop - start`` they are new tensors of ``padded`` rows whose tail
    is zero (id 0), which is what a transport that needs equal counts on all ranks sends.

    Raises :class:`MisuseError` when ids are missing, unexpected or misaligned with the rows, or a range is outside.
    """
    rows = hidden.shape[0]
    check_ids(rows, token_ids, ids)
    if not 0 <= start <= stop <= rows:
        raise MisuseError(f"rows {start} to {stop} are not inside the {rows} rows that were given")
    count = stop - start
    if padded is not None and padded < count:
        raise MisuseError(f"{count} rows do not fit into {padded} padded rows")
    if count == rows and (padded is None or padded == count):
        return hidden, token_ids
    part = hidden[start:stop]
    part_ids = None if token_ids is None else token_ids[start:stop]
    if padded is None or padded == count:
        return part, part_ids
    grown = hidden.new_zeros((padded, *hidden.shape[1:]))
    grown[:count] = part
    grown_ids = None
    if part_ids is not None:
        grown_ids = torch.zeros(padded, dtype=part_ids.dtype, device=part_ids.device)
        grown_ids[:count] = part_ids
    return grown, grown_ids
