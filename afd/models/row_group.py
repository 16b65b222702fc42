# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel group on Attention: all its ranks hold the same rows, and each sends its own range of them.

So every token crosses to FFN once and is computed once, however many ranks hold it; the replies are gathered inside
the group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from afd.connectors.slicing import split_rows


class RowGroup:
    """One rank's view of its group of ``size`` ranks. ``gather`` [n, hidden] -> [size * n, hidden] is the group's
    all-gather along the first dimension, in rank order; every rank calls it with the same n."""

    def __init__(self, size: int, rank: int, gather: Callable[[Tensor], Tensor]) -> None:
        self._size, self._rank, self._gather = size, rank, gather

    def own(self, rows: int) -> tuple[int, int]:
        """The range ``(start, stop)`` of ``rows`` rows that this rank sends; it may be empty."""
        return split_rows(rows, self._size)[self._rank]

    def reply_for(self, hidden: Tensor) -> Tensor:
        """A tensor for this rank's part of the replies to ``hidden`` [rows, hidden]: as many rows as the longest range
        has, of which this rank's may leave the last one unused."""
        return torch.empty_like(hidden[: -(-hidden.shape[0] // self._size)])

    def join(self, reply: Tensor, rows: int) -> Tensor:
        """The replies to all ``rows`` rows [rows, hidden], of what each rank has in its :meth:`reply_for`."""
        longest = reply.shape[0]
        gathered = self._gather(reply)
        if rows == longest * self._size:
            return gathered
        blocks = zip(torch.split(gathered, longest), split_rows(rows, self._size), strict=True)
        return torch.cat([block[: stop - start] for block, (start, stop) in blocks])
