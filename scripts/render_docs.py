# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of ``docs/`` that come from code (``make docs``). A test in tests/rules compares them.

Run it as a module of the checkout: the page about faults comes from the tests that cause them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afd import pins, support, toml_data
from afd.config import reference
from afd.doctor import page as doctor_page
from afd.images import page
from afd.rebind import HOOKS
from afd.support import records
from tests.chaos import page as chaos_page
from tests.chaos import results as chaos_results

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RECORDS = ROOT / "tests/records"
FAILURES = ROOT / "tests/failures.toml"
NOTE = "<!-- Written by `make docs` from {}. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name below ``docs/`` -> its text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **records.json_schema()}
    return {
        "configuration.md": NOTE.format("afd/config/schema.py") + reference.render(),
        "doctor.md": NOTE.format("afd/doctor") + doctor_page.render(_link),
        "failure-modes.md": NOTE.format("tests/failures.toml") + failure_modes(load_failures()),
        "faults.md": NOTE.format("tests/chaos and tests/records/chaos")
        + chaos_page.render(chaos_results.evidence(chaos_results.read_records(RECORDS), ROOT)),
        "hooks.md": hooks(),
        "image-matrix.md": NOTE.format("afd/pins.toml")
        + page.render(pins.load(), (ROOT / "VERSION").read_text(encoding="utf-8").strip()),
        "record.schema.json": json.dumps(schema, indent=2, sort_keys=True) + "\n",
        "support-matrix.md": NOTE.format("afd/support/tables.py and tests/records")
        + support.render(records.load(RECORDS)),
        "versions.md": versions(pins.load()),
    }


@dataclass(frozen=True)
class Failure:
    """A failure that others reported in public. ``later`` maps work that is to come to what it has to show."""

    number: int
    title: str
    references: tuple[str, ...]
    symptom: str
    cause: str
    tests: tuple[str, ...]
    later: Mapping[str, str]


@dataclass(frozen=True)
class Catalogue:
    """All of them, and what the names of work that is to come mean."""

    later: Mapping[str, str]
    failures: tuple[Failure, ...]


def load_failures() -> Catalogue:
    """tests/failures.toml. Raises TypeError for an entry with a key too few or too many."""
    found = toml_data.parse(FAILURES.read_text(encoding="utf-8"), FAILURES.name)
    lists = ("references", "tests")
    rows = [{"later": {}, **row, **{name: tuple(row[name]) for name in lists}} for row in found["failure"]]
    return Catalogue(found["later"], tuple(Failure(**row) for row in rows))


def failure_modes(catalogue: Catalogue) -> str:
    """What others have run into, and what shows that it does not happen here."""
    rows = []
    for one in catalogue.failures:
        shown = [f"`{name}`" for name in one.tests]
        shown += [f"*{work}*: {what}" for work, what in one.later.items()]
        texts = (f"**{one.title}.** {one.symptom} {one.cause}", ", ".join(map(_link, one.references)))
        rows.append((str(one.number), *texts, "<br>".join(shown)))
    tested = sum(bool(one.tests) for one in catalogue.failures)
    open_ = sum(bool(one.later) for one in catalogue.failures)
    return (
        "# Failure modes\n\n"
        "What went wrong in other systems that serve a model by two roles or by expert parallelism, as reported in\n"
        "public, and what shows that it does not happen here: a test, by the name that pytest knows, or work that\n"
        "is still to come, with what it has to show.\n\n"
        f"Of {len(rows)} failures {tested} have tests in this tree, and {open_} have a part that can only occur with\n"
        "what is not built yet:\n\n"
        + "".join(f"- *{name}*: {what}\n" for name, what in catalogue.later.items())
        + "\nThe same few roots come back: counts that are derived instead of sent, a decision that one rank takes\n"
        "for itself, no work as a case that nobody thought of, keys that are the same for different things, and no\n"
        "way to tell a peer to stop.\n\n" + table(("#", "failure", "reported", "shown by"), rows)
    )


def _link(reference: str) -> str:
    """A link for "owner/repo#number" and "owner/repo@commit", the text itself for anything else."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)([#@])(\w+)", reference)
    if match is None:
        return reference
    kind = "issues" if match[2] == "#" else "commit"
    return f"[{match[1].split('/')[1]}{match[2]}{match[3]}](https://github.com/{match[1]}/{kind}/{match[3]})"


def versions(pinned: pins.Pins) -> str:
    """What this tree is built and tested against."""
    rows = [
        ("Python", f"{pinned.python.minimum} or newer, below {pinned.python.below}"),
        ("vLLM", f"{pinned.vllm_version} (`{pinned.vllm_commit}`)"),
        ("vLLM-Ascend", f"`{pinned.ascend_commit}`"),
        ("uv", pinned.uv),
        ("supervisor", pinned.supervisor),
    ]
    for name, row in sorted(pinned.platforms.items()):
        rows.append((f"platform `{name}`", f"`{row.distribution}` with torch {row.torch}"))
    for cann in pinned.images.canns.values():
        rows.append(
            (f"CANN {cann.version}", f"torch {cann.torch}, torch-npu {cann.torch_npu}, Python {cann.python}")
        )
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
