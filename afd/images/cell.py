# SPDX-License-Identifier: Apache-2.0
"""A cell of the matrix SOC × OS × architecture: which there are, and the tag of its image."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

from afd.errors import ConfigError
from afd.images.rows import CPU, Images, Soc, wrong_soc

REPOSITORY = "afd"
_ARCH_ALIASES = {"aarch64": "arm64", "x86_64": "amd64", "arm64": "arm64", "amd64": "amd64"}


@dataclass(frozen=True)
class Cell:
    """One image. ``row`` is None for the CPU; ``arch`` is "amd64" or "arm64", as OCI spells it."""

    soc: str
    os: str
    arch: str
    base: str
    python: str
    row: Soc | None

    @property
    def name(self) -> str:
        """Such as "a3-openeuler24.03-arm64"."""
        return f"{self.soc}-{self.os}-{self.arch}"

    @property
    def machine(self) -> str:
        """The architecture as Linux and wheels spell it."""
        return {"arm64": "aarch64", "amd64": "x86_64"}[self.arch]


def tag(version: str, cell: Cell, registry: str = "") -> str:
    """The reference of a cell's image: ``[registry/]afd:version-soc-os-arch``. There is no other scheme."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    return f"{prefix}{REPOSITORY}:{version}-{cell.name}"


def cells(images: Images) -> Iterator[Cell]:
    """Every cell, the CPU first."""
    for arch in images.cpu.architectures:
        yield Cell(CPU, images.cpu.os, arch, images.cpu.base, images.cpu.python, None)
    for soc in images.socs.values():
        for os in soc.oses:
            for arch in soc.architectures:
                yield Cell(soc.name, os, arch, soc.base(os), soc.cann.python, soc)


def choose(images: Images, soc: str, os: str = "", arch: str = "") -> Cell:
    """The cell that a person asked for; the OS defaults to the row's first, the architecture to this machine's.

    Raises ConfigError that says what there is.
    """
    names = (CPU, *images.socs)
    if not soc:
        raise ConfigError(f"say for which SOC: make image SOC={'|'.join(names)}")
    wanted = soc.lower()
    aliases = {alias: row.name for row in images.socs.values() for alias in row.aliases}
    wanted = aliases.get(wanted, wanted)
    if wanted not in names:
        raise ConfigError(f"SOC={soc}: {wrong_soc(wanted, names)}")
    found = [cell for cell in cells(images) if cell.soc == wanted]
    oses = tuple(dict.fromkeys(cell.os for cell in found))
    chosen = os.lower() or oses[0]
    if chosen not in oses:
        raise ConfigError(f"OS={os}: for SOC={wanted} there is {', '.join(oses)}")
    machine = arch or platform.machine()
    if machine not in _ARCH_ALIASES:
        raise ConfigError(f"ARCH={machine}: there is arm64 (aarch64) and amd64 (x86_64)")
    for cell in found:
        if (cell.os, cell.arch) == (chosen, _ARCH_ALIASES[machine]):
            return cell
    raise ConfigError(f"ARCH={machine}: there is no image for it with SOC={wanted} OS={chosen}")


def cam_fits(images: Images, cell: Cell) -> bool:
    """Whether the CAM binaries work in the image of ``cell``."""
    return (cell.soc, cell.os, cell.arch) == (images.cam.soc, images.cam.os, images.cam.arch)
