# SPDX-License-Identifier: Apache-2.0
"""Requirements between installed packages that are not met, and the reviewed ones among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from afd import toml_data
from afd.errors import ConfigError

FILE = "conflicts.toml"
_ENVIRONMENT = {"extra": ""}


class Reviewed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A conflict that is accepted, on which SOCs and why."""

    package: str
    name: str
    socs: tuple[Literal["cpu", "a2", "a3", "a5"], ...]
    reason: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    conflict: tuple[Reviewed, ...]


@dataclass(frozen=True)
class Conflict:
    """``package`` asks for ``requirement``, of which ``version`` is installed ("" for none)."""

    package: str
    requirement: str
    name: str
    version: str

    @property
    def key(self) -> tuple[str, str]:
        return (canonicalize_name(self.package), canonicalize_name(self.name))

    @property
    def remedy(self) -> str:
        return f"run: pip install '{self.requirement}'"

    def __str__(self) -> str:
        have = f"{self.name} {self.version} is installed" if self.version else f"{self.name} is not installed"
        return f"{self.package} wants {self.requirement}, {have}"


def load() -> tuple[Reviewed, ...]:
    """The reviewed conflicts. Raises ConfigError when the list is not what this module expects."""
    try:
        return msgspec.convert(toml_data.load("afd.doctor", FILE), _File).conflict
    except msgspec.ValidationError as error:
        raise ConfigError(f"{FILE}: {error}") from error


def reviewed(soc: str) -> set[tuple[str, str]]:
    """The keys of those that are accepted on ``soc``."""
    return {
        (canonicalize_name(row.package), canonicalize_name(row.name)) for row in load() if soc in row.socs
    }


def found(distributions: Mapping[str, metadata.Distribution], installed: Mapping[str, str]) -> list[Conflict]:
    """Every requirement that is not met, extras left out. ``installed`` are the versions of ``distributions``, both by
    canonical name. Raises ValueError for metadata that cannot be read.
    """
    result = []
    for package, one in distributions.items():
        for line in one.requires or ():
            try:
                wanted = Requirement(line)
                if wanted.marker is not None and not wanted.marker.evaluate(_ENVIRONMENT):
                    continue
                version = installed.get(canonicalize_name(wanted.name))
                met = version is not None and wanted.specifier.contains(Version(version), prereleases=True)
            except (InvalidRequirement, InvalidVersion) as error:
                raise ValueError(f"{package} asks for {line!r}, which cannot be compared: {error}") from error
            if not met:
                short = f"{wanted.name}{wanted.specifier}"
                result.append(Conflict(package, short, wanted.name, version or ""))
    return sorted(result, key=str)
