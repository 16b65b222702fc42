# SPDX-License-Identifier: Apache-2.0
"""The report of ``afd doctor``, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from afd.doctor.check import FAIL, OK, SKIP, WARN, Check
from afd.doctor.table import Result

NOTHING_FAILED, WARNED, FAILED = 0, 1, 2
_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


def exit_code(results: Iterable[Result], strict: bool) -> int:
    """2 when a check failed; 1 when one warned and ``strict``; else 0."""
    found = {result.finding.status for result in results}
    if FAIL in found:
        return FAILED
    return WARNED if strict and WARN in found else NOTHING_FAILED


def as_data(results: Sequence[Result], version: str) -> dict[str, object]:
    """What ``--json`` prints."""
    count = Counter(result.finding.status for result in results)
    return {
        "version": version,
        "checks": [
            {
                "id": result.check.id,
                "name": result.check.name,
                "group": result.check.group.value,
                "status": result.finding.status,
                "found": result.finding.found,
                "expected": result.finding.expected or None,
                "remedy": result.finding.remedy or None,
            }
            for result in results
        ],
        "summary": {status: count[status] for status in (OK, WARN, FAIL, SKIP)},
    }


def as_lines(results: Sequence[Result]) -> Iterator[str]:
    """A line for each check that was done, below it what was expected and what to do; what was skipped, by reason."""
    done = [result for result in results if result.finding.status != SKIP]
    width = max((len(result.check.id) for result in results), default=0)
    names = max((len(result.check.name) for result in results), default=0)
    for result in done:
        finding = result.finding
        status = click.style(f"{finding.status:<4}", fg=_COLOURS.get(finding.status))
        yield f"{status}  {result.check.id:<{width}}  {result.check.name:<{names}}  {finding.found}"
        if finding.remedy:
            margin = " " * (4 + 2 + width + 2 + names)
            yield f"{margin}  expected: {finding.expected}"
            yield f"{margin}  -> {finding.remedy}"
    skipped: dict[str, list[str]] = {}
    for result in results:
        if result.finding.status == SKIP:
            skipped.setdefault(result.finding.found, []).append(result.check.name)
    for reason, checks in skipped.items():
        yield f"{SKIP}  {', '.join(checks)}: {reason}"
    count = Counter(result.finding.status for result in results)
    yield f"{count[OK]} ok, {count[WARN]} to look at, {count[FAIL]} failed, {count[SKIP]} skipped"


def as_list(checks: Iterable[Check]) -> Iterator[str]:
    """What ``--list`` prints."""
    checks = list(checks)
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.id:<12}  {check.group.value:<7}  {check.name:<{width}}  {check.about}"
