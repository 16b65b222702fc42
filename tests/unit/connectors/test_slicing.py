# SPDX-License-Identifier: Apache-2.0
"""Rows and their ids are cut together, completely and in order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from afd.connectors.slicing import slice_rows, split_rows
from afd.errors import MisuseError

rows_and_parts = st.tuples(st.integers(0, 300), st.integers(1, 17))


def numbered(rows: int, ids: bool) -> tuple[Tensor, Tensor | None]:
    """Rows that say which they are: row i holds i, and has id i."""
    numbers = torch.arange(rows)
    return numbers[:, None].expand(rows, 3).float(), numbers.to(torch.int32) if ids else None


@given(rows_and_parts)
def test_ranges_cover_every_row_once_and_differ_by_at_most_one(case: tuple[int, int]) -> None:
    rows, parts = case
    ranges = split_rows(rows, parts)
    assert len(ranges) == parts
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(rows))
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60)
@given(rows_and_parts, st.booleans())
def test_slices_put_together_are_the_whole(case: tuple[int, int], ids: bool) -> None:
    rows, parts = case
    hidden, token_ids = numbered(rows, ids)
    slices = [slice_rows(hidden, token_ids, start, stop, ids=ids) for start, stop in split_rows(rows, parts)]
    assert torch.equal(torch.cat([part for part, _ in slices]), hidden)
    if token_ids is not None:
        assert torch.equal(torch.cat([part for _, part in slices if part is not None]), token_ids)


@settings(max_examples=60)
@given(st.integers(0, 60), st.data(), st.integers(0, 9), st.booleans())
def test_a_row_keeps_its_id_through_every_cut(rows: int, data: st.DataObject, extra: int, ids: bool) -> None:
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    hidden, token_ids = slice_rows(*numbered(rows, ids), start, stop, ids=ids, padded=stop - start + extra)
    count = stop - start
    assert hidden.shape == (count + extra, 3)
    assert hidden[:count, 0].tolist() == list(range(start, stop))
    assert not hidden[count:].any()
    assert (token_ids is not None) is ids
    if token_ids is not None:
        assert token_ids.dtype is torch.int32
        assert token_ids.tolist() == list(range(start, stop)) + [0] * extra


def test_a_slice_without_padding_is_a_view() -> None:
    hidden, ids = torch.zeros(6, 3), torch.zeros(6, dtype=torch.int64)
    part, part_ids = slice_rows(hidden, ids, 2, 5, ids=True)
    part += 1
    assert part_ids is not None
    part_ids += 1
    assert hidden.sum() == 9
    assert ids.sum() == 3


@pytest.mark.parametrize(
    ("ids", "token_ids", "message"),
    [
        (True, None, "without token ids"),
        (False, torch.zeros(4, dtype=torch.int32), "with token ids"),
        (True, torch.zeros(3, dtype=torch.int32), r"4 rows .* \(3,\)"),
        (True, torch.zeros(4, 1, dtype=torch.int32), r"4 rows .* \(4, 1\)"),
    ],
)
def test_ids_that_do_not_fit_the_rows_or_the_mode_are_refused(
    ids: bool, token_ids: Tensor | None, message: str
) -> None:
    with pytest.raises(MisuseError, match=message):
        slice_rows(torch.zeros(4, 3), token_ids, 0, 4, ids=ids)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_a_range_outside_the_rows_is_refused(start: int, stop: int) -> None:
    with pytest.raises(MisuseError, match="not inside the 4 rows"):
        slice_rows(torch.zeros(4, 3), None, start, stop, ids=False)


def test_more_rows_than_the_padding_are_refused() -> None:
    with pytest.raises(MisuseError, match="4 rows do not fit into 3"):
        slice_rows(torch.zeros(4, 3), None, 0, 4, ids=False, padded=3)


@pytest.mark.parametrize(("rows", "parts"), [(-1, 2), (3, 0)])
def test_impossible_splits_are_refused(rows: int, parts: int) -> None:
    with pytest.raises(MisuseError):
        split_rows(rows, parts)
