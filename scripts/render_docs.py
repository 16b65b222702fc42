# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of ``docs/`` that come from code (``make docs``). A test in tests/rules compares them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from afd import config, pins
from afd.config.schema import EXTRA_OPTIONS, Option

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by `make docs` from {}. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name below ``docs/`` -> its text."""
    return {"configuration.md": configuration(), "versions.md": versions(pins.load())}


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


def configuration() -> str:
    """Every setting with its flag, variable, JSON key and default."""
    parts = [
        NOTE.format("afd/config/schema.py"),
        "# Configuration\n\n"
        "Each setting is a flag of `afd serve`, an environment variable and a key of the JSON object\n"
        '`additional_config["afd"]`. A flag beats a variable, a variable beats JSON, JSON beats the default.\n'
        "`afd config show` prints the result and where each value came from. An unknown key is an error.\n\n",
        "## Settings\n\n",
        *(_setting(option) for option in config.options()),
    ]
    for connector, options in EXTRA_OPTIONS.items():
        rows = [(f"`{o.path}`", o.type.replace("|", "or"), _default(o), o.doc) for o in options]
        parts.append(f"## `connector_extra_config` of `{connector}`\n\n")
        parts.append(table(("key", "value", "default", "meaning"), rows) + "\n")
    return "".join(parts).rstrip("\n") + "\n"


def _setting(option: Option) -> str:
    aliases = f" (also {', '.join(f'`{alias}`' for alias in option.aliases)})" if option.aliases else ""
    return (
        f"### `{option.key}`\n\n{option.doc}\n\n"
        f"- value: {option.type.replace(' | ', ', ')}; default: {_default(option)}\n"
        f"- flag `{option.flag}`, variable `{option.env}`, key `{option.key}`{aliases}\n\n"
    )


def _default(option: Option) -> str:
    return "none" if option.default is None else f"`{json.dumps(option.default)}`"


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
