# SPDX-License-Identifier: Apache-2.0
"""How the same SOC is called in different places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Names:
    """``device_type`` is what vLLM-Ascend calls it in its build record, ``kernels`` the directory of its kernel
    binaries and how SOC_VERSION begins, ``numbers`` what the device answers, ``ranktable`` the version of rank tables
    for it.
    """

    device_type: str
    kernels: str
    numbers: range
    ranktable: str


NAMES: Mapping[str, Names] = MappingProxyType(
    {
        "a2": Names("A2", "ascend910b", range(220, 226), "1.0"),
        "a3": Names("A3", "ascend910_93", range(250, 256), "1.2"),
        "a5": Names("A5", "ascend950", range(260, 261), "2.0"),
    }
)
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def of_version(soc_version: str) -> str:
    """The SOC that a SOC_VERSION is spelled for; "" when it is none."""
    return next((name for name, names in NAMES.items() if soc_version.startswith(names.kernels)), "")


def of_number(number: int) -> str:
    """The SOC that has answered with ``number``; "" when it is none that is known here."""
    return next((name for name, names in NAMES.items() if number in names.numbers), "")
