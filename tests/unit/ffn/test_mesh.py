# SPDX-License-Identifier: Apache-2.0
"""FFN ranks that hand each other their rows over real sockets; each is a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from afd.connectors.base import Slot
from afd.control.abort import Abort, Cause
from afd.errors import MisuseError, PeerLostError
from afd.ffn.mesh import RowMesh
from afd.topology import Rank, Role

EPOCH = "0123456789abcdef"
HIDDEN = 512
FIRST = Slot(0, 0)
_T = TypeVar("_T")


class Ranks:
    """The meshes of all ranks, connected."""

    def __init__(self, directory: Path, size: int, step_s: float) -> None:
        self.aborts = [Abort() for _ in range(size)]
        self.meshes = [
            RowMesh(Rank(Role.FFN, i), size, EPOCH, directory, abort=self.aborts[i], step_s=step_s)
            for i in range(size)
        ]
        self.pool = ThreadPoolExecutor(size)
        self.each(lambda index: self.meshes[index].connect(5.0))

    def each(self, run: Callable[[int], _T]) -> list[_T]:
        return [future.result(20) for future in [self.pool.submit(run, i) for i in range(len(self.meshes))]]

    def close(self) -> None:
        for mesh in self.meshes:
            mesh.close()
        self.pool.shutdown()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(size: int, step_s: float = 10.0) -> Ranks:
        made.append(Ranks(tmp_path, size, step_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows_of(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(count * HIDDEN) % 251 + rank).reshape(count, HIDDEN).to(dtype)


def meet(ranks: Ranks, index: int, counts: list[int], slot: Slot = FIRST, step: int = 1) -> list[Tensor]:
    """What rank ``index`` has of all ranks after a meeting."""
    here = [
        rows_of(rank, count) if rank == index else torch.zeros(count, HIDDEN)
        for rank, count in enumerate(counts)
    ]
    others = {rank: [rows] for rank, rows in enumerate(here) if rank != index}
    ranks.meshes[index].meet(slot, step, [here[index]], others)
    return here


@pytest.mark.parametrize(
    "counts", [[3, 5], [0, 4], [4, 0], [1, 0, 7, 2], [2000, 1], [1500, 1500, 1500]], ids=str
)
def test_every_rank_has_the_rows_of_all_whatever_their_number(
    counts: list[int], ranks: Callable[..., Ranks]
) -> None:
    group = ranks(len(counts))
    for step in range(3):
        for found in group.each(lambda index, step=step: meet(group, index, counts, step=step)):
            for rank, rows in enumerate(found):
                assert torch.equal(rows, rows_of(rank, counts[rank]))


def test_ids_cross_with_their_rows_in_any_type(ranks: Callable[..., Ranks]) -> None:
    group = ranks(2)

    def run(index: int) -> tuple[Tensor, Tensor]:
        hidden, ids = torch.zeros(4, HIDDEN, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
        own = [rows_of(index, 3, torch.bfloat16), torch.arange(3, dtype=torch.int32) + index]
        group.meshes[index].meet(Slot(0, 0), 1, own, {1 - index: [hidden[:3], ids[:3]]})
        return hidden, ids

    for index, (hidden, ids) in enumerate(group.each(run)):
        assert torch.equal(hidden[:3], rows_of(1 - index, 3, torch.bfloat16)) and not hidden[3].any()
        assert ids.tolist() == [1 - index, 2 - index, 3 - index, 0]


def test_a_rank_that_does_not_come_is_named_at_the_deadline(ranks: Callable[..., Ranks]) -> None:
    group = ranks(3, step_s=0.3)
    begun = time.monotonic()
    with pytest.raises(
        PeerLostError, match=r"^F2 did not bring its rows of layer 4, ubatch 0 of step 9 to F"
    ) as lost:
        for future in [group.pool.submit(meet, group, index, [1, 1, 1], Slot(4, 0), 9) for index in (0, 1)]:
            future.result(20)
    assert lost.value.rank == "F2"
    assert 0.3 <= time.monotonic() - begun < 2


def test_a_rank_that_is_gone_is_named_at_once(ranks: Callable[..., Ranks]) -> None:
    group = ranks(3)
    waiting = group.pool.submit(meet, group, 0, [1, 1, 1])
    time.sleep(0.1)
    group.meshes[2].close()
    with pytest.raises(PeerLostError, match=r"^F2 closed its connection to F0") as lost:
        waiting.result(2)
    assert lost.value.rank == "F2"
    with pytest.raises(PeerLostError, match=r"^F2 closed its connection to F1"):
        meet(group, 1, [2000, 2000, 2000])


def test_an_abort_ends_a_meeting_with_its_cause(ranks: Callable[..., Ranks]) -> None:
    group = ranks(2)
    waiting = group.pool.submit(meet, group, 0, [1, 1])
    time.sleep(0.1)
    group.aborts[0].trigger(Cause("PeerLostError", "it was killed", rank="A1"))
    with pytest.raises(PeerLostError, match=r"^A1: it was killed$"):
        waiting.result(2)


def test_either_all_ranks_go_on_after_an_abort_or_none_does(ranks: Callable[..., Ranks]) -> None:
    """One that went on alone would wait in a collective for ever."""
    group = ranks(3)
    first = group.pool.submit(meet, group, 0, [1, 1, 1])
    time.sleep(0.1)
    for abort in group.aborts[:2]:
        abort.trigger(Cause("PeerLostError", "it was killed", rank="A1"))
    with pytest.raises(PeerLostError, match="A1"):  # not begun: it sends nothing, and nobody goes on
        meet(group, 1, [1, 1, 1])
    last = group.pool.submit(meet, group, 2, [1, 1, 1])
    time.sleep(0.1)
    group.aborts[2].trigger(Cause("PeerLostError", "it was killed", rank="A1"))
    for waiting in (first, last):
        with pytest.raises(PeerLostError, match="A1"):
            waiting.result(2)


def test_a_meeting_that_others_are_through_with_goes_on_after_an_abort(ranks: Callable[..., Ranks]) -> None:
    group = ranks(2)
    first = group.pool.submit(meet, group, 0, [1, 1])
    time.sleep(0.1)
    group.aborts[0].trigger(Cause("PeerLostError", "it was killed", rank="A1"))
    assert torch.equal(meet(group, 1, [1, 1])[0], rows_of(0, 1))  # F1 hears of it later
    assert torch.equal(first.result(2)[1], rows_of(1, 1))


@pytest.mark.parametrize(
    ("slot", "step", "rows", "says"),
    [
        (Slot(1, 0), 1, 1, "F1 brings step 1, layer 1, ubatch 0, rows 1; F0 expects step 1, layer 0,"),
        (Slot(0, 1), 1, 1, "ubatch 1, .* ubatch 0"),
        (Slot(0, 0), 2, 1, "step 2, .* step 1"),
        (Slot(0, 0), 1, 2, "rows 2; .* rows 1"),
        (Slot(0, 0), 1, 0, "rows 0; .* rows 1"),
    ],
)
def test_a_rank_that_is_somewhere_else_is_refused(
    ranks: Callable[..., Ranks], slot: Slot, step: int, rows: int, says: str
) -> None:
    group = ranks(2)
    other = group.pool.submit(meet, group, 1, [1, rows], slot, step)
    with pytest.raises(MisuseError, match=says):
        meet(group, 0, [1, 1])
    if rows == 1:  # F1 knows how many rows F0 should bring, and they are
        with pytest.raises(MisuseError, match="F0 brings"):
            other.result(5)


def test_a_rank_that_never_connects_is_named(tmp_path: Path) -> None:
    abort = Abort()
    first = RowMesh(Rank.parse("F0"), 2, EPOCH, tmp_path, abort=abort, step_s=1.0)
    try:
        with pytest.raises(PeerLostError, match=r"^F1 did not connect to F0 within 0.2 s"):
            first.connect(0.2)
    finally:
        first.close()
    with pytest.raises(PeerLostError, match=r"^F0 does not listen for F1"):
        second = RowMesh(Rank.parse("F1"), 2, EPOCH, tmp_path, abort=abort, step_s=1.0)
        try:
            second.connect(0.2)
        finally:
            second.close()


def test_sockets_of_another_epoch_are_not_taken_for_ours_and_no_file_stays(tmp_path: Path) -> None:
    abort = Abort()
    meshes = [
        RowMesh(Rank(Role.FFN, index), 2, epoch, tmp_path, abort=abort, step_s=1.0)
        for epoch in ("e" * 16, "f" * 16)
        for index in range(2)
    ]
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(mesh.connect, 5.0) for mesh in meshes]:
            future.result(10)
    assert list(tmp_path.iterdir()) == []
    for mesh in meshes:
        mesh.close()
        mesh.close()


def test_only_errors_of_a_sum_are_blamed_on_another_rank(ranks: Callable[..., Ranks]) -> None:
    group = ranks(2)
    assert group.meshes[0].blame(RuntimeError("out of something")) is None
    gloo = RuntimeError("[/pytorch/third_party/gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    nobody = group.meshes[0].blame(gloo)
    assert nobody is not None and nobody.rank == "" and "Connection closed" in str(nobody)
    group.meshes[1].close()
    loss = group.meshes[0].blame(gloo)
    assert loss is not None and loss.rank == "F1" and str(loss).startswith("F1 left a sum")
