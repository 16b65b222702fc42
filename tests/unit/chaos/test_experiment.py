# SPDX-License-Identifier: Apache-2.0
"""An experiment that was too late is done again, and says so; nothing else gets a second chance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from afd.errors import RoleFailedError
from afd.support.records import Commits
from tests.chaos.cells import Cell
from tests.chaos.experiment import ATTEMPTS, Trial, run
from tests.chaos.faults import NoEffectError
from tests.chaos.results import Result
from tests.chaos.scene import PhaseMissedError
from tests.chaos.stand import Stand

CELL = Cell.parse("kill.f0.warmup.1a1f.exit")
HERE = Commits(afd="1" * 40, dirty=False, vllm="2" * 40, vllm_ascend="3" * 40)


def outcome(tmp_path: Path, *errors: Exception | None) -> Result:
    """Of a cell whose attempts end like this, one after another."""
    left = list(errors)

    class Scripted(Trial):
        def run(self) -> None:
            if (error := left.pop(0)) is not None:
                raise error

    stand = Stand(tmp_path, {})
    try:
        result = run(CELL, stand, HERE, Scripted)
    finally:
        stand.close()
    assert not left
    return result


def late(number: int) -> PhaseMissedError:
    return PhaseMissedError(f"ffn was ready when fault {number} came")


def test_a_deed_that_came_in_time_took_one_attempt(tmp_path: Path) -> None:
    found = outcome(tmp_path, None)
    assert (found.outcome, found.attempts, found.missed) == ("passed", 1, ())


def test_a_deed_that_came_too_late_is_repeated_and_that_is_kept(tmp_path: Path) -> None:
    found = outcome(tmp_path, late(1), late(2), None)
    assert (found.outcome, found.attempts, found.problems) == ("passed", 3, ())
    assert found.missed == tuple(f"PhaseMissedError: {late(number)}" for number in (1, 2))


def test_a_deed_that_always_comes_too_late_is_an_error(tmp_path: Path) -> None:
    found = outcome(tmp_path, *(late(number) for number in range(ATTEMPTS)))
    assert (found.outcome, found.attempts, len(found.missed)) == ("error", ATTEMPTS, ATTEMPTS - 1)
    assert found.problems == (f"PhaseMissedError: {late(ATTEMPTS - 1)}",)


@pytest.mark.parametrize("error", [NoEffectError, KeyError, OSError])
def test_a_deed_without_effect_is_an_error_at_once(tmp_path: Path, error: Callable[[str], Exception]) -> None:
    found = outcome(tmp_path, error("the process is still there"))
    assert (found.outcome, found.attempts) == ("error", 1)
    assert "the process is still there" in found.problems[0]


def test_a_group_that_does_not_start_has_failed_at_once(tmp_path: Path) -> None:
    found = outcome(tmp_path, RoleFailedError("ffn ended with code 71: no memory"))
    assert (found.outcome, found.attempts) == ("failed", 1)
    assert found.problems == ("RoleFailedError: ffn ended with code 71: no memory",)
