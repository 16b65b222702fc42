# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of ``docs/`` that come from code (``make docs``). A test in tests/rules compares them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from afd import pins, support
from afd.config import reference
from afd.rebind import HOOKS
from afd.support import records

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RECORDS = ROOT / "tests/records"
NOTE = "<!-- Written by `make docs` from {}. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name below ``docs/`` -> its text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **records.json_schema()}
    return {
        "configuration.md": NOTE.format("afd/config/schema.py") + reference.render(),
        "hooks.md": hooks(),
        "record.schema.json": json.dumps(schema, indent=2, sort_keys=True) + "\n",
        "support-matrix.md": NOTE.format("afd/support/tables.py and tests/records")
        + support.render(records.load(RECORDS)),
        "versions.md": versions(pins.load()),
    }


def versions(pinned: pins.Pins) -> str:
    """What this tree is built and tested against."""
    rows = [
        ("Python", f"{pinned.python.minimum} or newer, below {pinned.python.below}"),
        ("vLLM", f"{pinned.vllm_version} (`{pinned.vllm_commit}`)"),
        ("vLLM-Ascend", f"`{pinned.ascend_commit}`"),
        ("uv", pinned.uv),
    ]
    for name, row in sorted(pinned.platforms.items()):
        rows.append((f"platform `{name}`", f"`{row.distribution}` with torch {row.torch}"))
    return (
        NOTE.format("afd/pins.toml")
        + "# Versions\n\nThe upstream versions that this tree is built and tested against.\n"
        "`afd doctor` compares a running environment with them.\n\n" + table(("what", "pinned"), rows)
    )


def hooks() -> str:
    """Every upstream name that AFD replaces for a moment."""
    rows = [(h.name, h.module, f"`{h.where}`", h.reason, h.until) for h in HOOKS]
    return (
        NOTE.format("afd/rebind.py")
        + "# Hooks\n\nThe upstream names that AFD replaces, each for the length of a `with rebind(...)` block and\n"
        "never at import. With the plugin installed and no `afd` key in the configuration, none is replaced.\n\n"
        + table(("upstream name", "of", "replaced in", "why", "not needed any more when"), rows)
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a pipe inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
