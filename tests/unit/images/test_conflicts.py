# SPDX-License-Identifier: Apache-2.0
"""Requirements that are not met, and the reviewed ones among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.images import conflicts
from tests.unit.doctor.roots import Root


def test_every_reviewed_conflict_has_a_reason() -> None:
    rows = conflicts.load()
    assert len({(row.package, row.name, soc) for row in rows for soc in row.socs}) == sum(
        len(r.socs) for r in rows
    )
    assert all(len(row.reason) > 20 and row.socs for row in rows)


@pytest.mark.parametrize(
    ("requires", "conflict"),
    [
        ("click", ""),
        ("click>=8,<9", ""),
        ("click>=9", "x wants click>=9, click 8.9 is installed"),
        ("Click_>9", "x wants Click_>9, Click_ is not installed"),
        ("nothing; python_version < '3'", ""),
        ("nothing; extra == 'all'", ""),
        ("nothing>1; python_version > '3'", "x wants nothing>1, nothing is not installed"),
    ],
)
def test_requirements_are_compared_as_pip_compares_them(tmp_path: Path, requires: str, conflict: str) -> None:
    root = Root(tmp_path, "cpu")
    root.dist("x", "1", [requires])
    found = conflicts.found(root.subject().distributions, root.subject().installed)
    mine = [str(one) for one in found if one.package == "x"]
    assert mine == ([conflict] if conflict else [])
