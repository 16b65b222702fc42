# SPDX-License-Identifier: Apache-2.0
"""Every use of ``rebind`` is a row of ``HOOKS``, and every row is in use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from afd.rebind import Hook
from tests.rules.sources import Source


@dataclass(frozen=True)
class Use:
    """A call ``rebind(owner, name=...)``: one per name, "*" for names that are computed."""

    source: Source
    line: int
    name: str
    where: str

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}: rebind of {self.name} in {self.where}"


def uses(sources: Iterable[Source]) -> Iterator[Use]:
    """Every name that is rebound; ``where`` is the dotted name of the function that does it."""
    for source in sources:
        if source.module != "afd.rebind":
            yield from _inside(source, source.tree, source.module)


def _inside(source: Source, node: ast.AST, where: str) -> Iterator[Use]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _inside(source, child, f"{where}.{child.name}")
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "rebind":
            for keyword in child.keywords:
                yield Use(source, child.lineno, keyword.arg or "*", where)
        yield from _inside(source, child, where)


def incomplete(sources: Iterable[Source], hooks: Iterable[Hook]) -> list[str]:
    """Uses without a row and rows without a use. A computed name matches any row of the same place."""
    hooks = tuple(hooks)
    found, used = [], set()
    for use in uses(sources):
        rows = [hook for hook in hooks if hook.where == use.where and use.name in ("*", hook.name)]
        used.update(rows)
        if not rows:
            found.append(f"{use} has no row in HOOKS")
    return found + [f"HOOKS: nothing rebinds {h.name} in {h.where}" for h in hooks if h not in used]
