# SPDX-License-Identifier: Apache-2.0
"""Which rows of a step belong to which FFN rank, and all of them together for the layers of the group.

Counts come from the steps that *all* Attention ranks announce to every FFN rank, so each of them knows those of the
others, and none is inferred.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from afd.connectors.base import ConnectorSpec, Part, Work
from afd.connectors.slicing import split_rows
from afd.control.messages import Step
from afd.ffn.mesh import RowMesh
from afd.topology import Rank, Role


def rows_of(spec: ConnectorSpec, steps: Mapping[Rank, Step], attention: int, ubatch: int) -> tuple[int, int]:
    """How many rows Attention rank ``attention`` sends for ``ubatch``, and how many of them are tokens: padding comes
    last in what its tensor-parallel group announced."""
    tp = spec.attention_tp
    step = steps[Rank(Role.ATTENTION, attention - attention % tp)]
    if ubatch >= len(step.padded):
        return 0, 0
    start, stop = split_rows(step.padded[ubatch], tp)[attention % tp]
    return stop - start, min(max(step.real[ubatch] - start, 0), stop - start)


def served_rows(spec: ConnectorSpec, steps: Mapping[Rank, Step]) -> tuple[int, int]:
    """Rows of a step that FFN rank ``spec.rank`` serves in each layer, and how many of them are tokens."""
    counts = [
        rows_of(spec, steps, attention, ubatch)
        for attention in spec.topology.attention_of(spec.rank.index)
        for ubatch in range(spec.num_ubatches)
    ]
    return sum(rows for rows, _ in counts), sum(tokens for _, tokens in counts)


class GroupRows:
    """Gathers the rows of all FFN ranks for each work, and gives back the own part of what the layer returned.

    One FFN rank alone needs no ``mesh``: its rows are all rows, and nothing is copied.
    """

    def __init__(self, spec: ConnectorSpec, mesh: RowMesh | None = None) -> None:
        self._spec = spec
        self._mesh = mesh
        self._starts: list[tuple[int, ...]] = []
        self._parts: list[tuple[Part, ...]] = []
        # Memory that is never touched costs nothing, so it is as large as it can ever have to be.
        most = spec.topology.num_attention * spec.max_tokens if mesh else 0
        self._hidden = torch.empty(most, spec.hidden_size, dtype=spec.dtype)
        self._ids = torch.empty(most if spec.ids else 0, dtype=spec.ids_dtype)

    def begin(self, steps: Mapping[Rank, Step]) -> None:
        """A step begins: from here on it is known how many rows each rank brings, for each ubatch."""
        if self._mesh is None:
            return
        topology = self._spec.topology
        self._starts, self._parts = [], []
        for ubatch in range(self._spec.num_ubatches):
            sent = [rows_of(self._spec, steps, a, ubatch)[0] for a in range(topology.num_attention)]
            self._starts.append((0, *accumulate(topology.fold(sent))))
            ends = tuple(accumulate(sent))
            self._parts.append(tuple(Part(a, end - sent[a], end) for a, end in enumerate(ends)))

    def gather(self, work: Work) -> Work:
        """``work`` with the rows of all FFN ranks, in rank order; valid until the next one. When the group has none for
        this ubatch, nobody waits for anybody. Raises what :meth:`RowMesh.meet` raises."""
        if self._mesh is None:
            return work
        starts = self._starts[work.slot.ubatch]
        total = starts[-1]
        if total == 0:
            return work
        hidden, ids = self._hidden[:total], self._ids[:total]
        me = self._spec.rank.index
        hidden[starts[me] : starts[me + 1]] = work.hidden
        if work.token_ids is not None:
            ids[starts[me] : starts[me + 1]] = work.token_ids
        crossing = [hidden] if work.token_ids is None else [hidden, ids]
        parts = [[one[start:stop] for one in crossing] for start, stop in pairwise(starts)]
        others = {index: part for index, part in enumerate(parts) if index != me}
        self._mesh.meet(work.slot, work.step, parts[me], others)
        self._mesh.met_at = time.monotonic()
        token_ids = None if work.token_ids is None else ids
        return replace(work, hidden=hidden, token_ids=token_ids, parts=self._parts[work.slot.ubatch])

    def own(self, work: Work, out: Tensor) -> Tensor:
        """The rows of ``out`` [rows of all ranks, hidden] that reply to ``work``."""
        if self._mesh is None:
            return out
        self._mesh.met_at = None
        starts = self._starts[work.slot.ubatch]
        me = self._spec.rank.index
        return out[starts[me] : starts[me + 1]]
