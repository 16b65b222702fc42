# SPDX-License-Identifier: Apache-2.0
"""What experiments found, as JSON: one file per cell while a run goes on, one record of all when it is kept."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from afd.errors import ConfigError
from afd.support.records import Commits, Devices, Stack
from afd.testing.records import scrub
from tests.chaos.cells import Cell

SECONDS = 2
"""Digits of a time that is kept."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One experiment. Times are seconds after the fault, by role: ``noticed_s`` when the agent named the cause,
    ``ended_s`` when it exited; ``again_s`` is from the fault (``rejoin``) or from the new start to ready. ``problems``
    says what was wrong; with the outcome "error" the experiment itself did not come off. ``attempts`` is how many it
    took until the deed was in time for the phase (None: from before that was kept), and ``missed`` why those before the
    last were not.
    """

    cell: str
    outcome: Literal["passed", "failed", "error"]
    commit: str
    dirty: bool
    date: str
    duration_s: float
    proof: str = ""
    survived: bool = False
    noticed_s: Mapping[str, float] = {}
    ended_s: Mapping[str, float] = {}
    codes: Mapping[str, int] = {}
    causes: Mapping[str, str] = {}
    clients: str = ""
    again_s: float | None = None
    problems: tuple[str, ...] = ()
    attempts: int | None = None
    missed: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All results of one selection, and where they were found."""

    schema: Literal[1] = 1
    name: str
    model: str
    runner: str
    devices: Devices
    stack: Stack
    results: tuple[Result, ...]


def public(text: str) -> str:
    """``text`` without what differs from machine to machine or from run to run."""
    text = re.sub(r"\b(process|pid) \d+", r"\1 N", scrub(text))
    return text.replace(socket.gethostname(), "HOST")


class Store:
    """A directory with a file per cell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, cell: Cell) -> Path:
        return self.directory / f"{cell}.json"

    def read(self, cell: Cell) -> Result | None:
        """What was found last; None when there is nothing."""
        try:
            return msgspec.json.decode(self.path(cell).read_bytes(), type=Result)
        except FileNotFoundError:
            return None

    def write(self, result: Result) -> None:
        """Keep it in one step: a run may be interrupted at any time."""
        path = self.directory / f"{result.cell}.json"
        path.with_suffix(".new").write_bytes(_text(result))
        os.replace(path.with_suffix(".new"), path)

    def done(self, cell: Cell, commits: Commits) -> bool:
        """Whether the cell passed on just this source."""
        found = self.read(cell)
        return (
            found is not None
            and found.outcome == "passed"
            and (found.commit, found.dirty, commits.dirty) == (commits.afd, False, False)
        )


def _text(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1) + b"\n"


def write_record(record: Record, directory: Path) -> Path:
    """Write ``chaos/<name>.json`` below the directory of the records."""
    path = directory / "chaos" / f"{record.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_bytes(_text(record))
    os.replace(path.with_suffix(".new"), path)
    return path


def read_records(directory: Path) -> list[Record]:
    """All records of chaos, by file name."""
    return [
        msgspec.json.decode(path.read_bytes(), type=Record)
        for path in sorted((directory / "chaos").glob("*.json"))
    ]


def evidence(records: Iterable[Record], tree: Path) -> dict[Cell, Result]:
    """The results that say something about the source at ``tree``: of a commit that it contains, without changes. Of
    two for the same cell the later one counts, whatever its outcome."""
    found: dict[Cell, Result] = {}
    known: dict[str, bool] = {}
    for record in records:
        for result in record.results:
            if result.commit not in known:
                known[result.commit] = contains(tree, result.commit)
            if result.dirty or not known[result.commit]:
                continue
            cell = Cell.parse(result.cell)
            if cell not in found or found[cell].date < result.date:
                found[cell] = result
    return found


def contains(tree: Path, commit: str) -> bool:
    """Whether a commit is an ancestor of the checkout's HEAD, or that itself. Raises ConfigError when git cannot tell,
    as in a checkout without its whole history."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return False
    command = ["git", "-C", str(tree), "merge-base", "--is-ancestor", commit, "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode not in (0, 1):
        raise ConfigError(
            f"git cannot tell whether {tree} contains the commit {commit} of a recorded result "
            f"({done.stderr.strip()}); fetch the whole history (git fetch --unshallow), or do it again"
        )
    return done.returncode == 0
