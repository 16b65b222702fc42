# SPDX-License-Identifier: Apache-2.0
"""What counts as passed: of a group that survives, of one that drains, and of what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.topology import Role
from tests.chaos import results
from tests.chaos.cells import Cell
from tests.chaos.judging import Seen, leaves_nothing, problems
from tests.chaos.results import Result

RECORDS = Path(__file__).parents[2] / "records"
DRAIN = Cell.parse("stop.dp-coordinator.drain.2a2f.rejoin")
IDLE = Cell.parse("stop.dp-coordinator.idle.2a2f.rejoin")


def survivor(**codes: int) -> Seen:
    found = {Role[name.upper()]: code for name, code in codes.items()}
    return Seen(codes=found, ended=dict.fromkeys(found, 1.0), survived=True)


def test_a_drain_that_a_fault_did_not_disturb_ends_with_0_in_both_roles() -> None:
    good = survivor(attention=0, ffn=0)
    assert problems(DRAIN, good, "7") == []
    assert leaves_nothing(DRAIN, good)


def test_a_drain_that_never_ends_has_not_passed() -> None:
    assert problems(DRAIN, survivor(), "7") == [
        "attention did not end its drain",
        "ffn did not end its drain",
    ]
    assert problems(DRAIN, survivor(attention=0), "7") == ["ffn did not end its drain"]


def test_a_drain_that_ends_with_another_code_has_not_passed() -> None:
    assert problems(DRAIN, survivor(attention=71, ffn=70), "7") == [
        "attention ended its drain with 71, not with 0",
        "ffn ended its drain with 70, not with 0",
    ]


def test_a_group_that_survives_has_no_role_that_ends() -> None:
    assert problems(IDLE, survivor(), "7") == []
    assert not leaves_nothing(IDLE, survivor())
    assert problems(IDLE, survivor(ffn=71), "7") == ["ffn exited with 71, though the group goes on"]


def test_a_group_that_names_a_cause_has_not_survived() -> None:
    seen = survivor(attention=0, ffn=0)
    seen.causes[Role.FFN] = "A0: its agent is gone"
    (found,) = problems(DRAIN, seen, "7")
    assert found == "ffn names a cause, though the group goes on: 'A0: its agent is gone'"


def recorded() -> list[Result]:
    found = [result for record in results.read_records(RECORDS) for result in record.results]
    assert len(found) >= 130
    return [result for result in found if result.outcome == "passed"]


@pytest.mark.parametrize("result", recorded(), ids=lambda result: result.cell)
def test_what_is_recorded_as_passed_would_pass_today(result: Result) -> None:
    """So docs/faults.md, which is made from it, claims no more than what is demanded here. A record has no numbers of
    processes: each is N."""
    seen = Seen(
        noticed={Role(role): at for role, at in result.noticed_s.items()},
        causes={Role(role): words for role, words in result.causes.items()},
        ended={Role(role): at for role, at in result.ended_s.items()},
        codes={Role(role): code for role, code in result.codes.items()},
        survived=result.survived,
    )
    assert problems(Cell.parse(result.cell), seen, "N") == []
