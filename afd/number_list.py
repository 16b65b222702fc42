# SPDX-License-Identifier: Apache-2.0
"""Lists of numbers as people and kernels write them: "0-3,8"."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def parse(text: str) -> tuple[int, ...]:
    """The numbers of ``text``, ascending; none of an empty text. Raises ValueError for anything else, and for a number
    that comes twice."""
    found: list[int] = []
    for part in (word.strip() for word in text.split(",") if text.strip()):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"{part!r} in {text!r} is no number and no range such as 0-3")
        found += range(first, last + 1)
    twice = sorted({number for number in found if found.count(number) > 1})
    if twice:
        raise ValueError(f"{spell(twice)} twice in {text!r}")
    return tuple(sorted(found))


def spell(numbers: Iterable[int]) -> str:
    """ "0,1,2"."""
    return ",".join(map(str, numbers))
