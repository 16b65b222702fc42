# SPDX-License-Identifier: Apache-2.0
"""TOML files that ship inside the package: read here, because Python 3.10 has no reader of its own."""

from __future__ import annotations

import importlib.resources
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
