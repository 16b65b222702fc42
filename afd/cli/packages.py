# SPDX-License-Identifier: Apache-2.0
"""The checks of ``afd doctor`` about installed packages. Nothing is imported; only metadata and files are
read.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

from afd.cli.checks import FAIL, OK, SKIP, WARN, Finding
from afd.cli.version import DISTRIBUTION, afd_version
from afd.pins import Pins

_SETUP = "run: make setup"
_PLUGIN = "afd"
# Importing these takes most of a start; how many of their files to look at.
_LARGE = ("vllm", "torch", "transformers")
_SAMPLE = 300


def check(pins: Pins, platform: str = "cpu") -> Iterator[Finding]:
    """Compare the environment with ``pins``, for one platform."""
    pinned = pins.platforms[platform]
    version = ".".join(map(str, sys.version_info[:3]))
    allowed = pins.python.allows(sys.version_info[:2])
    yield Finding(
        "python",
        OK if allowed else FAIL,
        f"{version}, {pins.python.specifier} is needed",
        "" if allowed else "make the environment with another Python: make setup PYTHON=…",
    )
    yield _afd()
    yield _exact("vllm", pinned.distribution, pins.vllm_version)
    yield _exact("torch", "torch", pinned.torch)
    present = [name for name in pinned.excluded if _version(name) is not None]
    yield Finding(
        "excluded",
        FAIL if present else OK,
        f"{', '.join(present)} installed" if present else f"no {', '.join(pinned.excluded)}",
        f"they break imports of model classes; run: pip uninstall {' '.join(present)}" if present else "",
    )
    yield _alias(pins, platform)
    yield _plugins()
    yield _bytecode()


def devices() -> Finding:
    """NPUs are not looked for yet; never call that ok."""
    return Finding("npu", SKIP, "not checked: this release runs on CPU")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _afd() -> Finding:
    installed = _version(DISTRIBUTION)
    if installed is None:
        told = f"{afd_version()}, not installed as a distribution, so vLLM does not find its plugin"
        return Finding("afd", FAIL, told, _SETUP)
    return Finding("afd", OK, installed)


def _exact(identity: str, distribution: str, wanted: str) -> Finding:
    found = _version(distribution)
    if found is None:
        return Finding(identity, FAIL, f"{distribution} is not installed, {wanted} is needed", _SETUP)
    # A local label such as "+cpu" says how it was built, not what it is.
    if found.partition("+")[0] != wanted:
        return Finding(identity, FAIL, f"{distribution} {found}, {wanted} is needed", _SETUP)
    return Finding(identity, OK, f"{distribution} {found}")


def _alias(pins: Pins, platform: str) -> Finding:
    """What lets vLLM's V2 runner start on CPU: a distribution named vllm for "cpu", and a Triton backend
    named cpu.
    """
    remedy = f"{_SETUP}; without it only the V1 runner starts (VLLM_USE_V2_MODEL_RUNNER=0)"
    found = _version("vllm")
    if found is None:
        return Finding("v2-runner", FAIL, "the alias distribution 'vllm' is not installed", remedy)
    if platform not in found or not found.startswith(pins.vllm_version):
        return Finding(
            "v2-runner",
            FAIL,
            f"the distribution 'vllm' is {found}, not {pins.vllm_version}+{platform}",
            remedy,
        )
    backends = [
        entry.value for entry in metadata.entry_points(group="triton.backends") if entry.name == platform
    ]
    if not backends:
        return Finding("v2-runner", FAIL, f"vllm {found}, but no Triton backend named {platform}", remedy)
    return Finding("v2-runner", OK, f"vllm {found}, Triton backend {backends[0]}")


def _plugins() -> Finding:
    names = [entry.name for entry in metadata.entry_points(group="vllm.general_plugins")]
    if _PLUGIN not in names:
        return Finding("plugin", FAIL, "vLLM's general plugins do not include afd", _SETUP)
    filtered = os.environ.get("VLLM_PLUGINS")
    if filtered is not None and _PLUGIN not in filtered.split(","):
        return Finding(
            "plugin", FAIL, f"VLLM_PLUGINS is {filtered!r}, so vLLM does not load afd", "add afd, or unset it"
        )
    return Finding("plugin", OK, f"vLLM's general plugins: {', '.join(sorted(set(names)))}")


def _bytecode() -> Finding:
    """Without compiled bytecode every process compiles thousands of modules at every start."""
    missing = []
    for package in _LARGE:
        directory = _directory(package)
        if directory is None:
            continue
        sources = list(islice(_sources(directory), _SAMPLE))
        compiled = sum(os.path.exists(importlib.util.cache_from_source(source)) for source in sources)
        if sources and compiled < 0.9 * len(sources):
            missing.append(f"{package} {compiled}/{len(sources)}")
    if not missing:
        return Finding("bytecode", OK, f"compiled: {', '.join(_LARGE)}")
    remedy = (
        "run: make setup, or python -m compileall on the environment; every process starts about 15 s sooner"
    )
    return Finding("bytecode", WARN, f"not compiled: {', '.join(missing)}", remedy)


def _sources(directory: Path) -> Iterator[str]:
    for root, _, files in os.walk(directory):
        yield from (os.path.join(root, name) for name in sorted(files) if name.endswith(".py"))


def _directory(package: str) -> Path | None:
    """Where a package is, found without importing it."""
    spec = PathFinder.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
