# SPDX-License-Identifier: Apache-2.0
"""The files of the checkout, as the rules see them."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

_GENERATED = ("__pycache__", ".egg-info", ".venv", "build", "dist", "tmp")
_HIDDEN_KEPT = (".ci", ".gitignore", ".dockerignore", ".hadolint.yaml")


@dataclass(frozen=True)
class Source:
    """One text file: ``path`` relative to the checkout, with forward slashes."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        """The dotted name: "afd/control/__init__.py" is "afd.control"."""
        return self.path[: -len(".py")].replace("/", ".").removesuffix(".__init__")

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    def where(self, needle: str) -> str:
        """ "path:line" of the first ``needle``."""
        return f"{self.path}:{self.text[: self.text.index(needle)].count(chr(10)) + 1}"


@functools.cache
def checkout() -> tuple[Source, ...]:
    """Every text file of the checkout that a person wrote or a script of ours made; not what git ignores."""
    return tuple(_read())


def clean(found: Sequence[str]) -> None:
    """Fails with every sentence that a rule came back with, one a line."""
    assert not found, "\n".join(("", *found))


def python(sources: tuple[Source, ...], under: str = "afd/") -> tuple[Source, ...]:
    """The Python files among ``sources`` below a folder."""
    return tuple(s for s in sources if s.path.startswith(under) and s.path.endswith(".py"))


def _read() -> Iterator[Source]:
    for directory, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if _kept(name))
        for name in sorted(filter(_kept, files)):
            path = Path(directory, name)
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a picture or an archive: no rule is about those
            yield Source(path.relative_to(ROOT).as_posix(), text)


def _kept(name: str) -> bool:
    if name.startswith("."):
        return name in _HIDDEN_KEPT
    return not name.endswith((".pyc", ".log", ".so")) and not any(
        name == generated or name.endswith(generated) for generated in _GENERATED
    )
