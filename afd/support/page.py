# SPDX-License-Identifier: Apache-2.0
"""``docs/support-matrix.md``, from the tables and the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from afd.support.matrix import Status, canonical, combination_of
from afd.support.records import Record
from afd.support.tables import DIMENSIONS, FEATURES


def render(records: Sequence[Record]) -> str:
    """``docs/support-matrix.md``: every supported combination with its status, then what is refused and why."""
    lines = [
        "# Support matrix",
        "",
        "What AFD runs and what it refuses. The tables behind this page also refuse unsupported configurations before",
        "anything starts; what is validated comes from the records of runs in `tests/records/`.",
        "",
        "* **validated**: a recorded run passed, from a committed tree; the record is named.",
        "* **unvalidated**: nothing is known against it, but no record is for it.",
        "* **unsupported**: refused, with the reason below.",
        "",
        "## Supported combinations",
        "",
    ]
    names = [dimension.name for dimension in DIMENSIONS]
    lines += [_row([*names, "status", "records"]), _row(["---"] * (len(names) + 2))]
    choices = [
        [value.name for value in dimension.values if not value.reason and not value.same_as]
        for dimension in DIMENSIONS
    ]
    for values in product(*choices):
        evidence = _evidence(values, records)
        known = Status.VALIDATED if any(good for _, good in evidence) else Status.UNVALIDATED
        told = ", ".join(f"`{name}`" if good else f"`{name}` (no evidence)" for name, good in evidence)
        lines.append(_row([*values, str(known), told or "none"]))
    lines += [
        "",
        "## Unsupported values",
        "",
        _row(["dimension", "value", "chosen by", "reason", "instead"]),
        _row(["---"] * 5),
    ]
    for dimension in DIMENSIONS:
        for value in dimension.values:
            if value.reason:
                name = "any other" if value.name == "*" else value.name
                lines.append(_row([dimension.name, name, dimension.setting, value.reason, value.instead]))
    heads = ["feature", "turned on by", "reason", "instead", "where"]
    lines += ["", "## Unsupported features of vLLM", "", _row(heads), _row(["---"] * len(heads))]
    for feature in FEATURES.values():
        where = ", ".join(f"{dimension} {value}" for dimension, value in feature.only) or "everywhere"
        lines.append(_row([feature.name, feature.flag, feature.reason, feature.advice, where]))
    return "\n".join(lines) + "\n"


def _evidence(values: tuple[str, ...], records: Sequence[Record]) -> list[tuple[str, bool]]:
    """Names of the records about a combination, and whether each of them validates it."""
    return [
        (f"{record.kind}-{record.name}", record.is_evidence)
        for record in records
        if not record.setup.features and canonical(combination_of(record).values()) == values
    ]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
