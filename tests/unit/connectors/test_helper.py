# SPDX-License-Identifier: Apache-2.0
"""The C helper is compiled once, safely, and done without where it cannot be had."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from afd.connectors.shm import helper
from afd.connectors.shm.helper import Library, build, find, library_name


def test_the_helper_is_compiled_once(tmp_path: Path) -> None:
    path = build(tmp_path)
    assert path == tmp_path / library_name()
    written = path.stat().st_mtime_ns
    assert build(tmp_path, compilers=()) == path
    assert path.stat().st_mtime_ns == written
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    Library(path)


def test_processes_that_compile_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    code = "import sys, pathlib; from afd.connectors.shm.helper import *; Library(build(pathlib.Path(sys.argv[1])))"
    root = Path(helper.__file__).parents[3]
    crowd = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=root) for _ in range(4)]
    assert [process.wait(60) for process in crowd] == [0, 0, 0, 0]
    assert [entry.name for entry in tmp_path.iterdir()] == [library_name()]


def test_the_next_directory_is_used_when_the_first_cannot_be(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert find([blocked / "cache", tmp_path / "second"]) is not None
    assert (tmp_path / "second" / library_name()).exists()


def test_code_is_not_loaded_from_a_directory_that_others_can_write_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OSError, match="this user only"):
        build(shared)
    (shared / library_name()).write_bytes(build(tmp_path / "own").read_bytes())
    with pytest.raises(OSError, match="this user only"):
        build(shared)


def test_without_a_compiler_one_line_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert find([tmp_path], compilers=("no-such-compiler",)) is None
    assert len(caplog.records) == 1
    assert "no-such-compiler" in caplog.text


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not compile"):
        build(tmp_path, compilers=("false",))
    assert not list(tmp_path.iterdir())


def test_a_damaged_library_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir(0o700)
    (directory / library_name()).write_bytes(b"not a library")
    assert find([directory]) is None
