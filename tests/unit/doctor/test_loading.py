# SPDX-License-Identifier: Apache-2.0
"""Imports, extensions and entry points, loaded by real children from packages that are made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.doctor.check import FAIL, OK, SKIP, Finding
from afd.doctor.table import chosen
from tests.unit.doctor.roots import DRIVER, SITE, Root, library

BROKEN = "raise ImportError('libatb.so: undefined symbol: _ZN3atb7ContextE')\n"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """An image for A3 in which torch, its NPU package and the plugins import."""
    made = Root(tmp_path, "a3")
    made.loads = True
    made.write(f"{SITE}/torch/__init__.py", "__version__ = '2.99'\n")
    made.write(f"{SITE}/torch_npu/__init__.py", "class npu: pass\n")
    made.write(f"{SITE}/vllm_ascend/__init__.py", "def register(): ...\nmodel = kv = register\n")
    made.write(f"{SITE}/vllm_ascend/vllm_ascend_C.cpython-312.so", library(("here",)))
    made.env["PYTHONPATH"] = str(made.path(SITE))
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


def test_an_undefined_symbol_on_import_is_named(root: Root) -> None:
    root.write(f"{SITE}/torch_npu/__init__.py", BROKEN)
    found = run(root, "import-torch")
    assert found.status == FAIL and "undefined symbol: _ZN3atb7ContextE" in found.found
    assert "make image SOC=a3" in found.remedy
    root.write(f"{SITE}/torch_npu/__init__.py", "class npu: pass\n")
    assert run(root, "import-torch").status == OK


def test_an_extension_for_another_torch_is_named_with_its_symbol(root: Root) -> None:
    extension = f"{SITE}/vllm_ascend/vllm_ascend_C.cpython-312.so"
    root.write(extension, library(wants=("_ZN3c104cuda20CUDACachingAllocatorE",)))
    found = run(root, "extensions")
    assert found.status == FAIL and "undefined symbol: _ZN3c104cuda20CUDACachingAllocatorE" in found.found
    root.write(extension, library(("here",)))
    assert run(root, "extensions").status == OK


def test_without_an_extension_the_build_has_left_it_out(root: Root) -> None:
    root.remove(f"{SITE}/vllm_ascend/vllm_ascend_C.cpython-312.so")
    assert run(root, "extensions").status == FAIL


def test_a_plugin_that_does_not_load_is_named_and_the_others_are_not(root: Root) -> None:
    root.write(f"{SITE}/vllm_ascend/__init__.py", "def register(): ...\nmodel = register\n")
    found = run(root, "entry-points")
    assert found.status == FAIL and found.found.startswith(
        "1 of 4 plugins do not load: ascend_kv: AttributeError"
    )


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
