# SPDX-License-Identifier: Apache-2.0
"""The built wheel, installed over the locked environment and used outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.rules.imports import ASCEND_LEAVES, within
from tests.rules.sources import ROOT, checkout, python

pytestmark = pytest.mark.timeout(300)  # imports all of vLLM, on a machine that may be busy

VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
MODULES = [s.module for s in python(checkout()) if not within(s.module, *ASCEND_LEAVES)]
DATA = sorted(
    path.relative_to(ROOT / "afd").as_posix()
    for path in (ROOT / "afd").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc", ".so")
)

IMPORT = """
import importlib, json, sys
prefix, *modules = sys.argv[1:]
strange = []
for name in modules:
    module = importlib.import_module(name)
    if not module.__file__.startswith(prefix):
        strange.append(f"{name} comes from {module.__file__}")
print(json.dumps(strange))
"""

READ = """
import importlib.resources, json, sys
files = importlib.resources.files("afd")
print(json.dumps({name: len(files.joinpath(name).read_bytes()) for name in sys.argv[1:]}))
"""

ENTRY_POINTS = """
import importlib.metadata, json
found = importlib.metadata.entry_points(group="vllm.general_plugins", name="afd")
print(json.dumps([[e.value, str(e.dist._path), e.load().__name__] for e in found]))
"""


class Installed:
    """A virtual environment that holds the wheel and sees the locked packages behind it."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.prefix = directory / "venv"
        self._outside = directory / "outside"
        self._outside.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.prefix], check=True, timeout=60)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(self.prefix)}))
        # The path alone: the locked environment's own .pth files, and so its editable AFD, are not read from there.
        (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        uv(
            "pip",
            "install",
            "--no-deps",
            "--offline",
            "--python",
            str(self.prefix / "bin" / "python"),
            str(wheel),
        )

    def run(self, name: str, *arguments: str, timeout_s: float = 60) -> str:
        """Standard output of a program of this environment, started outside the checkout."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [self.prefix / "bin" / name, *arguments],
            cwd=self._outside,
            env={**environment, "TORCHDYNAMO_DISABLE": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, program: str, *arguments: str, timeout_s: float = 60) -> object:
        """What a Python program printed as JSON on its last line."""
        return json.loads(self.run("python", "-c", program, *arguments, timeout_s=timeout_s).splitlines()[-1])


def uv(*arguments: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("wheel")
    # A copy, so that neither an old build directory ends up in the wheel nor a new one in the checkout.
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "VERSION", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "afd", source / "afd", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    uv("build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable,
       "--out-dir", str(directory), str(source))  # fmt: skip
    (wheel,) = directory.glob("*.whl")
    return Installed(directory, wheel)


def test_every_module_imports_from_the_wheel(installed: Installed) -> None:
    assert installed.python(IMPORT, str(installed.prefix), *MODULES, timeout_s=240) == []


def test_every_data_file_can_be_read_from_the_wheel(installed: Installed) -> None:
    sizes = {name: (ROOT / "afd" / name).stat().st_size for name in DATA}
    assert {"pins.toml", "py.typed"} <= sizes.keys()
    assert any(name.endswith(".c") for name in sizes)
    assert installed.python(READ, *DATA) == sizes


def test_the_installed_command_prints_the_version_of_the_checkout(installed: Installed) -> None:
    assert VERSION in installed.run("afd", "--version").split()


def test_vllm_finds_the_plugin_of_the_wheel(installed: Installed) -> None:
    found = installed.python(ENTRY_POINTS)
    assert isinstance(found, list)
    ((value, path, name),) = found
    assert (value, name) == ("afd.plugin:register", "register")
    assert path.startswith(str(installed.prefix))
