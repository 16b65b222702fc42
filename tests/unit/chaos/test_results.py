# SPDX-License-Identifier: Apache-2.0
"""What experiments found is kept, goes on after an interruption, and counts only for the source it was found on."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from afd.errors import ConfigError
from afd.support.records import Commits
from afd.testing.records import cpu_devices, stack
from tests.chaos import page, results
from tests.chaos.cells import Cell, Fault, Phase, Target, impossible
from tests.chaos.results import Record, Result, Store

CELL = Cell(Fault.KILL, Target.F0, Phase.DECODE)
COMMIT = "1" * 40
HERE = Commits(afd=COMMIT, dirty=False, vllm="2" * 40, vllm_ascend="3" * 40)


def result(**changes: object) -> Result:
    found = Result(
        cell=str(CELL),
        outcome="passed",
        commit=COMMIT,
        dirty=False,
        date="2026-01-01T00:00:00Z",
        duration_s=20.0,
        noticed_s={"attention": 0.2, "ffn": 0.1},
        codes={"attention": 70, "ffn": 71},
        causes={"attention": "F0: it is gone", "ffn": "F0: it is gone"},
        again_s=4.0,
    )
    return msgspec.structs.replace(found, **changes)


def record(*found: Result) -> Record:
    return Record(
        name="a", model="tiny", runner="v2", devices=cpu_devices(), stack=stack(), results=tuple(found)
    )


@pytest.mark.parametrize(
    ("changes", "source", "done"),
    [
        ({}, HERE, True),
        ({"outcome": "failed"}, HERE, False),
        ({"outcome": "error"}, HERE, False),
        ({"commit": "4" * 40}, HERE, False),
        ({"dirty": True}, HERE, False),
        ({}, msgspec.structs.replace(HERE, dirty=True), False),
    ],
)
def test_only_what_has_passed_on_just_this_source_is_not_done_again(
    tmp_path: Path, changes: dict[str, object], source: Commits, done: bool
) -> None:
    store = Store(tmp_path)
    assert not store.done(CELL, source)
    store.write(result(**changes))
    assert store.done(CELL, source) is done
    assert store.read(CELL) == result(**changes)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(result())
    path = results.write_record(written, tmp_path)
    assert path == tmp_path / "chaos/a.json"
    assert results.read_records(tmp_path) == [written]


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, str, str]:
    """A repository, a commit that its HEAD contains, and one that it does not."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("checkout", "-q", "-b", "aside", first)
    git("commit", "-q", "--allow-empty", "-m", "three")
    aside = git("rev-parse", "HEAD")
    git("checkout", "-q", "main")
    return tmp_path, first, aside


def test_a_result_of_another_branch_or_of_a_changed_tree_says_nothing(
    checkout: tuple[Path, str, str],
) -> None:
    tree, ancestor, aside = checkout
    good = result(commit=ancestor)
    assert results.evidence([record(good)], tree) == {CELL: good}
    for bad in (
        result(commit=aside),
        result(commit="unknown"),
        result(commit=ancestor, dirty=True),
    ):
        assert results.evidence([record(bad)], tree) == {}


def test_where_git_cannot_tell_nothing_is_taken_for_an_answer(
    checkout: tuple[Path, str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A commit that is not there, a clone without its history, and a directory that is no checkout."""
    tree, ancestor, _ = checkout
    with pytest.raises(
        ConfigError, match=rf"contains the commit {'5' * 40} .*fatal: .*; fetch the whole history"
    ):
        results.evidence([record(result(commit="5" * 40))], tree)
    shallow = tmp_path_factory.mktemp("shallow")
    command = ["git", "clone", "-q", "--depth", "1", "-b", "main", f"file://{tree}", str(shallow)]
    subprocess.run(command, check=True, timeout=30)
    for place in (shallow, tmp_path_factory.mktemp("empty")):
        with pytest.raises(ConfigError, match="fetch the whole history"):
            results.evidence([record(result(commit=ancestor))], place)


def test_of_two_results_of_a_cell_the_later_one_counts_even_when_it_failed(
    checkout: tuple[Path, str, str],
) -> None:
    tree, ancestor, _ = checkout
    early = result(commit=ancestor)
    late = result(commit=ancestor, date="2026-02-01T00:00:00Z", outcome="failed", problems=("it hangs",))
    for order in ((early, late), (late, early)):
        assert results.evidence([record(*order)], tree) == {CELL: late}


def test_the_page_shows_what_passed_what_did_not_and_what_is_impossible() -> None:
    passed, failed = CELL, replace(CELL, phase=Phase.IDLE)
    survived = replace(CELL, phase=Phase.LOAD)
    text = page.render(
        {
            passed: result(attempts=2, missed=("ffn was ready when the fault came",)),
            failed: result(cell=str(failed), outcome="failed", problems=("F0 | hangs",)),
            survived: result(cell=str(survived), survived=True, noticed_s={}),
        }
    )
    assert "| F0 | × | passed, goes on | - | **failed** | - | passed, 0.20 s | - |" in text
    assert f"| `{failed}` | failed: F0 \\| hangs |" in text
    assert impossible(replace(CELL, phase=Phase.RENDEZVOUS)) in text
    assert "## stop" not in text
    assert "| 4.0 | 2: ffn was ready when the fault came | `111111111` |" in text
    assert "| 4.0 | - | `111111111` |" in text


def test_a_result_from_before_attempts_were_counted_does_not_say_how_many_it_took() -> None:
    old = {k: v for k, v in msgspec.to_builtins(result()).items() if k not in ("attempts", "missed")}
    found = msgspec.convert(old, type=Result)
    assert (found.attempts, found.missed) == (None, ())


def test_nothing_of_one_machine_is_kept_in_words() -> None:
    words = results.public(
        f"A0: its agent (pid 71 on {results.socket.gethostname()}) and process 12 are gone"
    )
    assert words == "A0: its agent (pid N on HOST) and process N are gone"
