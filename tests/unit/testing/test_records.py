# SPDX-License-Identifier: Apache-2.0
"""What a record says about the machine: traceable sources, and nothing private."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from afd.support.records import write
from afd.testing import records
from tests.unit.record_examples import record


def git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", "-C", str(tree), *identity, *arguments], check=True, capture_output=True, timeout=30
    )


def test_a_tree_is_dirty_by_any_change_but_those_of_records_and_their_page(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "code").write_text("1")
    git(tmp_path, "add", "code")
    git(tmp_path, "commit", "-qm", "c")
    assert not records.commits(tmp_path).dirty
    (tmp_path / "tests/records").mkdir(parents=True)
    (tmp_path / "tests/records/x.json").write_text("{}")
    assert not records.commits(tmp_path).dirty
    (tmp_path / "code").write_text("2")
    assert records.commits(tmp_path).dirty


def test_a_tree_without_history_has_no_commit_and_counts_as_dirty(tmp_path: Path) -> None:
    found = records.commits(tmp_path)
    assert (found.afd, found.dirty) == ("unknown", True)


def test_text_of_a_run_loses_what_is_private_to_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert records.scrub(f"\x1b[31mfailed\x1b[0m in {tmp_path}/x") == "failed in ./x"
    assert records.scrub(f"{Path.home()}/y") == "~/y"


def test_a_record_of_this_machine_can_be_written(tmp_path: Path) -> None:
    made = record(stack=records.stack(), devices=records.cpu_devices(), date=records.now())
    write(made, tmp_path)
