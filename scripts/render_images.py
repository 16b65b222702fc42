# SPDX-License-Identifier: Apache-2.0
"""Writes what comes from the rows of images (``make docs``): the bake file, and the build commands as text.

The commands are kept (tests/unit/images/snapshots) so that a change of a pin or of the code shows in a review as what
it does to every image. A test in tests/rules compares all of it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from afd import pins
from afd.images import bake, command, digests
from afd.images import cell as matrix

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOTS = "tests/unit/images/snapshots"
# Of no commit: a snapshot says what the recipe does, not when it was made.
CHECKOUT = command.Checkout("0.0.0", "0" * 40, False, 0)


def files() -> dict[str, str]:
    """Path in the checkout -> text."""
    pinned = pins.load()
    known = digests.read(ROOT, pinned.images.bases())
    found = {"docker/docker-bake.hcl": bake.render(pinned, known)}
    for cell in matrix.cells(pinned.images):
        path = f"{SNAPSHOTS}/{cell.name}.txt"
        found[path] = "\n".join(snapshot(pinned, cell, engine) for engine in command.ENGINES)
    return found


def snapshot(pinned: pins.Pins, cell: matrix.Cell, engine: str) -> str:
    """The command for one engine, an option and its value a line; without digests, which have a file of their own."""
    options = command.Options(engine=engine)
    words = command.command(pinned, cell, CHECKOUT, {}, options)
    text = ""
    for word in map(shlex.quote, words):
        text += f" \\\n    {word}" if word.startswith("--") or word == "." else f" {word}"
    return text.strip() + "\n"


def main() -> None:
    wanted = files()
    for stale in (ROOT / SNAPSHOTS).glob("*.txt"):
        if stale.relative_to(ROOT).as_posix() not in wanted:
            stale.unlink()
    for path, text in wanted.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
