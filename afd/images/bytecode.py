# SPDX-License-Identifier: Apache-2.0
"""Whether the modules of a package are compiled, which no container can do later. Nothing is imported or read."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_MAY_LACK = 0.02
"""The share of files that may be no Python, such as templates, or Python of another version."""


@dataclass(frozen=True)
class Compiled:
    """How many sources were looked at, and those of them, relative to their package, that have no bytecode."""

    sources: int
    missing: tuple[str, ...]

    @property
    def enough(self) -> bool:
        """All but a few."""
        return len(self.missing) <= _MAY_LACK * self.sources


def look(package: Path, tag: str = "", most: int | None = None) -> Compiled:
    """At all sources of a package, or the first ``most``. ``tag`` names the Python, such as "cpython-312"; without it
    this one is meant."""
    sources = list(islice(_sources(package), most))
    missing = [source for source in sources if not os.path.exists(_bytecode(source, tag))]
    return Compiled(len(sources), tuple(os.path.relpath(source, package) for source in missing))


def _bytecode(source: str, tag: str) -> str:
    if not tag:
        return importlib.util.cache_from_source(source)
    directory, name = os.path.split(source)
    return os.path.join(directory, "__pycache__", f"{name.removesuffix('.py')}.{tag}.pyc")


def _sources(package: Path) -> Iterator[str]:
    for root, directories, files in os.walk(package):
        directories.sort()
        yield from (os.path.join(root, name) for name in sorted(files) if name.endswith(".py"))
