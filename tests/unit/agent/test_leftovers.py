# SPDX-License-Identifier: Apache-2.0
"""What a role's processes mapped in shared memory, and what becomes of it when they are gone."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from afd.agent.leftovers import Leftovers, mapped_by, runs, title, tree

SHM = Path("/dev/shm")

# Maps the files it is told, forks a child that maps those after "--", and waits.
PROGRAM = """
import mmap, os, sys, time
def map_all(names):
    kept = []
    for name in names:
        descriptor = os.open("/dev/shm/" + name, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, 4096)
        kept.append(mmap.mmap(descriptor, 4096))
        os.close(descriptor)
    return kept
own, theirs = sys.argv[1].split(), sys.argv[2].split()
kept = map_all(own)
child = 0
if theirs:
    child = os.fork()
    if child == 0:
        kept = map_all(theirs)
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(600)
os.write(1, b"ready\\n")
time.sleep(600)
"""

Start = Callable[..., tuple[int, list[int]]]


@pytest.fixture
def prefix() -> Iterator[str]:
    """The beginning of the names of this test's files."""
    prefix = f"afd-test-{secrets.token_hex(6)}-"
    yield prefix
    for path in SHM.glob(prefix + "*"):
        path.unlink()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that maps files; gives its number and those of its children."""
    running: list[subprocess.Popen[str]] = []

    def started(*own: str, child: tuple[str, ...] = ()) -> tuple[int, list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, " ".join(own), " ".join(child)], stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2 if child else 1)]
        return process.pid, [int(line) for line in lines if line != "ready"]

    yield started
    for process in running:
        for one in tree(process.pid):
            one.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def kill(pid: int) -> None:
    """Kill a process with all its descendants, and see it gone."""
    processes = tree(pid)
    for process in processes:
        process.kill()
    deadline = time.monotonic() + 10
    while any(runs(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_files_that_a_process_maps_are_named(start: Start, prefix: str) -> None:
    pid, _ = start(prefix + "a", prefix + "b")
    assert mapped_by(pid) >= {prefix + "a", prefix + "b"}
    (SHM / (prefix + "a")).unlink()
    assert prefix + "a" in mapped_by(pid)
    assert mapped_by(2**22 + 1) == set()


def test_what_a_killed_tree_left_is_removed_and_nothing_else(start: Start, prefix: str) -> None:
    (SHM / (prefix + "foreign")).write_bytes(b"x")
    leftovers = Leftovers()
    pid, _ = start(prefix + "a", child=(prefix + "b",))
    leftovers.observe([pid])
    kill(pid)
    assert leftovers.left() == [prefix + "a", prefix + "b"]
    assert leftovers.remove() == [prefix + "a", prefix + "b"]
    assert leftovers.left() == []
    assert [path.name for path in SHM.glob(prefix + "*")] == [prefix + "foreign"]
    assert leftovers.remove() == []


def test_a_file_that_a_living_process_outside_the_tree_maps_is_kept(start: Start, prefix: str) -> None:
    leftovers = Leftovers()
    pid, _ = start(prefix + "shared", prefix + "own")
    other, _ = start(prefix + "shared")
    leftovers.observe([pid])
    kill(pid)
    assert leftovers.remove() == [prefix + "own"]
    kill(other)
    assert leftovers.remove() == [prefix + "shared"]


def test_a_file_that_its_process_removed_itself_is_no_leftover(start: Start, prefix: str) -> None:
    pid, _ = start(prefix + "a")
    leftovers = Leftovers()
    leftovers.observe([pid])
    (SHM / (prefix + "a")).unlink()
    kill(pid)
    assert leftovers.remove() == []


def test_what_was_there_before_the_role_and_what_is_in_a_directory_is_somebody_elses(
    start: Start, prefix: str
) -> None:
    (SHM / (prefix + "before")).write_bytes(b"x" * 4096)
    directory = SHM / (prefix + "models")
    directory.mkdir()
    try:
        (directory / "weights").write_bytes(b"x" * 4096)
        leftovers = Leftovers()
        pid, _ = start(prefix + "before", f"{prefix}models/weights")
        leftovers.observe([pid])
        kill(pid)
        assert leftovers.remove() == []
        assert (directory / "weights").exists()
    finally:
        shutil.rmtree(directory)


def test_a_child_that_appears_later_is_noticed_by_the_next_look(start: Start, prefix: str) -> None:
    pid, (child,) = start(prefix + "a", child=(prefix + "b",))
    leftovers = Leftovers()
    leftovers.observe([pid])
    assert [process.pid for process in leftovers.alive()] == [pid, child]
    kill(child)
    assert [process.pid for process in leftovers.alive()] == [pid]


def test_a_process_is_named_by_its_title_and_forgotten_when_it_is_gone(start: Start, prefix: str) -> None:
    pid, _ = start(prefix + "a")
    leftovers = Leftovers()
    leftovers.observe([pid])
    assert leftovers.name(pid) == f"{Path(sys.executable).name} (process {pid})"
    assert leftovers.name(1) == "process 1"
    assert [process.pid for process in leftovers.alive()] == [pid]
    kill(pid)
    assert leftovers.alive() == []


def test_a_process_that_its_parent_has_not_read_does_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 10
    while runs(watched):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert watched.status() == psutil.STATUS_ZOMBIE
    process.wait()
    assert not runs(watched)
    assert title(watched) == ""
    assert tree(process.pid) == []


def test_looking_at_a_tree_that_is_gone_finds_nothing() -> None:
    leftovers = Leftovers()
    leftovers.observe([2**22 + 1])
    assert leftovers.alive() == []
    assert leftovers.remove() == []
    assert os.path.isdir("/dev/shm")
