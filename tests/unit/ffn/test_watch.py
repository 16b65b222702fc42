# SPDX-License-Identifier: Apache-2.0
"""A layer that does not end on one rank is told of, with the rank whose process is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from afd.control.abort import Abort
from afd.errors import PeerLostError
from afd.ffn.mesh import RowMesh
from afd.ffn.watch import LayerWatch
from afd.topology import Rank

EPOCH = "0123456789abcdef"


@pytest.fixture
def f0(tmp_path: Path) -> Iterator[tuple[RowMesh, int]]:
    """Rank F0, connected with a process that is rank F1, and the number of that."""
    mesh = RowMesh(Rank.parse("F0"), 2, EPOCH, tmp_path, abort=Abort(), step_s=5.0)
    pid = os.fork()
    if pid == 0:
        other = RowMesh(Rank.parse("F1"), 2, EPOCH, tmp_path, abort=Abort(), step_s=5.0)
        other.connect(5.0)
        signal.pause()
    try:
        mesh.connect(5.0)
        yield mesh, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mesh.close()


def first(told: list[PeerLostError], limit_s: float = 5.0) -> PeerLostError:
    deadline = time.monotonic() + limit_s
    while not told:
        assert time.monotonic() < deadline, "nothing was told"
        time.sleep(0.01)
    return told[0]


def test_a_stopped_rank_is_named_when_a_layer_is_overdue(f0: tuple[RowMesh, int]) -> None:
    mesh, pid = f0
    told: list[PeerLostError] = []
    os.kill(pid, signal.SIGSTOP)
    watch = LayerWatch(mesh, 0.2, told.append)
    mesh.met_at = time.monotonic()
    loss = first(told)
    watch.close()
    assert (str(loss), loss.rank) == ("F1 is stopped: a layer did not end on F0 within 0.2 s", "F1")
    assert len(told) == 1


def test_nobody_is_named_when_no_process_is_stopped(f0: tuple[RowMesh, int]) -> None:
    mesh, _ = f0
    told: list[PeerLostError] = []
    watch = LayerWatch(mesh, 0.2, told.append)
    mesh.met_at = time.monotonic()
    loss = first(told)
    watch.close()
    assert loss.rank == "" and "may not have reached the sum" in str(loss)


def test_layers_that_end_in_time_are_not_told_of(f0: tuple[RowMesh, int]) -> None:
    mesh, _ = f0
    told: list[PeerLostError] = []
    watch = LayerWatch(mesh, 0.4, told.append)
    for _ in range(8):
        mesh.met_at = time.monotonic()
        time.sleep(0.05)
        mesh.met_at = None
        time.sleep(0.05)
    watch.close()
    watch.close()
    assert told == []
