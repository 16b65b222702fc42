# SPDX-License-Identifier: Apache-2.0
"""``docs/support-matrix.md``, from the tables and the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from afd.support.matrix import Combination, Status, canonical, combination_of, status
from afd.support.records import Record
from afd.support.tables import CONFLICTS, DIMENSIONS, FEATURES, LAYOUTS, Dimension, Value


def render(records: Sequence[Record]) -> str:
    """``docs/support-matrix.md``: what is supported, what of it is validated, and what is refused and why."""
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
        "## Supported values",
        "",
        "Any combination of these, unless a row further below says otherwise. A combination without a record is",
        "unvalidated.",
        "",
        _row(["dimension", "chosen by", "values"]),
        _row(["---"] * 3),
    ]
    for dimension in DIMENSIONS:
        names = ["any other" if value.name == "*" else value.name for value in _supported(dimension)]
        lines.append(_row([dimension.name, dimension.setting, ", ".join(names)]))
    lines += ["", "## Layouts", "", "In eager mode, float32, on_loss exit.", "", *_layouts(records)]
    names = [dimension.name for dimension in DIMENSIONS]
    lines += ["", "## Recorded combinations", ""]
    lines += [_row([*names, "status", "records"]), _row(["---"] * (len(names) + 2))]
    for values, evidence in sorted(_recorded(records).items()):
        known = Status.VALIDATED if any(good for _, good in evidence) else Status.UNVALIDATED
        told = ", ".join(f"`{name}`" if good else f"`{name}` (no evidence)" for name, good in evidence)
        lines.append(_row([*values, str(known), told]))
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
    lines += ["", "## Values that do not go together", "", _row(["values", "reason", "instead"])]
    lines += [_row(["---"] * 3), *(_row([c.name, c.reason, c.instead]) for c in CONFLICTS)]
    heads = ["feature", "turned on by", "reason", "instead", "where"]
    lines += ["", "## Unsupported features of vLLM", "", _row(heads), _row(["---"] * len(heads))]
    for feature in FEATURES.values():
        where = ", ".join(f"{dimension} {value}" for dimension, value in feature.only) or "everywhere"
        lines.append(_row([feature.name, feature.flag, feature.reason, feature.advice, where]))
    return "\n".join(lines) + "\n"


def _supported(dimension: Dimension) -> list[Value]:
    return [value for value in dimension.values if not value.reason and not value.same_as]


def _layouts(records: Sequence[Record]) -> list[str]:
    """One row for each layout that people ask about and each transport, one column for each family and runner."""
    names = {dimension.name: [value.name for value in _supported(dimension)] for dimension in DIMENSIONS}
    transports, columns = names["transport"], list(product(names["family"], names["runner"]))
    lines = [_row(["layout", "transport", *(f"{family}, {runner}" for family, runner in columns)])]
    lines.append(_row(["---"] * (len(columns) + 2)))
    for (name, attention, ffn, tp), transport in product(LAYOUTS, transports):
        cells = [
            str(
                status(
                    Combination(
                        transport=transport,
                        family=family,
                        runner=runner,
                        num_attention=attention,
                        num_ffn=ffn,
                        tp=tp,
                    ),
                    records,
                )
            )
            for family, runner in columns
        ]
        lines.append(_row([name, transport, *cells]))
    return lines


def _recorded(records: Sequence[Record]) -> dict[tuple[str, ...], list[tuple[str, bool]]]:
    """The combinations that records are about, each with their names and whether they validate it."""
    found: dict[tuple[str, ...], list[tuple[str, bool]]] = {}
    for record in records:
        if not record.setup.features:
            values = canonical(combination_of(record).values())
            found.setdefault(values, []).append((f"{record.kind}-{record.name}", record.is_evidence))
    return found


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
