# SPDX-License-Identifier: Apache-2.0
"""``make chaos`` says that a cell has passed only when it was done, now, on this source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import click.testing
import msgspec
import pytest

from afd.support.records import Commits
from afd.testing.records import commits
from tests.chaos import results
from tests.chaos.__main__ import main
from tests.chaos.cells import Cell
from tests.chaos.results import Result, Store
from tests.chaos.stand import ROOT, keep_answers, native_file, native_key

CELL = Cell.parse("cut.network.idle.1a1f.exit")
"""One that needs namespaces: a process of its own does it."""


@pytest.fixture(scope="module")
def source() -> Commits:
    return commits(ROOT)


def result(source: Commits, **changes: object) -> Result:
    found = Result(
        cell=str(CELL),
        outcome="passed",
        commit=source.afd,
        dirty=source.dirty,
        date="2026-01-01T00:00:00Z",
        duration_s=9.0,
    )
    return msgspec.structs.replace(found, **changes)


class Machine:
    """One on which nothing is installed but git, until tools are."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.tools, self.records = directory, directory / "bin", directory / "records"
        self.store = Store(directory / "cells")
        keep_answers(native_file(directory), native_key(), {})
        self.tools.mkdir()
        git = shutil.which("git")
        assert git is not None
        (self.tools / "git").symlink_to(git)

    def tool(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def namespaces(self, script: str) -> None:
        """This user can have them, and what should do experiments in them is ``script``."""
        for name in ("ip", "mount"):
            self.tool(name, "exit 0")
        self.tool("unshare", f'case "$*" in *" ip link "*) exit 0;; esac\n{script}')

    def finds(self, found: Result) -> str:
        """A script that leaves this result."""
        prepared = self.directory / "prepared.json"
        prepared.write_bytes(msgspec.json.encode(found))
        return f"/bin/cp '{prepared}' '{self.store.path(CELL)}'"

    def chaos(self) -> tuple[int, str]:
        """Do the cell: the exit code and all output."""
        words = [f"--cell={CELL}", "--again", f"--directory={self.directory}", f"--records={self.records}"]
        done = click.testing.CliRunner().invoke(main, words)
        return done.exit_code, done.output


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.tools))
    return made


def test_a_cell_that_was_done_on_this_source_has_passed(machine: Machine, source: Commits) -> None:
    machine.namespaces(machine.finds(result(source)))
    code, text = machine.chaos()
    assert code == 0 and "1 of 1 passed" in text, text


@pytest.mark.parametrize("ends", ["exit 0", "exit 3"])
def test_a_result_from_before_is_not_one_of_this_run(machine: Machine, source: Commits, ends: str) -> None:
    machine.store.write(result(source))
    machine.namespaces(ends)
    code, text = machine.chaos()
    assert code == 1 and "0 of 1 passed" in text, text
    assert f"not passed: {CELL}: it was not done" in text


def test_a_run_that_breaks_after_its_experiments_is_no_success(machine: Machine, source: Commits) -> None:
    machine.namespaces(f"{machine.finds(result(source))}\nexit 3")
    code, text = machine.chaos()
    assert code == 1
    assert "the process with namespaces of its own ended with code 3, not with 0" in text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda here: result(here, commit="4" * 40), "its result is of commit 444444444"),
        (lambda here: result(here, dirty=not here.dirty), "not of this source"),
        (lambda here: result(here, outcome="failed", problems=("it hangs",)), "failed"),
    ],
    ids=["commit", "changes", "failed"],
)
def test_a_result_of_another_source_or_a_bad_one_has_not_passed(
    machine: Machine, source: Commits, other: Callable[[Commits], Result], words: str
) -> None:
    machine.namespaces(machine.finds(other(source)))
    code, text = machine.chaos()
    assert code == 1 and "0 of 1 passed" in text
    assert f"not passed: {CELL}: " in text and words in text


def test_without_namespaces_what_was_found_is_recorded_all_the_same(
    machine: Machine, source: Commits
) -> None:
    machine.store.write(result(source))
    code, text = machine.chaos()
    assert code == 1
    assert "not installed: unshare, ip, mount; 1 cells need namespaces" in text
    assert f"not passed: {CELL}: it was not done" in text
    (record,) = results.read_records(machine.records)
    assert record.results == (result(source),)
