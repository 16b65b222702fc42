# SPDX-License-Identifier: Apache-2.0
"""Reads shared libraries as files: nothing is loaded, so a broken one can be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


class NotELF(ValueError):
    """The file is no ELF file, or a damaged one."""


def machine(path: Path) -> str:
    """Such as "x86_64", as :func:`os.uname` says it. Raises NotELF."""
    with _reading(path) as found:
        name = str(found.header.e_machine)
        return _MACHINES.get(name, name)


def needed(path: Path) -> list[str]:
    """The libraries that the dynamic linker loads with this one. Raises NotELF."""
    with _reading(path) as found:
        return [str(tag.needed) for tag in _dynamic(found) if tag.entry.d_tag == "DT_NEEDED"]


def run_paths(path: Path) -> list[str]:
    """Directories in which the library itself says that others are; ``$ORIGIN`` is its own. Raises NotELF."""
    directories: list[str] = []
    with _reading(path) as found:
        for tag in _dynamic(found):
            if tag.entry.d_tag == "DT_RPATH":
                directories += str(tag.rpath).split(":")
            elif tag.entry.d_tag == "DT_RUNPATH":
                directories += str(tag.runpath).split(":")
    origin = str(path.parent)
    return [item.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for item in directories if item]


def offered(path: Path) -> set[str]:
    """The symbols that the library offers to others. Raises NotELF."""
    with _reading(path) as found:
        table = found.get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            raise ValueError("it has no dynamic symbols")
        return {
            str(symbol.name)
            for symbol in table.iter_symbols()
            if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.entry.st_info.bind != "STB_LOCAL"
        }


def undefined(path: Path, wanted: Iterable[str]) -> list[str]:
    """Which of the ``wanted`` symbols the library does not offer. Raises NotELF."""
    there = offered(path)
    return [name for name in wanted if name not in there]


@contextmanager
def _reading(path: Path) -> Iterator[ELFFile]:
    with open(path, "rb") as file:
        try:
            yield ELFFile(file)
        except (ELFError, ValueError) as error:
            raise NotELF(
                f"{path} is no library, or a damaged one: {error or type(error).__name__}"
            ) from error


def _dynamic(found: ELFFile) -> list[Any]:
    # Any: the library gives a tag an attribute that is called like the tag.
    section = found.get_section_by_name(".dynamic")
    if not isinstance(section, DynamicSection):
        raise ValueError("it has nothing for the dynamic linker")
    return list(section.iter_tags())
