# SPDX-License-Identifier: Apache-2.0
"""The report, for people and for programs."""

from __future__ import annotations

import pytest

from afd.doctor import report
from afd.doctor.check import FAIL, OK, SKIP, WARN, Finding
from afd.doctor.table import CHECKS, Result


def results(*statuses: str) -> list[Result]:
    return [
        Result(check, Finding(status, f"found {status}", "do z" if status in (WARN, FAIL) else "", "an x"))
        for check, status in zip(CHECKS, statuses, strict=False)
    ]


@pytest.mark.parametrize(
    ("statuses", "code", "strict"),
    [
        ((OK, SKIP), 0, 0),
        ((OK, WARN), 0, 1),
        ((WARN, FAIL), 2, 2),
        ((FAIL, SKIP), 2, 2),
        ((), 0, 0),
    ],
)
def test_the_exit_code_says_the_worst_and_warnings_count_when_asked(
    statuses: tuple[str, ...], code: int, strict: int
) -> None:
    assert report.exit_code(results(*statuses), strict=False) == code
    assert report.exit_code(results(*statuses), strict=True) == strict


def test_people_read_a_line_for_each_check_and_below_it_what_to_do() -> None:
    lines = list(report.as_lines(results(OK, WARN, SKIP, SKIP)))
    assert "found ok" in lines[0] and "AFD-IMG-002" in lines[1]
    assert lines[2].strip() == "expected: an x" and lines[3].strip() == "-> do z"
    assert lines[4] == f"skip  {CHECKS[2].name}, {CHECKS[3].name}: found skip"
    assert lines[-1] == "1 ok, 1 to look at, 0 failed, 2 skipped"


def test_programs_read_every_check_with_its_id() -> None:
    data = report.as_data(results(OK, FAIL, SKIP), "1.2")
    assert data["version"] == "1.2" and data["summary"] == {OK: 1, WARN: 0, FAIL: 1, SKIP: 1}
    assert data["checks"][1] == {  # type: ignore[index]
        "id": CHECKS[1].id,
        "name": CHECKS[1].name,
        "group": "offline",
        "status": FAIL,
        "found": "found fail",
        "expected": "an x",
        "remedy": "do z",
    }


def test_the_list_has_a_line_for_every_check() -> None:
    lines = list(report.as_list(CHECKS))
    assert len(lines) == len(CHECKS) and all(
        c.id in line and c.name in line for c, line in zip(CHECKS, lines, strict=True)
    )
