# SPDX-License-Identifier: Apache-2.0
"""Shared memory is reserved when it is created, private, and never left behind."""

from __future__ import annotations

import gc
import os
import re
import stat
from pathlib import Path

import pytest

from afd.connectors.shm.segment import Segment, check_room, segment_name, sweep
from afd.errors import ResourceError
from tests.unit.small_disk import on_small_disk


def test_both_sides_see_the_same_bytes(tmp_path: Path) -> None:
    ours = Segment.create(tmp_path / "s", 8192, "a test")
    theirs = Segment.open(tmp_path / "s")
    ours.bytes[4096] = 7
    assert theirs.bytes[4096] == 7
    assert theirs.size == 8192


def test_a_segment_is_for_this_user_only(tmp_path: Path) -> None:
    Segment.create(tmp_path / "s", 4096, "a test")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_memory_outlives_its_name_and_unlinking_twice_is_fine(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "s", 4096, "a test")
    segment.unlink()
    segment.unlink()
    assert not list(tmp_path.iterdir())
    segment.bytes[0] = 1


def test_a_name_is_never_taken_over(tmp_path: Path) -> None:
    Segment.create(tmp_path / "s", 4096, "a test")
    with pytest.raises(FileExistsError):
        Segment.create(tmp_path / "s", 4096, "a test")
    assert (tmp_path / "s").exists()


def test_dropping_a_segment_gives_memory_and_descriptor_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        segment = Segment.create(tmp_path / "s", 4096, "a test")
        segment.unlink()
    del segment
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.isolated
def test_a_full_file_system_is_an_error_with_numbers_and_advice(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from afd.connectors.shm.segment import Segment
from afd.errors import ResourceError
from tests.unit.small_disk import on_small_disk
directory = Path(sys.argv[1])
try:
    Segment.create(directory / "s", 3 * 2**20 - 5, "A0")
except ResourceError as error:
    print(error.exit_code, list(directory.iterdir()), error)
"""
    run = on_small_disk(code, tmp_path)
    assert re.match(r"71 \[\] .*A0 needs 3 MiB in .*, [01] MiB are free; .*--shm-size", run.stdout), run


@pytest.mark.isolated
def test_room_that_two_segments_share_is_not_promised_twice(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from afd.connectors.shm.segment import Segment, check_room
from afd.errors import ResourceError
from tests.unit.small_disk import on_small_disk
directory = Path(sys.argv[1])
check_room(600_000, "both", directory)
first = Segment.create(directory / "1", 600_000, "the first")
try:
    Segment.create(directory / "2", 600_000, "the second")
except ResourceError as error:
    first.bytes[599_999] = 1  # reserved: this is no SIGBUS
    print(error)
"""
    run = on_small_disk(code, tmp_path)
    assert run.returncode == 0 and "the second" in run.stdout, run


def test_room_is_checked_before_anything_is_created(tmp_path: Path) -> None:
    check_room(1, "a test", tmp_path)
    with pytest.raises(ResourceError, match="needs"):
        check_room(2**60, "a test", tmp_path)
    with pytest.raises(ResourceError, match="no shared memory"):
        check_room(1, "a test", tmp_path / "missing")


def test_sweeping_removes_the_segments_of_one_epoch(tmp_path: Path) -> None:
    mine = [segment_name("0123456789abcdef", key) for key in ("a0-f0-u0", "a0-f0-u1")]
    other = segment_name("ffff456789abcdef", "a0-f0-u0")
    for name in (*mine, other, "psm_other"):
        (tmp_path / name).touch()
    assert sorted(sweep("0123456789abcdef", tmp_path)) == sorted(mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other, "psm_other"])
    assert sweep("0123456789abcdef", tmp_path) == []
