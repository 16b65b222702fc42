# SPDX-License-Identifier: Apache-2.0
"""Where a run keeps its sockets, and what becomes of the directory when its owner is gone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from afd.agent import run_directory
from afd.agent.run_directory import LOGS, RUN, RunDirectory

MAKER = """
import sys, time
from afd.agent.run_directory import RunDirectory
made = [RunDirectory.for_sockets(), RunDirectory.for_logs()]
print(*(directory.path for directory in made), flush=True)
if sys.argv[1:]:
    time.sleep(600)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path: pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="afd-test-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _choose_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for its temporary directory once per process."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def _killed(temporary: Path) -> list[Path]:
    """Directories of a process that was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, "stay"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    paths = [Path(word) for word in process.stdout.readline().split()]
    assert not set(paths) & set(run_directory.stale())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return paths


def test_a_directory_of_this_user_only_below_tmpdir_is_removed_when_it_is_closed(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    made = RunDirectory.for_sockets()
    assert made.path.parent == short and made.path.name.startswith(RUN)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.close()
    made.close()
    assert list(short.iterdir()) == []


def test_a_directory_that_nobody_closed_is_removed_when_its_process_ends(short: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short)}
    done = subprocess.run([sys.executable, "-c", MAKER], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and RUN in done.stdout and LOGS in done.stdout
    assert list(short.iterdir()) == []


@pytest.mark.parametrize("length", [40, 53, 54, 90, 200])
def test_the_longest_name_of_a_socket_fits_however_long_the_path_of_tmpdir_is(
    length: int, short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = short / ("x" * (length - len(str(short)) - 1))
    asked.mkdir()
    monkeypatch.setenv("TMPDIR", str(asked))
    with caplog.at_level(logging.WARNING):
        made = RunDirectory.for_sockets()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made.path / str(uuid.uuid4())))
    assert (made.path.parent == asked) == (length <= 53)
    assert (f"has {length} bytes" in caplog.text) == (length > 53)
    made.close()


def test_xdg_runtime_dir_comes_before_tmp_when_tmpdir_is_too_long(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = short / ("x" * 90)
    asked.mkdir()
    monkeypatch.setenv("TMPDIR", str(asked))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    made = RunDirectory.for_sockets()
    assert made.path.parent == short
    made.close()


def test_a_tmpdir_may_be_spelt_in_any_way(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / "a").mkdir()
    monkeypatch.setenv("TMPDIR", f"{short}/a/../a/")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert run_directory.ignored_tmpdir() == ""


def test_a_tmpdir_that_is_absent_is_said_and_another_one_is_used(
    short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", str(short / "absent"))
    with caplog.at_level(logging.WARNING):
        made = [RunDirectory.for_sockets(), RunDirectory.for_sockets()]
    assert caplog.text.count(f"TMPDIR is {short / 'absent'}, where nothing can be written") == 1
    assert made[0].path.is_dir()
    for directory in made:
        directory.close()


def test_what_a_killed_run_left_is_stale_and_its_sockets_go_with_the_next_run(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    sockets, logs = _killed(short)
    assert {sockets, logs} <= set(run_directory.stale())
    made = RunDirectory.for_sockets()
    assert not sockets.exists(), "nobody can use it any more"
    assert logs.exists(), "somebody may want to read them"
    assert logs in run_directory.stale() and made.path not in run_directory.stale()
    made.close()


def test_logs_that_are_kept_for_the_user_are_not_stale(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    made = RunDirectory.for_logs()
    (made.path / "ffn.log").write_text("words")
    made.keep()
    made.close()
    assert [path.name for path in made.path.iterdir()] == ["ffn.log"]
    assert made.path not in run_directory.stale()


def test_a_directory_that_only_looks_like_one_of_a_run_is_not_touched(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    elsewhere = short / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner").write_text("")
    (short / f"{RUN}link").symlink_to(elsewhere)
    (short / f"{RUN}file").write_text("")
    (short / f"{RUN}empty").mkdir()
    before = sorted(short.iterdir())
    run_directory.sweep()
    assert not {*before} & {*run_directory.stale()}
    assert sorted(short.iterdir()) == before and (elsewhere / "owner").exists()


_STEPS = ("open", "os.", "shutil.", "fcntl.")


def _killed_at(step: int) -> bool:
    """Make, fill and close a directory in a process that is killed before its nth step. Whether it came so far."""
    pid = os.fork()
    if pid == 0:
        left = iter(range(step))

        def kill(event: str, _: object) -> None:
            if event.startswith(_STEPS) and event != "os.kill" and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(kill)
            made = RunDirectory.for_sockets()
            for name in ("a", "b"):
                (made.path / name).touch()
                (made.path / f"directory-{name}").mkdir()
            made.close()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_moment_leaves_what_is_stale_and_what_the_next_run_removes(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    tempfile.gettempdir()
    found = set()
    for step in range(200):
        if not _killed_at(step):
            break
        left = list(short.iterdir())
        found |= {(path.name[:8], (path / "owner").exists()) for path in left}
        assert run_directory.stale([short]) == left, f"killed at step {step}"
        run_directory.sweep([short])
        assert list(short.iterdir()) == [], f"killed at step {step}"
    else:
        pytest.fail("it never came to its end")
    assert found == {(".afd-new", False), (".afd-new", True), (RUN, True)}


def test_a_directory_in_the_making_or_in_use_survives_those_who_sweep(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            run_directory.sweep([short])

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        made = [RunDirectory.for_sockets() for _ in range(100)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(directory.path for directory in made) == sorted(short.iterdir())
    assert all((directory.path / "owner").exists() for directory in made)
    for directory in made:
        directory.close()
