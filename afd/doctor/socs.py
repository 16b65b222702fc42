# SPDX-License-Identifier: Apache-2.0
"""What a SOC is called by those who do not read pins.toml: by devices, by rank tables, by Linux."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from afd import pins
from afd.images.rows import KERNEL_PREFIX, Soc

# What a device answers when it is asked for the number of its SOC.
NUMBERS: Mapping[str, range] = MappingProxyType(
    {"a2": range(220, 226), "a3": range(250, 256), "a5": range(260, 261)}
)
# The version of rank tables for it.
RANKTABLES: Mapping[str, str] = MappingProxyType({"a2": "1.0", "a3": "1.2", "a5": "2.0"})
MACHINES: Mapping[str, str] = MappingProxyType({"amd64": "x86_64", "arm64": "aarch64"})


def row(soc: str) -> Soc:
    """The pins of an NPU SOC."""
    return pins.load().images.socs[soc]


def kernels(soc: str) -> str:
    """How the directories of its kernels, and SOC_VERSION, begin."""
    return KERNEL_PREFIX[row(soc).device_type]


def of_version(soc_version: str) -> str:
    """The SOC that a SOC_VERSION is spelled for; "" when it is none."""
    return next((name for name in pins.load().images.socs if soc_version.startswith(kernels(name))), "")


def of_number(number: int) -> str:
    """The SOC that has answered with ``number``; "" when it is none that is known here."""
    return next((name for name, numbers in NUMBERS.items() if number in numbers), "")
