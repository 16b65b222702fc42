# SPDX-License-Identifier: Apache-2.0
"""The page about the checks."""

from __future__ import annotations

from afd.doctor import page
from afd.doctor.table import CHECKS


def test_every_check_has_a_row_with_its_fix_and_its_reports() -> None:
    rows = [
        line.split(" | ") for line in page.render(lambda one: f"[{one}]").splitlines() if "| AFD-" in line
    ]
    assert [row[0].removeprefix("| ") for row in rows] == [check.id for check in CHECKS]
    for row, check in zip(rows, CHECKS, strict=True):
        assert len(row) == 7 and row[4] == check.fix.replace("|", "\\|")
        assert all(f"[{one}]" in row[6] for one in check.prevents)
