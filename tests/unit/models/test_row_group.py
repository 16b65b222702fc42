# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel group sends every row once, whatever the number of rows, and gets every reply on every rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from afd.models.row_group import RowGroup


def groups(size: int, replies: list[Tensor]) -> list[RowGroup]:
    """The ranks of a group; the gather of each returns what all ranks have in ``replies``."""
    return [RowGroup(size, rank, lambda _: torch.cat(replies)) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 64, 65])
def test_every_row_is_sent_by_one_rank_and_every_reply_reaches_all_in_order(size: int, rows: int) -> None:
    hidden = torch.arange(float(rows))[:, None].expand(rows, 3).contiguous()
    replies: list[Tensor] = []
    ranks = groups(size, replies)
    sent = []
    for rank in ranks:
        start, stop = rank.own(rows)
        sent += list(range(start, stop))
        reply = rank.reply_for(hidden)
        assert reply.shape == (-(-rows // size), 3), "the gather needs the same number of rows of every rank"
        reply.fill_(torch.nan)  # what a rank does not fill must not get through
        reply[: stop - start] = hidden[start:stop] + 1
        replies.append(reply)
    assert sent == list(range(rows))
    for rank, reply in zip(ranks, replies, strict=True):
        assert torch.equal(rank.join(reply, rows), hidden + 1)


def test_a_rank_may_have_no_row_to_send() -> None:
    ranks = groups(4, [])
    assert [rank.own(2) for rank in ranks] == [(0, 1), (1, 2), (2, 2), (2, 2)]
