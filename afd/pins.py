# SPDX-License-Identifier: Apache-2.0
"""Reads ``afd/pins.toml``: the versions AFD is built, tested and handshaken against.

The file ships inside the package, so ``afd doctor`` and the handshake compare a running environment with it. The
reader is strict: a missing table, an unknown key or a value of the wrong shape is a :class:`ConfigError` that names
the place in the file. The tables about container images are read by :mod:`afd.images.rows`. The version of AFD itself
is not here, it is in ``VERSION``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from afd import toml_data
from afd.images import rows

_VERSION = re.compile(r"\d+(\.\d+)+([a-z0-9.+]*)")
_PYTHON = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REQUIREMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*([=<>]=[a-z0-9.]+)?")
_WORD = re.compile(r"[a-z0-9_]+")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class PythonRange:
    """The interpreters AFD supports: ``minimum`` <= version < ``below``, both as "3.N"."""

    minimum: str
    below: str

    def allows(self, version: tuple[int, int]) -> bool:
        """Whether Python ``version`` (major, minor) is inside the range."""
        return _pair(self.minimum) <= version < _pair(self.below)

    @property
    def specifier(self) -> str:
        """The range as ``requires-python`` writes it."""
        return f">={self.minimum},<{self.below}"


@dataclass(frozen=True)
class PlatformPin:
    """What one platform runs on.

    ``distribution`` is the package that carries vLLM, ``torch`` the version it runs with, and ``excluded`` the
    packages that its metadata asks for and that must stay out of the environment.
    """

    distribution: str
    torch: str
    excluded: tuple[str, ...]


@dataclass(frozen=True)
class Pins:
    """Every pin of ``pins.toml``. Commits are full SHA-1 hashes of the upstream repositories.

    ``ascend_vendor`` is the folder of vLLM-Ascend's own operators, ``ascend_requires`` what it needs from an index.
    """

    python: PythonRange
    vllm_version: str
    vllm_commit: str
    ascend_commit: str
    ascend_vendor: str
    ascend_requires: tuple[str, ...]
    platforms: Mapping[str, PlatformPin]
    uv: str
    supervisor: str
    images: rows.Images


@functools.cache
def load() -> Pins:
    """The pins that ship with this package. Raises ConfigError when the file is not what this module expects."""
    return _pins(toml_data.load("afd", "pins.toml"))


def parse(text: str) -> Pins:
    """Pins from the text of a ``pins.toml``. Raises ConfigError naming the table and key that is wrong."""
    return _pins(toml_data.parse(text, "pins.toml"))


def _pins(document: dict[str, object]) -> Pins:
    top = toml_data.Table(
        "pins.toml", "", document, {"python", "vllm", "vllm-ascend", "platform", "tool", *rows.TABLES}
    )
    python = top.table("python", {"minimum", "below"})
    vllm = top.table("vllm", {"version", "commit"})
    ascend = top.table("vllm-ascend", {"commit", "vendor", "requires"})
    tool = top.table("tool", {"uv", "supervisor"})
    return Pins(
        python=PythonRange(python.text("minimum", _PYTHON), python.text("below", _PYTHON)),
        vllm_version=vllm.text("version", _VERSION),
        vllm_commit=vllm.text("commit", _COMMIT),
        ascend_commit=ascend.text("commit", _COMMIT),
        ascend_vendor=ascend.text("vendor", _WORD),
        ascend_requires=ascend.texts("requires", _REQUIREMENT),
        platforms=MappingProxyType(
            {
                name: PlatformPin(
                    distribution=row.text("distribution", _NAME),
                    torch=row.text("torch", _VERSION),
                    excluded=row.texts("excluded", _NAME),
                )
                for name, row in top.rows("platform", {"distribution", "torch", "excluded"})
            }
        ),
        uv=tool.text("uv", _VERSION),
        supervisor=tool.text("supervisor", _VERSION),
        images=rows.read(top),
    )


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)
