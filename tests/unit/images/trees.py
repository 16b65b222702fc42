# SPDX-License-Identifier: Apache-2.0
"""An image's files as a tree of our own: an A3 image with everything where it belongs, in which tests plant faults.

Its Python is this one, with the tree's packages instead of ours; its operators' library is compiled here.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from afd import pins
from afd.images import cell as matrix
from afd.images import command, installed
from afd.images.installed import Tree

PINNED = pins.load()
CELL = matrix.choose(PINNED.images, "a3", "openeuler24.03", "arm64")
LOCK = """\
left==1.0 \\
    --hash=sha256:00
only-elsewhere==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:00
torch-npu==5.0 \\
    --hash=sha256:00
torch==4.0 \\
    --hash=sha256:00
transformers==6.0 \\
    --hash=sha256:00
triton==9.0 ; sys_platform == 'never' \\
    --hash=sha256:00
"""
VENDORS = "_cann_ops_custom/vendors"


@dataclass(frozen=True)
class Image:
    """The tree, and the files beside it that the build has."""

    tree: Tree
    lock: Path

    @property
    def site(self) -> Path:
        return self.tree.site

    @property
    def ascend_vendor(self) -> Path:
        return self.site / "vllm_ascend" / VENDORS / PINNED.ascend_vendor

    @property
    def operators(self) -> Path:
        return self.tree.root / installed.OPERATORS / "vendors" / PINNED.images.operators.vendor

    def words(self, *more: str) -> list[str]:
        """The command line of the verify stage."""
        return [
            "--root", str(self.tree.root), "--soc", CELL.soc, "--os", CELL.os, "--arch", CELL.arch,
            "--version", "1.2.3", "--revision", "a" * 40, "--created", "2026-01-02T03:04:05Z",
            "--base-name", CELL.base, "--a2e", "built", "--lock", str(self.lock), *more,
        ]  # fmt: skip

    def distribution(
        self, name: str, version: str, points: str = "", extra: dict[str, str] | None = None
    ) -> Path:
        """Installs a distribution's metadata; ``points`` is its entry_points.txt."""
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(points)
        for file, text in (extra or {}).items():
            (folder / file).write_text(text)
        return folder

    def module(self, name: str, text: str = "") -> None:
        """Installs a module or, with a dot, one inside a package; compiled."""
        package, _, inner = name.partition(".")
        folder = self.site / package
        (folder / "__pycache__").mkdir(parents=True, exist_ok=True)
        for part in ("__init__", *([inner] if inner else [])):
            path = folder / f"{part}.py"
            if part == (inner or "__init__") or not path.exists():
                path.write_text(text if part == (inner or "__init__") else "")
            (folder / "__pycache__" / f"{part}.cpython-312.pyc").touch()


def operator_library(vendor: Path, symbols: tuple[str, ...], soc: str, compiler: str = "cc") -> None:
    """A vendor's folder with a library that defines ``symbols`` and one kernel for ``soc``."""
    library = vendor / "op_api/lib/libcust_opapi.so"
    library.parent.mkdir(parents=True)
    source = "".join(f"int {symbol}(void) {{ return 0; }}\n" for symbol in symbols) or "int none;\n"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)],
        input=source,
        text=True,
        check=True,
    )
    kernels = vendor / "op_impl/ai_core/tbe/kernel" / soc / "a2e"
    kernels.mkdir(parents=True)
    (kernels / "A2e_1.o").touch()
    (kernels / "A2e_1.json").touch()


def make(root: Path, beside: Path) -> Image:
    """A complete A3 image below ``root``."""
    image = Image(Tree(root, CELL), beside / "npu.txt")
    image.lock.write_text(LOCK)
    assert CELL.row is not None
    for name, version in (("left", "1.0"), ("torch-npu", "5.0"), ("torch", "4.0"), ("transformers", "6.0")):
        image.distribution(name, version)
    image.distribution("vllm", PINNED.vllm_version)
    image.distribution("vllm-afd", "1.2.3", "[vllm.general_plugins]\nafd = afd.plugin:register\n")
    names = ("ascend_kv_connector", "ascend_model_loader", "ascend_service_profiling", "ascend_model")
    image.distribution(
        "vllm-ascend",
        command.ascend_version(PINNED),
        "[vllm.platform_plugins]\nascend = vllm_ascend:register\n[vllm.general_plugins]\n"
        + "".join(f"{name} = vllm_ascend:register\n" for name in names),
    )
    image.distribution("triton-ascend", CELL.row.cann.triton_ascend)
    image.distribution("pip", "1.0")
    for module in ("torch", "torch_npu", "transformers", "triton", "vllm"):
        image.module(module)
    image.module("vllm_ascend", "def register(): ...\n")
    image.module("vllm_ascend._build_info", f"__device_type__ = '{CELL.row.device_type}'\n")
    image.module("afd")
    image.module("afd.plugin", "def register(): ...\n")
    for package, text in (
        ("cli.main", ""),
        ("connectors.registry", "def transports(): return ('shm', 'collective')\n"),
    ):
        folder, _, name = package.partition(".")
        (image.site / "afd" / folder).mkdir()
        (image.site / "afd" / folder / f"{name}.py").write_text(text)
        (image.site / "afd" / folder / "__pycache__").mkdir()
        (image.site / "afd" / folder / "__pycache__" / f"{name}.cpython-312.pyc").touch()
    operator_library(image.ascend_vendor, (), "ascend910_93")
    operator_library(image.operators, PINNED.images.operators.symbols, "ascend910_93")
    (root / installed.OPERATORS / "lib").mkdir()
    (root / installed.OPERATORS / "lib/_C_ascend.so").touch()
    pip_says(image, "")
    return image


def copy(image: Image, root: Path) -> Image:
    """The same image below another ``root``."""
    shutil.copytree(image.tree.root, root)
    copied = dataclasses.replace(image, tree=Tree(root, image.tree.cell))
    pip_says(copied, "")
    return copied


def pip_says(image: Image, lines: str) -> None:
    """The image's Python: this one with the tree's packages alone, and a pip whose check prints ``lines``."""
    (image.site / "pip").mkdir(exist_ok=True)
    (image.site / "pip/__main__.py").write_text(
        f"import sys\nassert sys.argv[-1] == 'check'\nprint({lines!r}, end='')\nsys.exit({1 if lines else 0})\n"
    )
    image.tree.python.parent.mkdir(parents=True, exist_ok=True)
    image.tree.python.write_text(f'#!/bin/sh\nPYTHONPATH={image.site} exec {sys.executable} -S "$@"\n')
    image.tree.python.chmod(0o755)
