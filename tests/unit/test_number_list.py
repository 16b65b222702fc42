# SPDX-License-Identifier: Apache-2.0
"""Lists of devices and cores."""

from __future__ import annotations

import pytest

from afd.number_list import parse, spell


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ()), (" ", ()), ("0", (0,)), ("0,2-4", (0, 2, 3, 4)), (" 7 , 5 ", (5, 7)), ("3-3", (3,))],
)
def test_numbers_and_ranges_are_read(text: str, found: tuple[int, ...]) -> None:
    assert parse(text) == found


@pytest.mark.parametrize("text", ["a", "0,", ",", "3-1", "0-", "-1", "0,1,0-2", "0-99999"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no number and no range|twice in"):
        parse(text)


def test_a_list_is_spelled_as_it_is_read() -> None:
    assert parse(spell(parse("0-2,9"))) == (0, 1, 2, 9)
