# SPDX-License-Identifier: Apache-2.0
"""TOML files that ship inside the package: read here, because Python 3.10 has no reader of its own.

:class:`Table` reads one strictly: every key must be there, none may be unknown, and every value has a shape.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from afd.errors import ConfigError


def load(package: str, name: str) -> dict[str, Any]:
    """The tables of the file ``name`` beside the modules of ``package``. Raises ConfigError when it is not TOML."""
    return parse(importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> dict[str, Any]:
    """The tables in the text of a TOML file. Raises ConfigError that says ``name`` and what is wrong where."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from error
    return tables


class Table:
    """One table of ``file``, whose keys must be exactly ``keys``; ``path`` is its dotted name for messages."""

    def __init__(self, file: str, path: str, value: object, keys: set[str]) -> None:
        if not isinstance(value, dict):
            raise ConfigError(f"{file}: {path} must be a table, not {value!r}")
        self._file = file
        self._path = path
        self._values: dict[str, object] = value
        for kind, names in (("unknown", set(value) - keys), ("missing", keys - set(value))):
            if names:
                where = f"[{path}]" if path else "the top level"
                raise ConfigError(f"{file}: {kind} in {where}: {', '.join(sorted(names))}")

    def table(self, key: str, keys: set[str]) -> Table:
        """The table below ``key``."""
        return Table(self._file, self._join(key), self._values[key], keys)

    def rows(self, key: str, keys: set[str]) -> list[tuple[str, Table]]:
        """The tables below ``key`` with their names; every one has the same ``keys``."""
        rows = self._values[key]
        if not isinstance(rows, dict):
            raise ConfigError(f"{self._file}: {self._join(key)} must be a table of tables, not {rows!r}")
        return [
            (name, Table(self._file, self._join(f"{key}.{name}"), row, keys)) for name, row in rows.items()
        ]

    def text(self, key: str, pattern: re.Pattern[str]) -> str:
        """A string that ``pattern`` matches as a whole."""
        return self._matching(self._join(key), self._values[key], pattern)

    def texts(self, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """A list of strings, each of which ``pattern`` matches."""
        values = self._values[key]
        if not isinstance(values, list):
            raise ConfigError(f"{self._file}: {self._join(key)} must be a list, not {values!r}")
        return tuple(
            self._matching(f"{self._join(key)}[{i}]", value, pattern) for i, value in enumerate(values)
        )

    def count(self, key: str) -> int:
        """A whole number above zero."""
        value = self._values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self._file}: {self._join(key)} must be a number above 0, not {value!r}")
        return value

    def wrong(self, key: str, why: str) -> ConfigError:
        """An error about the value of ``key``, which has the right shape and is wrong all the same."""
        return ConfigError(f"{self._file}: {self._join(key)}: {why}")

    def _join(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _matching(self, path: str, value: object, pattern: re.Pattern[str]) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{self._file}: {path} must look like {pattern.pattern}, not {value!r}")
        return value
