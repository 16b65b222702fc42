# SPDX-License-Identifier: Apache-2.0
"""Imports, extensions and entry points, loaded by real children from packages that are made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.doctor.check import FAIL, OK, SKIP, Finding
from afd.doctor.table import chosen
from tests.unit.doctor.fixes import apply
from tests.unit.doctor.roots import DRIVER, SITE, Root, library

BROKEN = "raise ImportError('libatb.so: undefined symbol: _ZN3atb7ContextE')\n"


EXTENSION = f"{SITE}/vllm_ascend/vllm_ascend_C.cpython-312.so"


class Importable(Root):
    """An image in which torch, its NPU package and the plugins import."""

    def image(self) -> None:
        super().image()
        self.write(f"{SITE}/torch/__init__.py", "__version__ = '2.99'\n")
        self.write(f"{SITE}/torch_npu/__init__.py", "class npu: pass\n")
        self.write(f"{SITE}/vllm_ascend/__init__.py", "def register(): ...\nmodel = kv = register\n")
        self.write(EXTENSION, library(("here",)))
        self.env["PYTHONPATH"] = str(self.path(SITE))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Importable(tmp_path, "a3")
    made.loads = True
    return made


def run(root: Root, name: str) -> Finding:
    (check,) = chosen([name])
    return check.run(root.subject())


def test_packages_that_import_are_ok(root: Root) -> None:
    for name, found in (
        ("import-torch", "torch 2.99"),
        ("extensions", "1 extension(s) load"),
        ("entry-points", "4 plugins load"),
    ):
        assert (run(root, name).status, run(root, name).found) == (OK, found)


@pytest.mark.parametrize(
    ("name", "file", "content", "says"),
    [
        ("import-torch", f"{SITE}/torch_npu/__init__.py", BROKEN, "undefined symbol: _ZN3atb7ContextE"),
        ("extensions", EXTENSION, library(wants=("_ZN3c104cudaE",)), "undefined symbol: _ZN3c104cudaE"),
        ("extensions", "/opt/afd/operators/lib/_C_ascend.so", b"\x7fELF", "file too short"),
        (
            "entry-points",
            f"{SITE}/vllm_ascend/__init__.py",
            "def register(): ...\nmodel = register\n",
            "1 of 4 plugins do not load: ascend_kv: AttributeError",
        ),
    ],
)
def test_what_does_not_load_is_named_and_loads_after_its_remedy(
    root: Root, name: str, file: str, content: str | bytes, says: str
) -> None:
    root.write(file, content)
    found = run(root, name)
    assert found.status == FAIL and says in found.found
    apply(root, found.remedy)
    assert run(root, name).status == OK


def test_without_an_extension_the_build_has_left_it_out(root: Root) -> None:
    root.remove(EXTENSION)
    assert run(root, "extensions").status == FAIL


def test_a_plugin_that_ends_the_process_has_failed(root: Root) -> None:
    root.write(f"{SITE}/vllm_ascend/__init__.py", "import os; os._exit(0)\n")
    found = run(root, "entry-points")
    assert found.status == FAIL and "without an answer" in found.found


def test_without_a_driver_nothing_is_said_about_imports(root: Root) -> None:
    root.remove(DRIVER)
    assert {run(root, name).status for name in ("import-torch", "extensions", "entry-points")} == {SKIP}


def test_a_library_is_really_loaded_where_that_is_allowed(root: Root) -> None:
    for name, symbol in (("libascend_hal.so", ""), ("libascend_hal.so", "nobody_has_this")):
        wants = (symbol,) if symbol else ()
        root.write(f"{DRIVER}/lib64/driver/{name}", library(wants=wants))
        found = run(root, "driver-library")
        assert found.status == (FAIL if symbol else OK) and symbol in found.found
