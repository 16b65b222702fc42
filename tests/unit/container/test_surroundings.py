# SPDX-License-Identifier: Apache-2.0
"""A home for any user, and shared memory without a former life's segments."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from afd.container import surroundings
from afd.container.surroundings import SharedMemory
from afd.errors import ConfigError

NOBODY = 54321
SHM = Path("/dev/shm")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_home_that_can_be_written_stays(tmp_path: Path) -> None:
    assert surroundings.home({"HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize("home", ["", "/nonexistent", "/proc/1"])
def test_a_home_that_cannot_be_written_is_replaced_by_one_of_this_user_only(
    home: str, temporary: Path
) -> None:
    found = surroundings.home({"HOME": home})
    made = temporary / f"afd-home-{os.geteuid()}"
    assert found == {"HOME": str(made)}
    assert made.stat().st_mode & 0o777 == 0o700
    assert surroundings.home({"HOME": home}) == found


def test_a_user_without_a_name_gets_one(tmp_path: Path) -> None:
    assert surroundings.home({"HOME": str(tmp_path)}, NOBODY) == {"USER": "afd", "LOGNAME": "afd"}
    assert surroundings.home({"HOME": str(tmp_path), "USER": "me"}, NOBODY) == {"LOGNAME": "afd"}


def test_a_home_that_somebody_else_made_is_refused(temporary: Path) -> None:
    (temporary / f"afd-home-{NOBODY}").mkdir()
    with pytest.raises(ConfigError, match="not a directory of uid 54321"):
        surroundings.home({}, NOBODY)


def segment(directory: Path, name: str, age_s: float = 60) -> Path:
    path = directory / name
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_stale_segments_of_afd_are_removed_and_nothing_else(tmp_path: Path) -> None:
    stale = segment(tmp_path, "afd-0123-a0-f0-u0")
    others = [segment(tmp_path, "psm_0123"), segment(tmp_path, "afd-new-a0-f0-u0", age_s=0)]
    memory = SharedMemory(tmp_path)
    assert memory.claim() == [stale.name]
    memory.close()
    assert not stale.exists() and all(path.exists() for path in others)


def test_a_segment_that_a_living_process_has_mapped_stays() -> None:
    used, unused = (segment(SHM, f"afd-test-{os.getpid()}-{word}") for word in ("used", "unused"))
    try:
        with open(used, "r+b") as file, mmap.mmap(file.fileno(), 0):
            memory = SharedMemory()
            found = memory.claim()
            memory.close()
        assert unused.name in found and used.name not in found
        assert used.exists() and not unused.exists()
    finally:
        used.unlink(missing_ok=True), unused.unlink(missing_ok=True)


def test_while_another_container_shares_the_directory_nothing_is_removed(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from afd.container.surroundings import SharedMemory\n"
        "memory = SharedMemory(Path(sys.argv[1])); print(memory.claim(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "[]\n"
        stale = segment(tmp_path, "afd-0123-a0-f0-u0")
        memory = SharedMemory(tmp_path)
        assert memory.claim() == []
        memory.close()
        assert stale.exists()
        other.communicate("")
    memory = SharedMemory(tmp_path)
    assert memory.claim() == [stale.name]
    memory.close()
