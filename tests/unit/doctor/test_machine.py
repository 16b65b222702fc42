# SPDX-License-Identifier: Apache-2.0
"""What the machine gives: this one, and directories that stand for its parts."""

from __future__ import annotations

import fcntl
import resource
import subprocess
from pathlib import Path

import pytest

from afd.agent import run_directory
from afd.doctor import machine
from afd.doctor.check import FAIL, MIB, OK, WARN
from afd.doctor.subject import Space, Subject


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """A place for directories of runs."""
    path = tmp_path / "with a blank"
    path.mkdir()
    return path


@pytest.mark.parametrize(("mib", "status"), [(64, OK), (16, WARN), (1, FAIL)])
def test_the_size_of_shared_memory_is_judged(tmp_path: Path, mib: int, status: str) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    space = Space(mib * MIB, mib * MIB)
    found = machine.shared_memory.run(Subject(root=tmp_path, env={}, space=lambda _: space))
    assert found.status == status and ("--shm-size" in found.remedy or status == OK)


def test_shared_memory_of_this_machine_has_a_size() -> None:
    assert "MiB free" in machine.shared_memory.run(Subject()).found


def test_a_full_file_system_is_to_be_cleaned_and_not_made_larger(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    found = machine.shared_memory.run(Subject(root=tmp_path, env={}, space=lambda _: Space(1 << 40, MIB)))
    assert found.status == FAIL and "remove files" in found.remedy


def test_without_shared_memory_a_mount_is_asked_for(tmp_path: Path) -> None:
    found = machine.shared_memory.run(Subject(root=tmp_path, env={}))
    assert found.status == FAIL and "mount a tmpfs" in found.remedy


def test_segments_that_a_broken_start_left_are_reported(tmp_path: Path, temporary: Path) -> None:
    assert machine.left(tmp_path, [temporary]).status == OK
    (tmp_path / "afd-012345abcdef-a0-f0-u0").write_text("")
    found = machine.left(tmp_path, [temporary])
    assert found.status == WARN and "1 segment(s)" in found.found


def test_a_directory_of_a_killed_run_is_named_with_a_command_that_removes_it(
    tmp_path: Path, temporary: Path
) -> None:
    left, used = temporary / f"{run_directory.RUN}x1", temporary / f"{run_directory.LOGS}x2"
    for path in (left, used):
        path.mkdir()
        (path / "owner").write_text("")
    with open(used / "owner") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        found = machine.left(tmp_path / "absent", [temporary])
        assert found.status == WARN
        assert str(left) in found.found and str(used) not in found.found
        command = found.remedy.removeprefix("run: ")
        subprocess.run(command, shell=True, check=True)
        assert machine.left(tmp_path / "absent", [temporary]).status == OK
    assert not left.exists() and used.exists()


@pytest.mark.parametrize(("limit", "status"), [(1024, OK), (512, WARN), (128, FAIL)])
def test_a_low_limit_on_open_files_is_seen(limit: int, status: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = machine.open_files.run(Subject())
        assert (found.status, found.remedy[:14]) == (status, "" if status == OK else "run: ulimit -n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_compiler_there_is_a_warning() -> None:
    assert machine.compiler.run(Subject(env={"PATH": "/nowhere"})).status == WARN
    assert machine.compiler.run(Subject(env={"CC": "no-such-cc -O2", "PATH": "/usr/bin"})).status == WARN


def test_a_tree_that_does_not_run_has_no_limits_of_its_own(tmp_path: Path) -> None:
    subject = Subject(root=tmp_path, env={})
    for check in (machine.cores, machine.memory, machine.open_files, machine.tasks, machine.system):
        found = check.run(subject)
        assert found.status == "skip" and str(tmp_path) in found.found
