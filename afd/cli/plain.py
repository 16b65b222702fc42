# SPDX-License-Identifier: Apache-2.0
"""Output that every stream can take: one that knows fewer characters than we use gets them spelt, not a traceback."""

from __future__ import annotations

import codecs
import io
import sys

_NAME = "afd.plain"
_SPELLINGS = {"×": "x", "…": "...", "→": "->", "–": "-", "±": "+-", "µ": "u"}


def spell() -> None:
    """From now on standard output and standard error write what their encoding lacks in plain letters."""
    codecs.register_error(_NAME, _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    escaped = (character.encode("ascii", "backslashreplace").decode("ascii") for character in lacking)
    spelt = (_SPELLINGS.get(character, other) for character, other in zip(lacking, escaped, strict=True))
    return "".join(spelt), error.end
